"""The server's status comes back from the wire as the scheduler said it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastserve.v1 import admin_pb2
from services.domain.errors import InvalidFieldError
from services.domain.server_status import (
    ITERATION_TOKEN_BOUNDS,
    MOST_LISTED_JOBS,
    GroupStatus,
    IterationTokens,
    JobPhase,
    JobStatus,
    KvSite,
    LevelStatus,
    PoolUsage,
    ServerCounters,
    ServerStatus,
)
from services.wire.operator_scheduler import (
    DEFAULT_INTERVAL_S,
    interval_from_wire,
    max_jobs_from_wire,
    status_from_wire,
    status_to_wire,
)
from tests.wire.drawn_fields import counts

seconds = st.floats(0.0, 1e9)
names = st.text(max_size=12)
jobs = st.integers(0, 2**20)
levels = st.builds(LevelStatus, counts, seconds, jobs, jobs, jobs)
counters = st.builds(
    ServerCounters, **{name: seconds if name.endswith("_s") else counts for name in ServerCounters.__slots__}
)
groups = st.builds(
    GroupStatus,
    counts,
    st.booleans(),
    st.lists(levels, max_size=3).map(tuple),
    st.builds(PoolUsage, counts, counts, counts, counts),
    counts,
    names,
    counts,
    counts,
    counters,
)
histograms = st.builds(
    IterationTokens,
    st.just(tuple(float(bound) for bound in ITERATION_TOKEN_BOUNDS)),
    st.lists(counts, min_size=14, max_size=14).map(tuple),
    counts,
)
listed = st.builds(JobStatus, names, jobs, jobs, st.sampled_from(JobPhase), st.sampled_from(KvSite), jobs, jobs)
statuses = st.builds(
    ServerStatus,
    names,
    names,
    names,
    st.lists(groups, max_size=2).map(tuple),
    counters,
    seconds,
    counts,
    st.integers(1, 2**31).map(lambda count: {"full": count}) | st.just({}),
    histograms,
    st.lists(listed, max_size=3).map(tuple),
)


@given(statuses)
def test_a_status_comes_back_as_it_was_sent(status: ServerStatus) -> None:
    assert status_from_wire(admin_pb2.Status.FromString(status_to_wire(status).SerializeToString())) == status


def test_jobs_are_counted_for_each_group_and_for_clients_that_do_not_add_up_levels() -> None:
    levels = (LevelStatus(0, 0.1, 1, 2, 3), LevelStatus(1, 0.2, 10, 20, 30))
    group = GroupStatus(0, True, levels, PoolUsage(8, 2, 10, 10), 16, "cpu", 1, 16)
    message = status_to_wire(ServerStatus("m", "p", "k", (group,), ServerCounters(), 0.0, 1)).groups[0]
    assert (message.running, message.waiting, message.swapped_out) == (11, 22, 33)
    assert group.jobs == 66


def test_rejections_for_other_reasons_than_a_full_queue_stay_with_the_scheduler() -> None:
    status = ServerStatus("m", "p", "k", (), ServerCounters(), 0.0, 1, {"full": 3, "invalid": 4})
    assert status_from_wire(status_to_wire(status)).rejections == {"full": 3}


@pytest.mark.parametrize("interval_s", [0.01, 61.0, float("nan")])
def test_an_interval_out_of_its_limits_names_the_field(interval_s: float) -> None:
    with pytest.raises(InvalidFieldError, match=r"interval_s: must be between 0\.05 and 60 seconds"):
        interval_from_wire(admin_pb2.WatchStatusRequest(interval_s=interval_s))


def test_jobs_are_listed_when_asked_for_and_only_so_many() -> None:
    assert max_jobs_from_wire(admin_pb2.GetStatusRequest()) == 0
    assert max_jobs_from_wire(admin_pb2.WatchStatusRequest(max_jobs=MOST_LISTED_JOBS)) == 1000
    with pytest.raises(InvalidFieldError, match=r"max_jobs: must be at most 1,000, but is 1,001"):
        max_jobs_from_wire(admin_pb2.GetStatusRequest(max_jobs=MOST_LISTED_JOBS + 1))


def test_without_an_interval_a_status_comes_every_second() -> None:
    assert interval_from_wire(admin_pb2.WatchStatusRequest()) == DEFAULT_INTERVAL_S == 1.0
