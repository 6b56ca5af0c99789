"""The tables follow the KV manager's commands, and refuse what can't be right before any memory is touched."""

from collections.abc import Callable, Sequence

import pytest

from services.domain.copying import CopyDirection
from services.domain.errors import ProtocolError
from services.domain.ids import BlockId, CommandNumber, JobId
from services.domain.protocol import Applied, Assign, BlockMove, Done, KvToWorker, Offload, ReleaseBlocks, Upload
from services.worker.kv.copier import BlockRun, Ticket, runs_of
from services.worker.kv.tables import KvTables
from tests.builders.block_moves import block_moves

A, B = JobId("a/0"), JobId("b/0")
BLOCK_SIZE = 4


class FakeCopier:
    """Copies nothing; ends copies when the test says so."""

    class Held:
        def __init__(self, on_end: Callable[[], None]) -> None:
            self.on_end = on_end
            self.over = False

        def ended(self) -> bool:
            return self.over

    def __init__(self) -> None:
        self.held: list[FakeCopier.Held] = []
        self.started: list[tuple[CopyDirection, tuple[BlockMove, ...], Ticket | None]] = []

    def start(
        self, direction: CopyDirection, moves: Sequence[BlockMove], after: Ticket | None, on_end: Callable[[], None]
    ) -> Ticket:
        self.started.append((direction, tuple(moves), after))
        self.held.append(FakeCopier.Held(on_end))
        return self.held[-1]

    def end(self) -> None:
        """Ends the oldest copy."""
        ticket = self.held.pop(0)
        ticket.over = True
        ticket.on_end()

    def wait(self, tickets: object) -> None: ...
    def launched(self) -> None: ...
    def take_stall_s(self) -> float:
        return 0.0

    def drain(self) -> None: ...
    def close(self) -> None: ...


class CheckedTables:
    """Tables of 8 device and 8 host blocks, whose jobs' KV is as valid as the test says."""

    def __init__(self) -> None:
        self.copier = FakeCopier()
        self.done: list[Done] = []
        self.tables = KvTables(self.copier, BLOCK_SIZE, 8, 8, self.done.append)
        self._number = 0

    def apply(self, make: Callable[[CommandNumber], KvToWorker]) -> None:
        self._number += 1
        assert self.tables.apply(make(CommandNumber(self._number))) == Applied(CommandNumber(self._number))

    def assign(self, job_id: JobId, *blocks: int) -> None:
        self.apply(lambda number: Assign(number, job_id, tuple(map(BlockId, blocks))))

    def offload(self, job_id: JobId, pairs: Sequence[tuple[int, int]], valid_tokens: int) -> None:
        self.apply(lambda number: Offload(number, job_id, block_moves(*pairs), valid_tokens))

    def upload(self, job_id: JobId, pairs: Sequence[tuple[int, int]], valid_tokens: int, *more_blocks: int) -> None:
        blocks = tuple(BlockId(block) for block in (*(device for device, _ in pairs), *more_blocks))
        self.apply(lambda number: Upload(number, job_id, blocks, block_moves(*pairs), valid_tokens))

    def release(self, job_id: JobId) -> None:
        self.apply(lambda number: ReleaseBlocks(number, job_id))

    def blocks(self, job_id: JobId) -> list[int] | None:
        (place,) = self.tables.places([job_id])
        return None if place is None else place.blocks

    def set_valid(self, job_id: JobId, tokens: int) -> None:
        (place,) = self.tables.places([job_id])
        assert place is not None
        place.tables.valid_tokens = tokens

    def out(self) -> None:
        """Job A with 6 tokens goes to host blocks 5 and 6."""
        self.assign(A, 0, 1, 2)
        self.set_valid(A, 6)
        self.offload(A, [(0, 5), (1, 6)], 6)


@pytest.fixture
def world() -> CheckedTables:
    return CheckedTables()


@pytest.fixture(autouse=True)
def _checked(world: CheckedTables) -> object:
    yield
    world.tables.check()


def test_assign_appends_to_the_table_of_the_job(world: CheckedTables) -> None:
    world.assign(A, 3, 4)
    world.assign(A, 1)
    assert world.blocks(A) == [3, 4, 1]
    assert world.blocks(B) is None


def test_offload_ends_the_device_table_at_once_and_reports_done_at_the_end(world: CheckedTables) -> None:
    world.out()
    assert world.blocks(A) == []
    assert world.done == []
    world.copier.end()
    assert world.done == [Done(CommandNumber(2))]


def test_a_block_that_no_copy_names_is_free_as_soon_as_the_offload_is_applied(world: CheckedTables) -> None:
    world.out()
    world.assign(B, 2)
    with pytest.raises(ProtocolError, match="in use"):
        world.assign(B, 0)


def test_a_block_in_a_copy_is_free_when_the_copy_has_ended(world: CheckedTables) -> None:
    world.out()
    with pytest.raises(ProtocolError, match="in use"):
        world.assign(B, 1)
    world.copier.end()
    world.assign(B, 1, 0)


def test_a_release_during_an_offload_keeps_its_blocks_of_both_pools_until_the_copy_has_ended(
    world: CheckedTables,
) -> None:
    world.out()
    world.release(A)
    with pytest.raises(ProtocolError, match="in use"):
        world.assign(B, 0)
    world.assign(B, 7)
    world.set_valid(B, 4)
    with pytest.raises(ProtocolError, match="in use"):
        world.offload(B, [(7, 5)], 4)
    world.copier.end()
    assert world.done == [Done(CommandNumber(2))]
    world.assign(B, 0)


def test_a_release_during_an_upload_keeps_its_blocks_of_both_pools_until_the_copy_has_ended(
    world: CheckedTables,
) -> None:
    world.out()
    world.copier.end()
    world.upload(A, [(3, 5), (4, 6)], 6, 7)
    world.release(A)
    world.assign(B, 7)
    with pytest.raises(ProtocolError, match="in use"):
        world.assign(B, 3)
    world.copier.end()
    world.assign(B, 3)


def test_an_upload_brings_a_new_table_and_voids_the_host_copy_at_its_end(world: CheckedTables) -> None:
    world.out()
    world.copier.end()
    world.upload(A, [(3, 5), (4, 6)], 6, 7)
    assert world.blocks(A) == [3, 4, 7]
    world.assign(B, 1)
    world.set_valid(B, 1)
    with pytest.raises(ProtocolError, match="in use"):
        world.offload(B, [(1, 5)], 1)
    world.copier.end()
    world.offload(B, [(1, 5)], 1)


def test_copies_of_a_job_are_started_one_after_the_other(world: CheckedTables) -> None:
    world.out()
    first = world.copier.held[0]
    world.copier.end()
    world.upload(A, [(3, 5), (4, 6)], 6)
    assert world.copier.started[1][2] is first


def test_a_command_without_copies_is_done_when_it_is_applied(world: CheckedTables) -> None:
    world.assign(A, 0)
    world.offload(A, [], 0)
    world.upload(A, [], 0, 1)
    assert world.copier.started == []
    assert world.done == []
    assert world.blocks(A) == [1]


class TestRefused:
    def test_a_second_copy_while_one_is_under_way(self, world: CheckedTables) -> None:
        world.out()
        with pytest.raises(ProtocolError, match="under way"):
            world.upload(A, [(3, 5), (4, 6)], 6)

    def test_a_block_beyond_the_pool(self, world: CheckedTables) -> None:
        with pytest.raises(ProtocolError, match="beyond the pool"):
            world.assign(A, 8)

    def test_a_block_given_twice(self, world: CheckedTables) -> None:
        with pytest.raises(ProtocolError, match="twice"):
            world.assign(A, 1, 1)

    def test_an_offload_of_a_block_of_another_job(self, world: CheckedTables) -> None:
        world.assign(A, 0)
        world.assign(B, 1)
        with pytest.raises(ProtocolError, match="not the job's"):
            world.offload(A, [(1, 0)], 0)

    def test_an_offload_that_leaves_valid_tokens_behind(self, world: CheckedTables) -> None:
        world.assign(A, 0, 1)
        world.set_valid(A, 6)
        with pytest.raises(ProtocolError, match="leaves valid tokens behind"):
            world.offload(A, [(0, 0)], 6)

    def test_an_offload_of_more_tokens_than_were_computed(self, world: CheckedTables) -> None:
        world.assign(A, 0, 1)
        world.set_valid(A, 4)
        with pytest.raises(ProtocolError, match="the worker counts 4"):
            world.offload(A, [(0, 0), (1, 1)], 5)

    def test_an_upload_from_a_block_that_is_not_the_jobs(self, world: CheckedTables) -> None:
        world.out()
        world.copier.end()
        with pytest.raises(ProtocolError, match="not the job's"):
            world.upload(A, [(3, 5), (4, 7)], 6)

    def test_blocks_for_a_job_on_the_host(self, world: CheckedTables) -> None:
        world.out()
        world.copier.end()
        with pytest.raises(ProtocolError, match="on the host"):
            world.assign(A, 3)

    def test_a_copy_for_a_job_without_tables(self, world: CheckedTables) -> None:
        with pytest.raises(ProtocolError, match="no tables"):
            world.offload(A, [], 0)

    def test_and_the_error_tells_the_story_of_the_job(self, world: CheckedTables) -> None:
        world.out()
        world.copier.end()
        with pytest.raises(ProtocolError, match="Assign 1 of 3 blocks, then Offload 2 of 2 blocks with 6 tokens, then"):
            world.assign(A, 3)


def test_neighbours_on_both_sides_travel_as_one_piece() -> None:
    moves = block_moves((4, 9), (2, 1), (3, 2), (5, 10), (6, 12))
    assert runs_of(moves) == [BlockRun(2, 1, 2), BlockRun(4, 9, 2), BlockRun(6, 12, 1)]
