"""The parts of the shell without I/O: the job book, the outboxes, conversions."""

from array import array

import pytest

from services.domain.errors import (
    NotReadyError,
)
from services.domain.ids import JobId
from services.domain.protocol import PlanEntry
from services.domain.sampling import JobSampling
from services.domain.work import (
    FinishReason,
    JobTimings,
    JobUpdate,
    Submission,
    WorkerCounters,
)
from services.scheduler import book as books
from services.scheduler import peers
from services.scheduler.book import Entry, JobBook
from services.scheduler.peers import GatewayPeer
from services.scheduler.report import WorkerLives

A = JobId("a")
TIMINGS = JobTimings(0.5, 0.25, 2.0, 3)


def submission(job: str = "a", prompt: int = 10, logprobs: int | None = None) -> Submission:
    return Submission(JobId(job), b"digest", array("I", range(prompt)), JobSampling(8, 1, logprobs=logprobs))


def followed(book: JobBook, job: str = "a", tokens: int = 0, gateway_id: str = "g") -> Entry:
    """A job in the book that a gateway follows from its first token."""
    entry = book.open(submission(job))
    entry.followers[gateway_id] = 0
    for number in range(tokens):
        book.append(entry, number, 100 + number, None)
    return entry


# --- the book --------------------------------------------------------------------------------------------------------


def test_a_prefill_after_a_crash_brings_prompt_and_output() -> None:
    book = JobBook()
    followed(book, tokens=3)
    work = book.work(PlanEntry(A, 0, 13), None)
    assert list(work.token_ids) == [*range(10), 100, 101, 102]
    assert work.spec is not None
    assert (work.spec.prompt_tokens, work.spec.known_tokens) == (10, 13)


def test_a_chunk_brings_its_own_tokens_and_the_job_only_with_the_first() -> None:
    book = JobBook()
    followed(book, tokens=3)
    one, two, three = (book.work(PlanEntry(A, *span), None) for span in ((0, 8), (8, 12), (12, 13)))
    assert [list(work.token_ids) for work in (one, two, three)] == [[*range(8)], [8, 9, 100, 101], [102]]
    assert [work.spec is None for work in (one, two, three)] == [False, True, True]


def test_a_decode_brings_no_tokens_because_the_worker_has_them() -> None:
    book = JobBook()
    entry = followed(book)
    book.work(PlanEntry(A, 0, 10), None)
    book.append(entry, 0, 100, None)
    assert list(book.work(PlanEntry(A, 10, 11), None).token_ids) == []


def test_a_limit_of_a_prefill_is_passed_on() -> None:
    book = JobBook()
    followed(book)
    assert book.work(PlanEntry(A, 0, 10), 0.5).cut_after_s == 0.5


def test_an_ended_job_is_forgotten_after_a_minute_and_a_lost_ones_is_due_after_half_of_it() -> None:
    book = JobBook()
    book.end(followed(book, "a"), FinishReason.STOP, TIMINGS, 100.0)
    lost = followed(book, "b")
    assert book.unfollow(lost, "g")
    book.orphan(lost, 100.0)
    assert book.due_s() == 130.0
    assert book.expire(129.9) == []
    assert book.expire(130.0) == [lost]
    assert book.due_s() == 160.0
    book.expire(160.0)
    assert book.get(A) is None


def test_an_orphan_that_is_followed_again_is_not_due() -> None:
    book = JobBook()
    entry = followed(book)
    book.unfollow(entry, "g")
    book.orphan(entry, 0.0)
    entry.followers["h"] = 0
    assert book.expire(30.0) == []
    assert book.unfollow(entry, "h")
    book.orphan(entry, 40.0)
    assert book.expire(69.0) == []
    assert book.expire(70.0) == [entry]


def test_ended_jobs_are_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MOST_ENDED", 2)
    book = JobBook()
    forgotten = [book.end(followed(book, name), FinishReason.STOP, TIMINGS, 0.0) for name in "abc"]
    assert [[entry.job for entry in entries] for entries in forgotten] == [[], [], ["a"]]
    assert len(book) == 2


def test_remembered_output_is_bounded_by_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MOST_ENDED_BYTES", 100)
    book = JobBook()
    forgotten = [book.end(followed(book, name, tokens=12), FinishReason.STOP, TIMINGS, 0.0) for name in "abc"]
    assert [[entry.job for entry in entries] for entries in forgotten] == [[], [], ["a"]]
    book.expire(1000.0)
    assert not book.end(followed(book, "d", tokens=24), FinishReason.STOP, TIMINGS, 1000.0)


# --- outboxes --------------------------------------------------------------------------------------------------------


def test_a_slow_gateway_gets_everything_at_once_and_nothing_was_queued_for_it() -> None:
    book, peer = JobBook(), GatewayPeer("g")
    entry = followed(book)
    for number in range(500):
        book.append(entry, number, number, None)
        peer.tell_news(A)
    (update,) = peer.take_updates(book)
    assert (update.first_token_number, list(update.token_ids)) == (0, list(range(500)))
    assert peer.take_updates(book) == []


def test_the_end_comes_with_the_last_tokens_and_the_gateway_ceases_to_follow() -> None:
    book, peer = JobBook(), GatewayPeer("g")
    entry = followed(book, tokens=2)
    book.end(entry, FinishReason.LENGTH, TIMINGS, 0.0)
    peer.tell_news(A)
    assert [tuple(update) for update in peer.take_updates(book)] == [
        (A, 0, array("I", [100, 101]), (), FinishReason.LENGTH, None, TIMINGS)
    ]
    assert entry.followers == {}


def test_long_outputs_are_told_in_pieces_that_fit_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MOST_TOKENS_IN_UPDATE", 10)
    monkeypatch.setattr(peers, "MOST_TOKENS_IN_MESSAGE", 30)
    book, peer = JobBook(), GatewayPeer("g")
    for name in "abc":
        book.end(followed(book, name, tokens=25), FinishReason.LENGTH, TIMINGS, 0.0)
        peer.tell_news(JobId(name))
    received: dict[str, list[int]] = {name: [] for name in "abc"}
    finished: list[str] = []
    for _ in range(12):
        updates = peer.take_updates(book)
        assert sum(len(update.token_ids) for update in updates) <= 40
        for update in updates:
            assert update.first_token_number == len(received[update.job])
            received[update.job] += update.token_ids
            finished += [update.job] if update.finish else []
    assert received == {name: list(range(100, 125)) for name in "abc"}
    assert sorted(finished) == ["a", "b", "c"]


async def test_a_gateway_that_reads_no_last_words_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MOST_LAST_WORDS", 3)
    peer = GatewayPeer("g")
    for number in range(4):
        peer.tell_last_word(JobUpdate(JobId(str(number)), 0, (), (), FinishReason.ABORT))
    with pytest.raises(NotReadyError):
        await peer.wait()


def test_the_counters_of_a_workers_lives_add_up() -> None:
    lives = WorkerLives()
    for busy_s in (1.0, 2.0):
        lives.born()
        lives.counted(WorkerCounters(busy_s=busy_s / 2, offloaded_bytes=5))
        lives.counted(WorkerCounters(busy_s=busy_s, offloaded_bytes=10))
    assert lives.total() == WorkerCounters(busy_s=3.0, offloaded_bytes=20)
