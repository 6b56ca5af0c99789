"""The script that checks and measures a GPU runs on any device, and finds nothing wrong."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu
from benchmarks.device_models import BLOCK_SIZE, SHAPES, make_model, pools_of
from benchmarks.swapping import Careless, Swapper
from services.domain.copying import CopyDirection
from services.domain.ids import JobId
from services.domain.protocol import BlockMove
from services.worker.engine.engine import Engine
from services.worker.kv.copier import Copier, CpuCopier, Ticket
from services.worker.kv.pools import KvPools
from services.worker.model.decoder import DecoderModel
from tests.worker.fake_kv_commands import WAIT_LIMIT_S

JOBS, PROMPT_TOKENS, OUTPUT_TOKENS = 6, 40, 12


@pytest.fixture(scope="module")
def model() -> DecoderModel:
    torch.set_num_threads(1)
    return make_model(SHAPES["tiny"], torch.device("cpu"), torch.float32)


def run_script(out: Path) -> int:
    torch.set_num_threads(1)
    return gpu.main(["--device", "cpu", "--sizes", "tiny", "--out", str(out)])


def test_the_script_passes_on_a_cpu_with_a_tiny_model(tmp_path: Path) -> None:
    out = tmp_path / "results" / "gpu.json"
    assert run_script(out) == 0
    report = json.loads(out.read_text())
    assert report["parity"]["float32_max_difference"] < 1e-4
    assert report["swapping"] == {
        "jobs": 6,
        "output_tokens": 12,
        "same_tokens": True,
        "broken_shows": True,
        "passed": True,
    }
    assert report["copies"]["upload_scattered_gb_per_s"] > 0
    assert [point["batch"] for point in report["speed_tiny"]["decode"]] == [1, 2]
    assert report["hardware"]["torch"] == torch.__version__
    assert report["passed"]


def test_a_part_that_raises_is_written_down_and_the_others_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> dict[str, Any]:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(gpu, "check_swapping", broken)
    assert run_script(tmp_path / "gpu.json") == 1
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert report["swapping"]["error"] == "RuntimeError('out of luck')"
    assert not report["passed"]
    assert report["parity"]["passed"]
    assert report["speed_tiny"]["prefill"]


class TwoLanes:
    """Copies of the two directions do not wait for each other, as on a GPU. Uploads wait for the gate."""

    def __init__(self, pools: KvPools, gate: threading.Event) -> None:
        def opened(_: CopyDirection) -> None:
            assert gate.wait(WAIT_LIMIT_S), "the gate was never opened"

        self._lanes = {CopyDirection.OFFLOAD: CpuCopier(pools), CopyDirection.UPLOAD: CpuCopier(pools, opened)}

    def start(
        self, direction: CopyDirection, moves: Sequence[BlockMove], after: Ticket | None, on_end: Callable[[], None]
    ) -> Ticket:
        assert after is None or after.ended(), "a job has one copy at a time"
        return self._lanes[direction].start(direction, moves, None, on_end)

    def wait(self, tickets: Iterable[Ticket]) -> None:
        self._lanes[CopyDirection.UPLOAD].wait(tickets)

    def launched(self) -> None:
        """Compute on a CPU has ended when its call returns."""

    def take_stall_s(self) -> float:
        return self._lanes[CopyDirection.UPLOAD].take_stall_s()

    def drain(self) -> None:
        for lane in self._lanes.values():
            lane.drain()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()


class GateOpener(Swapper):
    """Lets uploads come only when one of them is awaited before the job's next offload."""

    def __init__(self, engine: Engine, gate: threading.Event) -> None:
        super().__init__(engine, JOBS, PROMPT_TOKENS, OUTPUT_TOKENS)
        self.gate = gate

    def await_upload(self, job_id: JobId) -> None:
        if job_id in self.uploads:
            self.gate.set()
        super().await_upload(job_id)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


def outputs(model: DecoderModel, gate: threading.Event, swaps: bool, careless: bool) -> dict[JobId, list[int]]:
    per_job = -(-(PROMPT_TOKENS + OUTPUT_TOKENS) // BLOCK_SIZE)
    pools = pools_of(model, 2 * JOBS * per_job, JOBS * per_job)
    lanes = TwoLanes(pools, gate)
    copier: Copier = Careless(lanes) if careless else lanes
    engine = Engine(model, pools, copier)
    try:
        return GateOpener(engine, gate).run(swaps)
    finally:
        gate.set()
        engine.close()


def test_uploads_that_nobody_waits_for_and_that_have_a_lane_of_their_own_show_in_the_tokens(
    model: DecoderModel, gate: threading.Event
) -> None:
    broken = outputs(model, gate, swaps=True, careless=True)
    assert broken != outputs(model, gate, swaps=False, careless=False)


def test_uploads_in_a_lane_of_their_own_that_compute_waits_for_change_no_token(
    model: DecoderModel, gate: threading.Event
) -> None:
    gate.set()
    swapped = outputs(model, gate, swaps=True, careless=False)
    assert swapped == outputs(model, gate, swaps=False, careless=False)
