"""Runs of the real machines, recorded."""

import gzip
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from services.domain.turns import Turn
from services.kvmanager.kv_manager_recording import KV_MANAGER_FORMAT
from services.kvmanager.policies.kv_config import KvConfig, kv_policy_named
from services.runtime.recording.lines import MachineFormat
from services.runtime.recording.reader import Recording
from services.runtime.recording.recorder import Recorder, recording
from services.runtime.recording.recording_settings import RecordingSettings
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from services.scheduler.scheduler_recording import SCHEDULER_FORMAT
from tests.golden.stories import TEN_MS
from tests.golden.story_server import StoryJob, StoryServer, StorySetup

FORMATS = (SCHEDULER_FORMAT, KV_MANAGER_FORMAT)

BUSY = StorySetup(
    scheduler=SchedulerConfig(
        policy=PolicyName.SKIP_JOIN_MLFQ,
        max_batch=2,
        starvation_limit_s=0.2,
        prefill_chunk_tokens=16,
        plans_in_flight=2,
    ),
    kv=KvConfig(kv_policy_named("proactive")),
    profile=TEN_MS,
    device_blocks=6,
    host_blocks=12,
    jobs=tuple(
        StoryJob(
            f"client-{number}/0",
            0.013 * number,
            prompt_tokens=5 + number * 7 % 40,
            max_tokens=24,
            output_tokens=1 + number * 5 % 24,
            cancel_s=0.3 if number == 4 else None,
        )
        for number in range(12)
    ),
)
"""Twelve jobs in a pool for two or three: preemption, offloads, uploads, promotions, a cancel."""


def machine_settings(machine: MachineFormat, setup: StorySetup = BUSY) -> SchedulerConfig | KvConfig:
    """What the setup sets the machine with."""
    return setup.scheduler if machine is SCHEDULER_FORMAT else setup.kv


def record(folder: Path, setup: StorySetup = BUSY) -> dict[str, Path]:
    """Plays the setup, both machines recorded; the files by machine."""
    settings = RecordingSettings.model_validate({"record": folder})
    with ExitStack() as open_recorders:
        recorders: dict[str, Recorder] = {}
        for machine in FORMATS:
            recorder = open_recorders.enter_context(
                recording(settings, machine, machine_settings(machine, setup), strict=True)
            )
            assert recorder is not None
            recorders[machine.name] = recorder
        StoryServer(setup, lambda name, handle: recorders[name].watching(handle)).play()
    return {machine.name: next(folder.glob(f"{machine.name}-*")) for machine in FORMATS}


def lines_of(path: Path) -> list[Any]:
    """A finished recording's lines."""
    with gzip.open(path) as file:
        return [json.loads(line) for line in file]


def write_lines(path: Path, lines: list[Any]) -> Path:
    """An uncompressed recording of these lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def turns_of(path: Path) -> list[Turn[Any, Any]]:
    """The turns that can be read."""
    return list(Recording(path, FORMATS))
