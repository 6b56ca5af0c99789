"""The leader's decisions about a plan: what is passed over, where a decode goes on, and what must be awaited."""

from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.iteration import JobSpec, Plan, PlanWork
from services.domain.job_sampling import JobSampling
from services.domain.protocol import SampledToken
from services.worker.step import OutputLedger

A, B = JobId("a/0"), JobId("b/0")


def prefill(job_id: JobId, tokens: int, most: int = 8, known: int | None = None) -> PlanWork:
    """The first `tokens` tokens of a prompt of `known` (None: all of it)."""
    spec = JobSpec(known or tokens, known or tokens, JobSampling(max_tokens=most, seed=0))
    return PlanWork(job_id, 0, tokens, tuple(range(tokens)), spec, None)


def decode(job_id: JobId, position: int) -> PlanWork:
    return PlanWork(job_id, position, position + 1, (), None, None)


def plan(number: int, *entries: PlanWork) -> Plan:
    return Plan(Epoch(1), PlanNumber(number), entries)


def sampled(job_id: JobId, token_id: int, end: bool = False) -> SampledToken:
    return SampledToken(job_id, token_id, end)


def test_a_decode_goes_on_from_the_token_that_the_plan_before_it_sampled() -> None:
    ledger = OutputLedger()
    ledger.step_of(plan(1, prefill(A, 4)))
    ledger.take(PlanNumber(1), [sampled(A, 42)])
    step = ledger.step_of(plan(2, decode(A, 4)))
    assert (step.input_token_ids, step.passed_over_job_ids) == ({A: 42}, frozenset())


def test_a_plan_waits_for_the_tokens_of_its_own_jobs_and_for_no_others() -> None:
    ledger = OutputLedger()
    ledger.step_of(plan(1, prefill(A, 4)))
    assert ledger.waits(plan(2, decode(A, 4)))
    assert not ledger.waits(plan(2, prefill(B, 3)))
    ledger.step_of(plan(2, prefill(B, 3)))
    ledger.take(PlanNumber(1), [sampled(A, 42)])
    assert not ledger.waits(plan(3, decode(A, 4)))
    assert ledger.waits(plan(3, decode(A, 4), decode(B, 3)))


def test_the_chunks_of_a_prompt_follow_one_another_without_waiting() -> None:
    ledger = OutputLedger()
    ledger.step_of(plan(1, prefill(A, 4, known=8)))
    rest = PlanWork(A, 4, 8, (4, 5, 6, 7), None, None)
    assert not ledger.waits(plan(2, rest))
    ledger.step_of(plan(2, rest))
    assert ledger.waits(plan(3, decode(A, 8)))


def test_an_entry_behind_a_stop_token_or_behind_the_last_token_is_passed_over() -> None:
    ledger = OutputLedger()
    ledger.step_of(plan(1, prefill(A, 4), prefill(B, 4, most=1)))
    ledger.take(PlanNumber(1), [sampled(A, 2, end=True), sampled(B, 7)])
    assert not ledger.has_unfinished_jobs()
    step = ledger.step_of(plan(2, decode(A, 4), decode(B, 4)))
    assert step.input_token_ids == {}
    assert step.passed_over_job_ids == {A, B}


def test_a_prefill_that_was_given_up_comes_again_without_waiting_for_a_token() -> None:
    ledger = OutputLedger()
    ledger.step_of(plan(1, prefill(A, 4, known=8)))
    rest = PlanWork(A, 4, 8, (4, 5, 6, 7), None, 0.1)
    ledger.step_of(plan(2, rest))
    ledger.take(PlanNumber(2), [], [A])
    assert not ledger.waits(plan(3, rest))
    ledger.step_of(plan(3, rest))
    ledger.take(PlanNumber(3), [sampled(A, 9)])
    assert ledger.step_of(plan(4, decode(A, 8))).input_token_ids == {A: 9}


def test_an_id_that_comes_again_starts_anew_and_hears_nothing_of_its_earlier_stay() -> None:
    ledger = OutputLedger()
    ledger.step_of(plan(1, prefill(A, 4)))
    ledger.forget(A)
    assert not ledger.has_unfinished_jobs()
    ledger.step_of(plan(2, prefill(A, 6)))
    ledger.take(PlanNumber(1), [sampled(A, 1, end=True)])
    assert ledger.waits(plan(3, decode(A, 6)))
    ledger.take(PlanNumber(2), [sampled(A, 3)])
    assert ledger.step_of(plan(3, decode(A, 6))).input_token_ids == {A: 3}
