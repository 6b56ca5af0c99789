"""The parts of the shell without I/O: the job book, its gateways, the outboxes, conversions."""

import asyncio
from array import array
from dataclasses import replace

import pytest

from services.domain.errors import (
    NotReadyError,
)
from services.domain.generation import EndReason, TokenLogprob
from services.domain.ids import JobId, PlanNumber
from services.domain.iteration import WorkerCounters
from services.domain.job_sampling import JobSampling
from services.domain.prompt_logprobs import PromptLogprobs, ScoredPrompt
from services.domain.protocol import PlanEntry
from services.domain.submission import JobTimings, JobUpdate, ServingLimits, Submission
from services.scheduler import job_store as books
from services.scheduler import outgoing_streams as peers
from services.scheduler.gateways import Gateways, NewJob
from services.scheduler.job_store import JobStore, StoredJob
from services.scheduler.machine.scheduler_events import Emit, End, Submit
from services.scheduler.outgoing_streams import GatewayStream
from services.scheduler.scheduler_inbox import Cancelled, Submitted
from services.scheduler.worker_group import CountersOverEpochs

LIMIT_S = 60.0
A = JobId("a")
TIMINGS = JobTimings(0.5, 0.25, 2.0, 3)


def submission(job: str = "a", prompt: int = 10, logprobs: int | None = None) -> Submission:
    return Submission(JobId(job), b"digest", array("I", range(prompt)), JobSampling(8, 1, logprobs=logprobs))


def scores(first_token: int, tokens: int) -> PromptLogprobs:
    return PromptLogprobs(first_token, array("f", range(first_token, first_token + tokens)), array("I"), array("f"))


def followed(book: JobStore, job: str = "a", tokens: int = 0, gateway_id: str = "g") -> StoredJob:
    """A job in the book that a gateway follows from its first token."""
    entry = book.open(submission(job))
    entry.followers[gateway_id] = 0
    for number in range(tokens):
        book.append(entry, number, 100 + number, None)
    return entry


# --- the book --------------------------------------------------------------------------------------------------------


def test_a_prefill_after_a_crash_brings_prompt_and_output() -> None:
    book = JobStore()
    followed(book, tokens=3)
    work = book.work(PlanEntry(A, 0, 13), None)
    assert list(work.token_ids) == [*range(10), 100, 101, 102]
    assert work.spec is not None
    assert (work.spec.prompt_tokens, work.spec.known_tokens) == (10, 13)


def test_a_chunk_brings_its_own_tokens_and_the_job_only_with_the_first() -> None:
    book = JobStore()
    followed(book, tokens=3)
    one, two, three = (book.work(PlanEntry(A, *span), None) for span in ((0, 8), (8, 12), (12, 13)))
    assert [list(work.token_ids) for work in (one, two, three)] == [[*range(8)], [8, 9, 100, 101], [102]]
    assert [work.spec is None for work in (one, two, three)] == [False, True, True]


def test_a_decode_brings_no_tokens_because_the_worker_has_them() -> None:
    book = JobStore()
    entry = followed(book)
    book.work(PlanEntry(A, 0, 10), None)
    book.append(entry, 0, 100, None)
    assert list(book.work(PlanEntry(A, 10, 11), None).token_ids) == []


def test_a_limit_of_a_prefill_is_passed_on() -> None:
    book = JobStore()
    followed(book)
    assert book.work(PlanEntry(A, 0, 10), 0.5).cut_after_s == 0.5


def scored(book: JobStore) -> StoredJob:
    """A job whose prompt's log probabilities are wanted, followed by a gateway."""
    one = submission()
    entry = book.open(replace(one, sampling=replace(one.sampling, prompt_logprobs=0)))
    entry.followers["g"] = 0
    return entry


def test_a_chunk_of_a_scored_prompt_brings_the_token_after_it_until_all_are_known() -> None:
    book = JobStore()
    entry = scored(book)
    chunks = [book.work(PlanEntry(A, *span), None) for span in ((0, 4), (4, 10))]
    assert [work.next_token_id for work in chunks] == [4, None]
    assert chunks[0].spec is not None
    assert chunks[0].spec.sampling == entry.sampling
    for part in (scores(1, 4), scores(3, 4), scores(7, 3)):
        book.score(ScoredPrompt(A, part))
    again = book.work(PlanEntry(A, 0, 4), None)
    assert again.next_token_id is None
    assert again.spec is not None
    assert again.spec.sampling == replace(entry.sampling, prompt_logprobs=None)


def test_log_probabilities_of_a_prompt_are_sent_first_and_again_to_who_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MOST_TOKENS_IN_UPDATE", 6)
    book = JobStore()
    entry = scored(book)
    book.score(ScoredPrompt(A, scores(1, 9)))
    book.append(entry, 0, 100, None)
    told = [book.update(entry, "g") for _ in range(3)]
    assert [update and update.prompt_logprobs for update, _ in told] == [scores(1, 6), scores(7, 3), None]
    assert [list(update.token_ids) if update else [] for update, _ in told] == [[], [], [100]]
    assert [has_more for _, has_more in told] == [True, True, False]
    book.unfollow(entry, "g")
    entry.followers["g"] = 1
    update, has_more = book.update(entry, "g")
    assert update is not None
    assert (update.prompt_logprobs, has_more) == (scores(1, 6), True)


def test_log_probabilities_that_nobody_wants_or_that_leave_a_gap_are_dropped() -> None:
    book = JobStore()
    followed(book, "b")
    entry = scored(book)
    assert book.score(ScoredPrompt(JobId("b"), scores(1, 1))) is None
    assert book.score(ScoredPrompt(JobId("c"), scores(1, 1))) is None
    assert book.score(ScoredPrompt(A, scores(2, 1))) is entry
    assert entry.scores is not None
    assert entry.scores.end == 1


def test_an_ended_job_is_forgotten_after_a_minute_and_a_lost_ones_is_due_after_half_of_it() -> None:
    book = JobStore()
    book.end(followed(book, "a"), EndReason.STOP, TIMINGS, 100.0)
    lost = followed(book, "b")
    assert book.unfollow(lost, "g")
    book.orphan(lost, 100.0)
    assert book.due_s() == 130.0
    assert book.orphans_due(129.9) == []
    assert book.orphans_due(130.0) == [lost]
    assert book.due_s() == 160.0
    book.forget_ended(159.9)
    assert book.get(A) is not None
    book.forget_ended(160.0)
    assert book.get(A) is None


def test_an_orphan_that_is_followed_again_is_not_due() -> None:
    book = JobStore()
    entry = followed(book)
    book.unfollow(entry, "g")
    book.orphan(entry, 0.0)
    entry.followers["h"] = 0
    assert book.orphans_due(30.0) == []
    assert book.unfollow(entry, "h")
    book.orphan(entry, 40.0)
    assert book.orphans_due(69.0) == []
    assert book.orphans_due(70.0) == [entry]


def ended(book: JobStore, job: str, now_s: float, tokens: int = 0, is_read: bool = True) -> StoredJob:
    """A job that ended; its gateway has received all of its output, or none."""
    entry = followed(book, job, tokens)
    book.end(entry, EndReason.STOP, TIMINGS, now_s)
    if is_read:
        book.update(entry, "g")
    return entry


def known(book: JobStore, names: str) -> str:
    """The jobs among these that the book knows."""
    return "".join(name for name in names if book.get(JobId(name)) is not None)


def test_ended_jobs_are_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MOST_ENDED", 2)
    book = JobStore()
    for name in "abc":
        ended(book, name, 0.0)
    assert book.forget_ended(0.0) == []
    assert known(book, "abc") == "bc"


def test_remembered_output_is_bounded_by_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MOST_ENDED_BYTES", 100)
    book = JobStore()
    for name in "abc":
        ended(book, name, 0.0, tokens=12)
    book.forget_ended(0.0)
    assert known(book, "abc") == "bc"
    book.forget_ended(1000.0)
    ended(book, "d", 1000.0, tokens=24)
    book.forget_ended(1000.0)
    assert known(book, "abcd") == "d"


def test_too_much_that_is_not_read_yet_stays_until_its_gateway_had_time_to_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(books, "MOST_ENDED", 1)
    book = JobStore()
    slow = ended(book, "a", 0.0, is_read=False)
    for name in "bc":
        ended(book, name, 0.0)
    assert book.forget_ended(9.9) == []
    assert known(book, "abc") == "a"
    ended(book, "d", 9.9)
    assert book.forget_ended(10.0) == [slow]
    assert known(book, "abcd") == "d"


def test_an_end_that_nobody_read_for_as_long_as_it_is_kept_is_told_when_it_is_forgotten() -> None:
    book = JobStore()
    slow = ended(book, "a", 0.0, is_read=False)
    assert book.forget_ended(59.9) == []
    assert book.forget_ended(60.0) == [slow]


def test_an_ended_job_that_is_asked_for_again_is_kept_for_as_long_again() -> None:
    book = JobStore()
    again = ended(book, "a", 0.0)
    ended(book, "b", 30.0)
    again.followers["g"] = 0
    book.renew(again, 59.0)
    assert book.forget_ended(60.0) == []
    assert book.forget_ended(90.0) == []
    assert known(book, "ab") == "a"


# --- its gateways ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [EndReason.LENGTH, EndReason.ABORT, EndReason.DEADLINE])
def test_whoever_came_to_a_job_later_is_told_so_with_its_end(reason: EndReason) -> None:
    gateways, first, later = Gateways(1000), GatewayStream("g1"), GatewayStream("g2")
    for peer in (first, later):
        gateways.join(peer, 0.0)
        gateways.submit(Submitted(peer, submission()), False, 0.0)
    gateways.end(End(A, reason, 0, 0.5, 0.25, 2.0), 1.0)
    for peer, is_joined in ((first, False), (later, True)):
        (update,) = peer.take_updates(gateways.jobs)
        assert update.finish is not None or update.error is not None
        assert update.is_joined is is_joined


def test_the_machine_is_told_the_clients_number() -> None:
    gateways, peer = Gateways(1000), GatewayStream("g")
    gateways.join(peer, 0.0)
    named = replace(submission(), deadline_in_s=2.0, client_number=17)
    assert gateways.submit(Submitted(peer, named), False, 3.0) == NewJob(Submit(A, 10, 8, 5.0, 17), None)


def test_a_request_whose_choices_end_together_is_told_whole_however_large_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(books, "MOST_ENDED_BYTES", 1000)
    gateways, peer = Gateways(1000), GatewayStream("g")
    gateways.join(peer, 0.0)
    names = [f"r/{choice}" for choice in range(8)]
    for name in names:
        assert gateways.submit(Submitted(peer, submission(name, logprobs=0)), False, 0.0) is not None
        gateways.emit(Emit(JobId(name), PlanNumber(0), 0, 7), TokenLogprob(7, -1.0, ()))
        for number in range(1, 4):
            gateways.emit(Emit(JobId(name), PlanNumber(number), number, 7), TokenLogprob(7, -1.0, ()))
        gateways.end(End(JobId(name), EndReason.LENGTH, 0, 0.0, 0.0, 0.0), 1.0)
    gateways.expire(1.5)
    assert not peer.is_closed
    updates = peer.take_updates(gateways.jobs)
    assert [update.job_id for update in updates if update.finish is EndReason.LENGTH] == names
    gateways.expire(2.0)
    assert len(gateways.jobs) == 1


def test_a_gateway_that_does_not_read_the_end_of_too_much_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MOST_ENDED", 0)
    gateways, peer = Gateways(1000), GatewayStream("g")
    gateways.join(peer, 0.0)
    gateways.submit(Submitted(peer, submission()), False, 0.0)
    gateways.end(End(A, EndReason.STOP, 0, 0.0, 0.0, 0.0), 1.0)
    gateways.expire(10.9)
    assert not peer.is_closed
    gateways.expire(11.0)
    assert peer.is_closed


def test_a_gateway_that_comes_for_a_job_just_before_it_is_forgotten_gets_all_of_it() -> None:
    gateways, first, second = Gateways(1000), GatewayStream("g"), GatewayStream("h")
    for peer in (first, second):
        gateways.join(peer, 0.0)
    gateways.submit(Submitted(first, submission()), False, 0.0)
    gateways.emit(Emit(A, PlanNumber(0), 0, 7), None)
    gateways.end(End(A, EndReason.STOP, 0, 0.0, 0.0, 0.0), 1.0)
    first.take_updates(gateways.jobs)
    gateways.submit(Submitted(second, submission()), False, 60.9)
    gateways.expire(61.0)
    assert not second.is_closed
    (told,) = second.take_updates(gateways.jobs)
    assert (list(told.token_ids), told.finish) == ([7], EndReason.STOP)


def test_a_job_that_waits_for_its_id_and_is_cancelled_never_begins() -> None:
    gateways, peer = Gateways(1000), GatewayStream("g")
    gateways.join(peer, 0.0)
    for job in ("a", "b"):
        assert gateways.submit(Submitted(peer, submission(job)), True, 0.0) is None
    assert gateways.cancel(Cancelled(peer, A, EndReason.CANCELLED)) is None
    (told,) = peer.take_updates(gateways.jobs)
    assert (told.job_id, told.finish) == (A, EndReason.ABORT)
    assert [item.submission.job_id for item in gateways.take_deferred()] == ["b"]


# --- outboxes --------------------------------------------------------------------------------------------------------


def test_a_slow_gateway_gets_everything_at_once_and_nothing_was_queued_for_it() -> None:
    book, peer = JobStore(), GatewayStream("g")
    entry = followed(book)
    for number in range(500):
        book.append(entry, number, number, None)
        peer.tell_news(A)
    (update,) = peer.take_updates(book)
    assert (update.first_token_number, list(update.token_ids)) == (0, list(range(500)))
    assert peer.take_updates(book) == []


def test_the_end_comes_with_the_last_tokens_and_the_gateway_ceases_to_follow() -> None:
    book, peer = JobStore(), GatewayStream("g")
    entry = followed(book, tokens=2)
    book.end(entry, EndReason.LENGTH, TIMINGS, 0.0)
    peer.tell_news(A)
    assert [tuple(update) for update in peer.take_updates(book)] == [
        (A, 0, array("I", [100, 101]), (), EndReason.LENGTH, None, TIMINGS, False, None)
    ]
    assert entry.followers == {}


def test_long_outputs_are_told_in_pieces_that_fit_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MOST_TOKENS_IN_UPDATE", 10)
    monkeypatch.setattr(peers, "MOST_TOKENS_IN_MESSAGE", 30)
    book, peer = JobStore(), GatewayStream("g")
    for name in "abc":
        book.end(followed(book, name, tokens=25), EndReason.LENGTH, TIMINGS, 0.0)
        peer.tell_news(JobId(name))
    received: dict[str, list[int]] = {name: [] for name in "abc"}
    finished: list[str] = []
    for _ in range(12):
        updates = peer.take_updates(book)
        assert sum(len(update.token_ids) for update in updates) <= 40
        for update in updates:
            assert update.first_token_number == len(received[update.job_id])
            received[update.job_id] += update.token_ids
            finished += [update.job_id] if update.finish else []
    assert received == {name: list(range(100, 125)) for name in "abc"}
    assert sorted(finished) == ["a", "b", "c"]


async def test_a_gateway_that_reads_no_last_words_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MOST_LAST_WORDS", 3)
    peer = GatewayStream("g")
    for number in range(4):
        peer.tell_last_word(JobUpdate(JobId(str(number)), 0, (), (), EndReason.ABORT))
    with pytest.raises(NotReadyError):
        await peer.until_closed()


async def test_nothing_is_kept_for_a_gateway_whose_stream_is_to_end() -> None:
    book, peer = JobStore(), GatewayStream("g")
    followed(book, tokens=1)
    peer.close(NotReadyError("enough"))
    peer.tell_news(A)
    peer.tell_last_word(JobUpdate(JobId("b"), 0, (), (), EndReason.ABORT))
    peer.tell_limits(ServingLimits(True, 1, 1))
    assert peer.take_updates(book) == []
    assert peer.take_limits() is None
    async with asyncio.timeout(LIMIT_S):
        await peer.flushed()


def test_the_counters_of_a_workers_epochs_add_up() -> None:
    counters = CountersOverEpochs()
    for busy_s in (1.0, 2.0):
        counters.begin_epoch()
        counters.set_present(WorkerCounters(busy_s=busy_s / 2, offloaded_bytes=5))
        counters.set_present(WorkerCounters(busy_s=busy_s, offloaded_bytes=10))
    assert counters.total() == WorkerCounters(busy_s=3.0, offloaded_bytes=20)
