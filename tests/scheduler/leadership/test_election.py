"""Who leads: the rules over one record, and candidates that share an API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from services.domain.errors import SupersededError
from services.runtime.process import cancelled
from services.scheduler.leadership.candidate import Candidate
from services.scheduler.leadership.election import Election, LeaseRecord
from tests.builders.waits import LIMIT_S
from tests.scheduler.leadership.fake_lease_store import FakeApiServerForCandidates, FakeLeaseStore

DURATION_S = 4
HELD = LeaseRecord(holder="a", duration_s=DURATION_S, transitions=6, renewed="t0", version="11", acquired="t")


def election(name: str = "b") -> Election:
    return Election(name, DURATION_S)


def test_the_first_candidate_creates_the_record_and_leads_in_term_1() -> None:
    first = election()
    wanted = first.read(None, 0.0)
    assert wanted == LeaseRecord("b", DURATION_S, 0)
    assert first.term is None
    first.wrote(wanted)
    assert first.term == 1


def test_a_record_that_is_renewed_is_left_alone_however_old_its_times_are() -> None:
    waiting = election()
    for second in range(100):
        assert waiting.read(replace(HELD, renewed=f"in 1970, {second}"), float(second)) is None
    assert waiting.term is None


def test_a_record_that_has_not_changed_for_its_duration_is_taken_in_the_next_term() -> None:
    waiting = election()
    assert waiting.read(HELD, 100.0) is None
    assert waiting.read(HELD, 100.0 + DURATION_S) is None
    taken = waiting.read(HELD, 100.1 + DURATION_S)
    assert taken == replace(HELD, holder="b", transitions=7, acquired=None)
    waiting.wrote(taken)
    assert waiting.term == 8


def test_the_duration_counts_from_when_this_candidate_first_saw_the_record() -> None:
    late = election()
    assert late.read(HELD, 1_000_000.0) is None


def test_a_record_that_was_given_back_is_taken_at_once() -> None:
    holder, waiting = election("a"), election()
    holder.wrote(HELD)
    freed = holder.given_back(HELD)
    assert freed is not None
    assert (freed.holder, holder.term) == ("", None)
    taken = waiting.read(freed, 0.0)
    assert taken is not None
    assert taken.term == HELD.term + 1


def test_time_in_which_the_record_could_not_be_read_does_not_count() -> None:
    waiting = election()
    waiting.read(HELD, 0.0)
    waiting.lost_sight()
    assert waiting.read(HELD, 60.0) is None
    assert waiting.read(HELD, 60.0 + DURATION_S) is None
    assert waiting.read(HELD, 60.1 + DURATION_S) is not None


def test_another_ones_record_is_not_given_back() -> None:
    assert election().given_back(HELD) is None


def test_the_holder_renews_in_the_same_term() -> None:
    holder = election("a")
    assert holder.read(HELD, 0.0) == HELD
    assert holder.term == HELD.term


def test_a_write_whose_answer_was_lost_is_found_out_by_the_next_look() -> None:
    candidate = election()
    wanted = candidate.read(None, 0.0)
    assert wanted is not None
    assert candidate.term is None
    candidate.read(replace(wanted, version="1"), 1.0)
    assert candidate.term == 1


def test_terms_never_go_back_when_somebody_deletes_the_record() -> None:
    holder, waiting = election("a"), election()
    holder.wrote(HELD)
    waiting.read(HELD, 0.0)
    again = holder.read(None, 1.0)
    assert again is not None
    assert (again.term, holder.term) == (HELD.term, HELD.term)
    another = waiting.read(None, 1.0)
    assert another is not None
    assert another.term == HELD.term + 1


def test_who_reads_another_name_does_not_lead_any_more() -> None:
    holder = election("a")
    holder.wrote(HELD)
    assert holder.read(replace(HELD, holder="c", transitions=7, version="12"), 50.0) is None
    assert holder.term is None


# --- candidates ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def candidate(
    server: FakeApiServerForCandidates, name: str
) -> AsyncIterator[tuple[Candidate, asyncio.Task[None]]]:
    """One that looks every few milliseconds, until the end of the block."""
    one = Candidate(FakeLeaseStore(server, name), Election(name, 1), retry_s=0.005)
    running = asyncio.create_task(one.run())
    try:
        yield one, running
    finally:
        await cancelled(running)


async def term_of(one: Candidate) -> int:
    return await asyncio.wait_for(one.won(), LIMIT_S)


async def test_one_of_two_leads_and_only_it_is_published() -> None:
    server = FakeApiServerForCandidates()
    async with candidate(server, "a") as (a, _), candidate(server, "b") as (b, _):
        first = await asyncio.wait_for(
            asyncio.wait({asyncio.create_task(a.won()), asyncio.create_task(b.won())}, return_when="FIRST_COMPLETED"),
            LIMIT_S,
        )
        assert [task.result() for task in first[0]] == [1]
        assert server.lease is not None
        assert server.published == [server.lease.holder]


async def test_a_leader_that_gives_the_lease_back_is_followed_at_once_in_the_next_term() -> None:
    server = FakeApiServerForCandidates()
    async with candidate(server, "a") as (a, running):
        assert await term_of(a) == 1
        async with candidate(server, "b") as (b, _):
            await cancelled(running)
            await a.give_back()
            assert await term_of(b) == 2
    assert server.published == ["a", "b"]


async def test_a_leader_that_was_killed_is_followed_once_its_lease_is_over() -> None:
    server = FakeApiServerForCandidates()
    async with candidate(server, "a") as (a, running):
        await term_of(a)
        await cancelled(running)
        async with candidate(server, "b") as (b, _):
            assert await term_of(b) == 2


async def test_without_the_api_server_the_leader_leads_on_and_nobody_else_begins() -> None:
    server = FakeApiServerForCandidates()
    async with candidate(server, "a") as (a, running):
        await term_of(a)
        server.away = True
        async with candidate(server, "b") as (b, _):
            # Longer than the Lease of one second.
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(b.won(), 1.2)
            assert not running.done()
            # Back again, the leader renews before the other's wait is over.
            server.away = False
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(b.won(), 0.3)
            assert not running.done()
            assert await term_of(a) == 1


async def test_a_leader_that_was_paused_ends_when_it_wakes_and_reads_another_name() -> None:
    server = FakeApiServerForCandidates()
    async with candidate(server, "a") as (a, running):
        await term_of(a)
        assert server.lease is not None
        # Another took the Lease while this one slept.
        server.lease = replace(server.lease, holder="b", transitions=1, version="99")
        with pytest.raises(SupersededError, match="another scheduler holds the Lease"):
            await asyncio.wait_for(running, LIMIT_S)
