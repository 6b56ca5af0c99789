"""What scheduler and KV manager tell each other comes back from the wire as it was sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastserve.v1 import kvmanager_pb2 as wire
from services.domain.errors import ProtocolError
from services.domain.ids import PlanNumber
from services.domain.protocol import (
    Ack,
    Arrive,
    ArrivedJob,
    Finished,
    Grown,
    Jobs,
    Order,
    OrderChange,
    PlanEntry,
    Planned,
    Rank,
    Recalled,
    ReclaimRequest,
    Refuse,
    Release,
    Resident,
    SchedulerToKv,
)
from services.domain.server_status import KvLinkItem, PoolStatus
from services.wire.scheduler_kvmanager import (
    kv_batch_from_wire,
    kv_batch_to_wire,
    scheduler_batch_from_wire,
    scheduler_batch_to_wire,
)
from tests.wire.drawn_fields import EPOCH, big_counts, counts, job_ids

plan_numbers = big_counts.map(PlanNumber)
finite = st.floats(allow_nan=False)

arrived_jobs = st.builds(ArrivedJob, job_ids, counts, counts, big_counts)
changes = st.builds(OrderChange, job_ids, st.builds(Rank, counts, finite, big_counts))
change_lists = st.lists(changes, max_size=3).map(tuple)
entries = st.lists(st.builds(PlanEntry, job_ids, counts, counts), max_size=3).map(tuple)
scheduler_messages: st.SearchStrategy[SchedulerToKv] = st.one_of(
    st.builds(
        Jobs,
        st.just(EPOCH),
        st.lists(arrived_jobs, max_size=3).map(tuple),
        change_lists,
        counts,
        st.lists(finite, max_size=3).map(tuple),
        st.none() | finite,
    ),
    st.builds(Arrive, arrived_jobs),
    st.builds(Planned, plan_numbers, entries),
    st.builds(Finished, plan_numbers, st.lists(job_ids, max_size=3).map(tuple)),
    st.builds(Recalled, plan_numbers),
    st.builds(Ack, job_ids),
    st.builds(Refuse, job_ids),
    st.builds(Release, job_ids),
    st.builds(Order, change_lists),
)
job_tuples = st.lists(job_ids, max_size=3).map(tuple)
kv_messages: st.SearchStrategy[KvLinkItem] = st.one_of(
    st.builds(Resident, job_ids, counts, counts, big_counts),
    st.builds(Grown, job_ids, counts, big_counts),
    st.builds(ReclaimRequest, job_ids, st.none() | job_ids, big_counts),
    st.builds(PoolStatus, counts, counts, st.text(max_size=10), job_tuples, job_tuples),
)


@given(counts, st.lists(scheduler_messages, max_size=5).map(tuple))
def test_a_turn_of_the_scheduler_comes_back_as_it_was_sent(group: int, messages: tuple[SchedulerToKv, ...]) -> None:
    data = scheduler_batch_to_wire(group, EPOCH, messages).SerializeToString()
    assert scheduler_batch_from_wire(wire.SchedulerLinkRequest.FromString(data)) == (group, EPOCH, messages)


@given(counts, st.lists(kv_messages, max_size=5).map(tuple))
def test_a_turn_of_the_kv_manager_comes_back_as_it_was_sent(group: int, messages: tuple[KvLinkItem, ...]) -> None:
    data = kv_batch_to_wire(group, EPOCH, messages).SerializeToString()
    assert kv_batch_from_wire(wire.SchedulerLinkResponse.FromString(data)) == (group, EPOCH, messages)


def test_a_message_of_an_unknown_kind_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError):
        scheduler_batch_from_wire(wire.SchedulerLinkRequest(messages=[wire.SchedulerToKv()]))
    with pytest.raises(ProtocolError):
        kv_batch_from_wire(wire.SchedulerLinkResponse(messages=[wire.KvToScheduler()]))
