"""The wire of the KV manager with scheduler and worker loses nothing and says which batch is broken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastserve.v1 import kvmanager_pb2 as wire
from services.domain.errors import ProtocolError
from services.domain.ids import BlockId, CommandNumber, Epoch, JobId, PlanNumber
from services.domain.protocol import (
    Ack,
    Applied,
    Arrive,
    ArrivedJob,
    Assign,
    BlockMove,
    Done,
    Finished,
    Grown,
    Jobs,
    KvToWorker,
    Offload,
    Order,
    OrderChange,
    PlanEntry,
    Planned,
    Rank,
    ReclaimRequest,
    Refuse,
    Release,
    ReleaseBlocks,
    Resident,
    SchedulerToKv,
    Upload,
    WorkerPools,
)
from services.domain.server_status import KvLinkItem, PoolStatus
from services.domain.worker_facts import KvWorkerFacts
from services.wire import kvmanager_worker, scheduler_kvmanager

EPOCH = Epoch(2**63)
counts = st.integers(0, 2**32 - 1)
big_counts = st.integers(0, 2**64 - 1)
job_ids = st.text(max_size=12).map(JobId)
plan_numbers = big_counts.map(PlanNumber)
finite = st.floats(allow_nan=False)

arrived_jobs = st.builds(ArrivedJob, job_ids, counts, counts)
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
    st.builds(Ack, job_ids),
    st.builds(Refuse, job_ids),
    st.builds(Release, job_ids),
    st.builds(Order, change_lists),
)
job_tuples = st.lists(job_ids, max_size=3).map(tuple)
kv_messages: st.SearchStrategy[KvLinkItem] = st.one_of(
    st.builds(Resident, job_ids, counts, counts),
    st.builds(Grown, job_ids, counts),
    st.builds(ReclaimRequest, job_ids, st.none() | job_ids),
    st.builds(PoolStatus, counts, counts, st.text(max_size=10), job_tuples, job_tuples),
)
blocks = st.lists(counts.map(BlockId), max_size=4).map(tuple)
moves = st.lists(st.builds(BlockMove, counts, counts.map(BlockId), counts.map(BlockId)), max_size=4).map(tuple)
numbers = big_counts.map(CommandNumber)
commands: st.SearchStrategy[KvToWorker] = st.one_of(
    st.builds(Assign, numbers, job_ids, blocks),
    st.builds(Offload, numbers, job_ids, moves, counts),
    st.builds(Upload, numbers, job_ids, blocks, moves, counts),
    st.builds(ReleaseBlocks, numbers, job_ids),
)


@given(st.lists(scheduler_messages, max_size=5).map(tuple))
def test_a_turn_of_the_scheduler_comes_back_as_it_was_sent(messages: tuple[SchedulerToKv, ...]) -> None:
    data = scheduler_kvmanager.scheduler_batch_to_wire(EPOCH, messages).SerializeToString()
    assert scheduler_kvmanager.scheduler_batch_from_wire(wire.SchedulerLinkRequest.FromString(data)) == (
        EPOCH,
        messages,
    )


@given(st.lists(kv_messages, max_size=5).map(tuple))
def test_a_turn_of_the_kv_manager_comes_back_as_it_was_sent(messages: tuple[KvLinkItem, ...]) -> None:
    data = scheduler_kvmanager.kv_batch_to_wire(EPOCH, messages).SerializeToString()
    assert scheduler_kvmanager.kv_batch_from_wire(wire.SchedulerLinkResponse.FromString(data)) == (EPOCH, messages)


@given(st.lists(commands, max_size=5).map(tuple))
def test_commands_to_a_worker_come_back_as_they_were_sent(turn: tuple[KvToWorker, ...]) -> None:
    data = kvmanager_worker.commands_to_wire(EPOCH, turn).SerializeToString()
    assert kvmanager_worker.commands_from_wire(wire.KvManagerServiceWorkerLinkResponse.FromString(data)) == (
        EPOCH,
        turn,
    )


@given(st.integers(0, 7), st.lists(st.tuples(st.sampled_from([Applied, Done]), numbers), max_size=5))
def test_acknowledgements_come_back_under_the_stage_of_their_stream(
    stage: int, pairs: list[tuple[type[Applied] | type[Done], CommandNumber]]
) -> None:
    values = tuple(kind(number, stage) for kind, number in pairs)
    data = kvmanager_worker.acknowledgements_to_wire(EPOCH, values).SerializeToString()
    message = wire.KvManagerServiceWorkerLinkRequest.FromString(data)
    assert kvmanager_worker.acknowledgements_from_wire(message, stage) == (EPOCH, values)


@given(st.builds(WorkerPools, st.integers(1, 2**64 - 1).map(Epoch), counts, counts, counts, counts, counts), big_counts)
def test_the_pools_of_a_worker_come_back_as_they_were_sent(pools: WorkerPools, block_bytes: int) -> None:
    facts = KvWorkerFacts(0, pools, block_bytes)
    data = kvmanager_worker.kv_hello_to_wire(facts).SerializeToString()
    assert kvmanager_worker.kv_hello_from_wire(wire.KvManagerServiceWorkerLinkRequest.FromString(data)) == facts


def test_a_message_of_no_known_kind_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError):
        scheduler_kvmanager.scheduler_batch_from_wire(wire.SchedulerLinkRequest(messages=[wire.SchedulerToKv()]))
    with pytest.raises(ProtocolError):
        scheduler_kvmanager.kv_batch_from_wire(wire.SchedulerLinkResponse(messages=[wire.KvToScheduler()]))
    with pytest.raises(ProtocolError, match="command 7 for job a/0"):
        kvmanager_worker.commands_from_wire(
            wire.KvManagerServiceWorkerLinkResponse(commands=[wire.KvCommand(command_number=7, job_id="a/0")])
        )
    with pytest.raises(ProtocolError, match="command 9"):
        kvmanager_worker.acknowledgements_from_wire(
            wire.KvManagerServiceWorkerLinkRequest(acknowledgements=[wire.KvAcknowledgement(command_number=9)]), 0
        )


@pytest.mark.parametrize(
    "message",
    [
        wire.KvManagerServiceWorkerLinkRequest(epoch=1),
        wire.KvManagerServiceWorkerLinkRequest(hello=wire.KvWorkerHello(block_size=16)),
    ],
)
def test_a_stream_of_a_worker_begins_with_a_hello_that_names_an_epoch(
    message: wire.KvManagerServiceWorkerLinkRequest,
) -> None:
    with pytest.raises(ProtocolError):
        kvmanager_worker.kv_hello_from_wire(message)
