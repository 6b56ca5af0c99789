"""The live benchmark of groups that come and go: its traffic, its cost model, and processes in the place of pods."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from benchmarks.live_scaling import PAUSE_S, arrivals_s, paced
from benchmarks.local_groups import LocalGroups
from benchmarks.settings import BenchError
from services.domain.cost import CostProfile, DecodeCost, PrefillCost

WORKER = """
import json, pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
ready = pathlib.Path(sys.argv[sys.argv.index("--ready-file") + 1])
part = ready.with_suffix(".part")
part.write_text(json.dumps({"grpc": "127.0.0.1:1"}))
part.replace(ready)
signal.pause()
"""
LIMIT_S = 60.0


@asynccontextmanager
async def local_groups(folder: Path, program: str = WORKER) -> AsyncIterator[LocalGroups]:
    groups = LocalGroups(lambda _: [sys.executable, "-S", "-c", program], folder, folder / "log", LIMIT_S)
    async with asyncio.timeout(LIMIT_S):
        yield groups
        await groups.stop()


async def started(groups: LocalGroups, count: int) -> None:
    while len(groups.starts_s) < count:
        groups.check()
        await asyncio.sleep(0.01)


async def gone(groups: LocalGroups, count: int) -> None:
    while len(groups.spans) < count:  # noqa: ASYNC110 (the event is in another process)
        await asyncio.sleep(0.01)


async def test_groups_come_and_the_highest_goes(tmp_path: Path) -> None:
    async with local_groups(tmp_path) as groups:
        await groups.set_replicas(2)
        await started(groups, 2)
        assert await groups.replicas() == 2
        await groups.set_replicas(1)
        await gone(groups, 1)
        assert [number for number, *_ in groups.spans] == [1]
    assert sorted(number for number, *_ in groups.spans) == [0, 1]
    assert all(from_s < to_s for _, from_s, to_s in groups.spans)


async def test_a_number_that_is_wanted_again_begins_when_its_last_process_is_gone(tmp_path: Path) -> None:
    async with local_groups(tmp_path) as groups:
        await groups.set_replicas(1)
        await started(groups, 1)
        await groups.set_replicas(0)
        await groups.set_replicas(1)
        await started(groups, 2)
    (_, _, first_end_s), (_, second_begin_s, _) = groups.spans
    assert second_begin_s >= first_end_s


async def test_a_worker_that_ends_by_itself_fails_the_benchmark(tmp_path: Path) -> None:
    async with local_groups(tmp_path, "print('no model')") as groups:
        await groups.set_replicas(1)
        await gone(groups, 1)
        with pytest.raises(BenchError, match="worker 0 ended: no model"):
            groups.check()


def test_arrivals_follow_the_loads_of_the_stretches() -> None:
    times_s = arrivals_s(50.0, ((10.0, 0.4), (20.0, 3.0)), Random(1))
    assert sorted(times_s) == times_s
    assert sum(at_s < 10.0 for at_s in times_s) == pytest.approx(200, rel=0.2)
    assert sum(at_s >= 10.0 for at_s in times_s) == pytest.approx(3000, rel=0.1)
    assert times_s[-1] < 30.0


def test_every_iteration_of_the_cost_model_takes_the_pause_longer() -> None:
    cost = paced(CostProfile((PrefillCost(16, 0.1),), (DecodeCost(1, 64, 0.01), DecodeCost(4, 64, 0.02))))
    assert [point.seconds for point in cost.prefill] == pytest.approx([0.1 + PAUSE_S])
    assert [point.seconds for point in cost.decode] == pytest.approx([0.01 + PAUSE_S, 0.02 + PAUSE_S])
