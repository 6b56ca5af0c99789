"""The benchmark of groups that come and go: its traffic, the rule on queue length, and what the picture shows."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.foreknowledge import MAX_BATCH
from benchmarks.scaling import BURST_S, PERIOD_S, QUIET_LOAD, QUIET_S, arrivals_s, by_queue
from benchmarks.scaling_picture import groups_over_time


def groups_with(*jobs: int) -> Any:
    """As many jobs in each group."""
    return {number: SimpleNamespace(scheduler=SimpleNamespace(jobs=range(count))) for number, count in enumerate(jobs)}


def test_every_period_ends_with_a_burst() -> None:
    times_s = arrivals_s(20.0, (2.0, 3.0), Random(1))
    for period, load in enumerate((2.0, 3.0)):
        burst_s = (period + 1) * PERIOD_S - BURST_S
        in_burst = sum(burst_s <= at_s < burst_s + BURST_S for at_s in times_s)
        before = sum(burst_s - BURST_S <= at_s < burst_s for at_s in times_s)
        assert in_burst == pytest.approx(20.0 * load * BURST_S, rel=0.1)
        assert before == pytest.approx(20.0 * QUIET_LOAD * BURST_S, rel=0.2)


def test_a_group_is_wanted_for_so_many_jobs_beyond_the_batches_and_held_for_the_quiet_time() -> None:
    wanted = by_queue(16)
    assert wanted(groups_with(MAX_BATCH), 0.0) == 1
    assert wanted(groups_with(MAX_BATCH + 33, 10), 1.0) == 3
    assert wanted(groups_with(10_000), 2.0) == 4
    assert wanted(groups_with(0), 2.0 + QUIET_S) == 4
    assert wanted(groups_with(0), 2.5 + QUIET_S) == 1


def test_the_picture_counts_the_pods_that_there_are() -> None:
    assert groups_over_time([[0, 0.0, 10.0], [1, 2.0, 5.0], [1, 7.0, 10.0]]) == (
        [0.0, 2.0, 5.0, 7.0, 10.0, 10.0],
        [1, 2, 1, 2, 1, 0],
    )
