"""A model laid out over two stages, through the real services: the unsplit model's tokens, whatever is swapped, and
whichever rank dies or stands still.

The ranks are placed by the variables of a LeaderWorkerSet. Shares of layers, and ranks that torchrun starts, are in
test_torchrun.py, every other layout in `python -m tests.e2e.group_layouts`; deaths at random moments:
`python -m tests.e2e.rank_deaths`.
"""

import asyncio
import re
import signal
import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.builders.model_folders import tiny_model_folder
from tests.builders.waits import wait_until
from tests.e2e.cluster import Process
from tests.e2e.group_cluster import (
    LEAST_SWAPS,
    GroupCluster,
    StartedBy,
    different,
    one_by_one,
    running_group,
    swapped_together,
    under_way,
    unsplit,
)

pytestmark = pytest.mark.timeout(240)

JOBS = 40
JOBS_AT_DEATH = 16
NOTICED_LIMIT_S = 50.0
"""On a busy machine. The settings say 4 s (test_lost_peers.py); without them gRPC would take over a minute."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupCluster]:
    folder = tmp_path_factory.mktemp("group")
    started_by = StartedBy.LEADER_WORKER_SET
    with running_group(tiny_model_folder(folder), folder, tp=1, pp=2, started_by=started_by) as running:
        yield running


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return unsplit(JOBS)


async def test_a_job_alone_gives_the_unsplit_models_tokens(group: GroupCluster, expected: list[list[int]]) -> None:
    assert different(await one_by_one(group, 3), expected[:3]) == []


async def test_forty_jobs_in_a_pool_for_four_do_too_though_each_is_swapped_several_times(
    group: GroupCluster, expected: list[list[int]]
) -> None:
    before, started_s = group.status().counters, time.monotonic()
    wrong, swaps = await swapped_together(group, expected)
    assert wrong == []
    assert min(swaps) >= LEAST_SWAPS, swaps
    after = group.status().counters
    assert after.uploaded_bytes > before.uploaded_bytes
    assert after.plan_wait_s - before.plan_wait_s < time.monotonic() - started_s, "waiting for plans is counted once"
    wait_until(group.is_idle, "every block free")


def test_a_rank_of_another_dtype_is_refused_in_one_line_before_it_loads(group: GroupCluster) -> None:
    joins = group.status().groups[0].worker_joins
    stranger = group.new_rank(1, "--dtype", "bfloat16")
    wait_until(lambda: stranger.popen.poll() is not None, "the rank ends")
    assert stranger.popen.returncode == 1
    assert stranger.log() == "fastserve worker: dtype: is 'bfloat16' on rank 1, but the leader has 'float32'\n"
    assert group.is_group_ready(0)
    assert group.status().groups[0].worker_joins == joins


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_that_is_killed_pauses_the_streams_and_changes_no_token(
    rank: int, group: GroupCluster, expected: list[list[int]]
) -> None:
    running = await under_way(group, JOBS_AT_DEATH)
    assert not running.done()
    group.kill_rank(rank)
    assert different(await running, expected[:JOBS_AT_DEATH]) == []
    wait_until(group.is_idle, "every block free")


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_that_stands_still_is_noticed_by_all_in_time_and_all_go_on_when_it_does(
    rank: int, group: GroupCluster, expected: list[list[int]]
) -> None:
    running = await under_way(group, JOBS_AT_DEATH)
    joins = group.status().groups[0].worker_joins
    others = (group.processes["scheduler"], group.processes["kvmanager"], group.ranks[1 - rank])
    losses = {process: losses_told(process) for process in others}
    group.ranks[rank].popen.send_signal(signal.SIGSTOP)
    try:
        for process, before in losses.items():
            noticed = partial(lambda process, before: losses_told(process) > before, process, before)
            await asyncio.to_thread(wait_until, noticed, f"{process.name} notices", NOTICED_LIMIT_S)
        assert not group.is_group_ready(0)
        assert not running.done()
    finally:
        group.ranks[rank].popen.send_signal(signal.SIGCONT)
    assert different(await running, expected[:JOBS_AT_DEATH]) == []
    assert group.status().groups[0].worker_joins > joins
    assert group.ranks[rank].popen.poll() is None
    wait_until(group.is_idle, "every block free")


def losses_told(process: Process) -> int:
    """How often the process has logged that it lost a peer."""
    return len(
        re.findall(r"worker of epoch \d+ lost|no stream to scheduler|no connection to the leader", process.log())
    )
