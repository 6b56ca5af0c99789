"""Real services, recorded while jobs take the device from each other, and cancelled and crashed among it: what they
decided is decided again, command by command, by the machines alone.
"""

import asyncio
import gzip
import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fastserve.v1 import inference_pb2, inference_pb2_grpc
from services.cli.simulate.replay_command import replay_file
from services.runtime.recording.lines import Ending
from tests.builders.repository_paths import BUNDLED
from tests.builders.waits import wait_until
from tests.e2e.cluster import Cluster
from tests.e2e.jobs import Given, make_jobs, request_of, run_together

VOCABULARY = 2048
POOL_TOKENS = 512
"""Two or three long jobs fill it; sixteen run at a time."""
LEAST_PLANS = 100
PROMPT_WORDS = "the heron nested above the mill"
SECRET_ID = "customer-4711"
SECRET_CLIENT = "alice"


@dataclass(frozen=True)
class Recorded:
    """A run that ended, and its files."""

    given: list[Given]
    scheduler: Path
    kvmanager: Path
    killed_kvmanager: Path
    offloaded_bytes: int
    uploaded_bytes: int


async def say_something(address: str) -> list[int]:
    """A request with a text prompt and a recognisable id; then one that is cancelled after its first token."""
    sampling = inference_pb2.SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.0)
    token_ids: list[int] = []
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(request_id=SECRET_ID, text=PROMPT_WORDS, sampling=sampling)
        request.client = SECRET_CLIENT
        async for message in stub.Generate(request):
            token_ids.extend(message.token_ids)
        left = stub.Generate(request_of(make_jobs(1, VOCABULARY)[0], logprobs=False))
        async for _ in left:
            left.cancel()
            break
    return token_ids


def heard_plans(recording: Path) -> list[int]:
    """The numbers of the plans of which the recorded KV manager heard."""
    return [
        event[2][1]
        for turn in lines_of(recording)[1:]
        for event in turn["events"]
        if event[0] == "FromScheduler" and event[2][0] == "Planned"
    ]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("cluster")
    records = folder / "records"
    flags = ("--record", str(records))
    worker_flags = (
        "--dtype", "float32", "--threads", "1", "--kv-device-tokens", str(POOL_TOKENS), "--kv-host-tokens", "16384"
    )  # fmt: skip
    cluster = Cluster(BUNDLED, folder, worker_flags)
    try:
        cluster.set_policies("skip-join-mlfq", "proactive", scheduler_flags=flags, kv_flags=flags)
        cluster.start_worker()
        cluster.start_gateway()
        cluster.wait_ready()
        address = cluster.gateway_address
        given = asyncio.run(run_together(address, make_jobs(40, VOCABULARY)))
        said = asyncio.run(say_something(address))
        counters = cluster.status().counters
        killed = records / "kvmanager-001.jsonl.gz"
        wait_until(lambda: len(heard_plans(killed)) > LEAST_PLANS, "the KV manager's recording on the disk")
        # The KV manager is killed, and everything starts over with a new epoch of the worker.
        cluster.processes["kvmanager"].stop(signal.SIGKILL)
        wait_until(lambda: not cluster.status().groups[0].ready, "KV manager missed")
        cluster.restart("kvmanager").wait_ready()
        cluster.wait_ready()
        again = asyncio.run(run_together(address, make_jobs(8, VOCABULARY)))
        for service in ("gateway", "scheduler", "kvmanager"):
            assert cluster.processes[service].stop() == 0, cluster.processes[service].log()
    finally:
        cluster.stop()
    assert len(said) == 24
    return Recorded(
        given=[*given, *again],
        scheduler=records / "scheduler-001.jsonl.gz",
        kvmanager=records / "kvmanager-002.jsonl.gz",
        killed_kvmanager=killed,
        offloaded_bytes=counters.offloaded_bytes,
        uploaded_bytes=counters.uploaded_bytes,
    )


def test_the_recorded_run_preempted_and_swapped(recorded: Recorded) -> None:
    assert sum(given.preemptions for given in recorded.given) > 10
    assert recorded.offloaded_bytes > 0
    assert recorded.uploaded_bytes > 0


@pytest.mark.parametrize(
    ("service", "ending"),
    [("scheduler", Ending.CLOSED), ("kvmanager", Ending.CLOSED), ("killed_kvmanager", Ending.CUT_OFF)],
)
def test_a_replay_gives_exactly_the_commands_of_the_live_run(recorded: Recorded, service: str, ending: Ending) -> None:
    recording, outcome = replay_file(getattr(recorded, service))
    assert outcome.difference is None
    assert outcome.last_fault is None
    assert recording.ending is ending
    assert outcome.turns > 100
    assert outcome.commands > 50


def test_the_scheduler_and_the_kv_manager_recorded_the_same_conversation(recorded: Recorded) -> None:
    """What one sent is what the other heard, up to the second that the killed one lost. Nobody was refused, and so
    they met the jobs in the same order and name them alike.
    """
    heard = heard_plans(recorded.killed_kvmanager)
    sent = [
        command[2][1]
        for turn in lines_of(recorded.scheduler)[1:-1]
        for command in turn["commands"]
        if command[0] == "ToKv" and command[2][0] == "Planned"
    ]
    assert len(heard) > LEAST_PLANS
    assert heard == sent[: len(heard)]


def test_no_token_no_text_and_no_name_of_a_client_is_recorded(recorded: Recorded) -> None:
    for path in (recorded.scheduler, recorded.kvmanager, recorded.killed_kvmanager):
        text = "\n".join(json.dumps(line) for line in lines_of(path))
        assert SECRET_ID not in text
        assert SECRET_CLIENT not in text
        assert not any(word in text for word in PROMPT_WORDS.split() if len(word) > 3)
        sequences = [job.prompt for job in make_jobs(40, VOCABULARY)] + [given.token_ids for given in recorded.given]
        assert not any(json.dumps(ids[:4])[1:-1] in text for ids in sequences)
        names = {name for name in re.findall(r'"([^"]*)"', text) if re.fullmatch(r"[a-z]+\d+|.*/.*", name)}
        assert all(re.fullmatch(r"j\d+", name) for name in names), names


def test_the_token_ids_that_were_sampled_are_left_out(recorded: Recorded) -> None:
    sampled = [
        token
        for turn in lines_of(recorded.scheduler)[1:-1]
        for event in turn["events"]
        if event[0] == "IterationResult"
        for token in event[3]
    ]
    assert len(sampled) >= sum(len(given.token_ids) for given in recorded.given)
    assert {token_id for _, token_id, _ in sampled} == {0}
    emitted = [
        command[4]
        for turn in lines_of(recorded.scheduler)[1:-1]
        for command in turn["commands"]
        if command[0] == "Emit"
    ]
    assert len(emitted) >= sum(len(given.token_ids) for given in recorded.given)
    assert set(emitted) == {0}


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines as they are, up to where the file was cut off."""
    lines: list[dict[str, Any]] = []
    with gzip.open(path) as file:
        try:
            lines.extend(json.loads(line) for line in file)
        except EOFError:
            return lines
    return lines
