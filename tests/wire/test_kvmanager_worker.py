"""What KV manager and worker tell each other comes back from the wire as it was sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastserve.v1 import kvmanager_pb2 as wire
from services.domain.errors import ProtocolError
from services.domain.ids import BlockId, CommandNumber, Epoch
from services.domain.protocol import (
    Applied,
    Assign,
    BlockMove,
    Done,
    KvToWorker,
    Offload,
    ReleaseBlocks,
    Upload,
    WorkerPools,
)
from services.domain.worker_facts import KvWorkerFacts
from services.wire.kvmanager_worker import (
    acknowledgements_from_wire,
    acknowledgements_to_wire,
    commands_from_wire,
    commands_to_wire,
    kv_hello_from_wire,
    kv_hello_to_wire,
)
from tests.wire.drawn_fields import EPOCH, big_counts, counts, job_ids

blocks = st.lists(counts.map(BlockId), max_size=4).map(tuple)
moves = st.lists(st.builds(BlockMove, counts, counts.map(BlockId), counts.map(BlockId)), max_size=4).map(tuple)
numbers = big_counts.map(CommandNumber)
commands: st.SearchStrategy[KvToWorker] = st.one_of(
    st.builds(Assign, numbers, job_ids, blocks),
    st.builds(Offload, numbers, job_ids, moves, counts),
    st.builds(Upload, numbers, job_ids, blocks, moves, counts),
    st.builds(ReleaseBlocks, numbers, job_ids),
)


@given(st.lists(commands, max_size=5).map(tuple))
def test_commands_to_a_worker_come_back_as_they_were_sent(turn: tuple[KvToWorker, ...]) -> None:
    data = commands_to_wire(EPOCH, turn).SerializeToString()
    assert commands_from_wire(wire.KvManagerServiceWorkerLinkResponse.FromString(data)) == (
        EPOCH,
        turn,
    )


@given(st.lists(st.one_of(st.builds(Applied, numbers), st.builds(Done, numbers)), max_size=5).map(tuple))
def test_acknowledgements_come_back_as_they_were_sent(values: tuple[Applied | Done, ...]) -> None:
    data = acknowledgements_to_wire(EPOCH, values).SerializeToString()
    message = wire.KvManagerServiceWorkerLinkRequest.FromString(data)
    assert acknowledgements_from_wire(message) == (EPOCH, values)


@given(st.builds(WorkerPools, st.integers(1, 2**64 - 1).map(Epoch), counts, counts, counts), big_counts)
def test_the_pools_of_a_worker_come_back_as_they_were_sent(pools: WorkerPools, block_bytes: int) -> None:
    facts = KvWorkerFacts(0, pools, block_bytes)
    data = kv_hello_to_wire(facts).SerializeToString()
    assert kv_hello_from_wire(wire.KvManagerServiceWorkerLinkRequest.FromString(data)) == facts


def test_a_command_or_an_acknowledgement_of_an_unknown_kind_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="command 7 for job a/0"):
        commands_from_wire(
            wire.KvManagerServiceWorkerLinkResponse(commands=[wire.KvCommand(command_number=7, job_id="a/0")])
        )
    with pytest.raises(ProtocolError, match="command 9"):
        acknowledgements_from_wire(
            wire.KvManagerServiceWorkerLinkRequest(acknowledgements=[wire.KvAcknowledgement(command_number=9)])
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
        kv_hello_from_wire(message)
