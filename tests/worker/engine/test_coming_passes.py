"""A rank knows the rows of the passes of a step before it runs the steps ahead of it."""

import pytest

from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.iteration import JobSpec, Plan, PlanWork
from services.domain.job_sampling import JobSampling
from services.worker.engine import prompt_scoring
from services.worker.engine.prompt_scoring import ComingPasses
from services.worker.step import Step

PLAIN, SCORED = JobId("plain/0"), JobId("scored/0")
VOCABULARY = 100
PROMPT = 20


@pytest.fixture
def coming(monkeypatch: pytest.MonkeyPatch) -> ComingPasses:
    monkeypatch.setattr(prompt_scoring, "MOST_ROWS", 8)
    return ComingPasses(VOCABULARY)


def entry(job_id: JobId, from_token: int, to_token: int, *, known: int = PROMPT) -> PlanWork:
    """Positions of a job with a prompt of PROMPT; the first entry says how to sample."""
    scores = 2 if job_id == SCORED else None
    spec = JobSpec(known, PROMPT, JobSampling(max_tokens=9, seed=0, prompt_logprobs=scores))
    token_ids = tuple(range(from_token, to_token)) if to_token <= known else ()
    return PlanWork(job_id, from_token, to_token, token_ids, spec if from_token == 0 else None, None)


def step(*entries: PlanWork, passed_over: frozenset[JobId] = frozenset()) -> Step:
    return Step(Plan(Epoch(1), PlanNumber(0), entries), passed_over, {})


def test_entries_without_scores_are_one_pass_and_those_passed_over_are_none(coming: ComingPasses) -> None:
    assert coming.rows_of(step(entry(PLAIN, 0, PROMPT), entry(JobId("old/0"), 25, 26))) == [PROMPT + 1]
    assert coming.rows_of(step(entry(PLAIN, 20, 21), entry(JobId("old/0"), 26, 27))) == [2]
    assert coming.rows_of(step(entry(PLAIN, 21, 22), passed_over=frozenset({PLAIN}))) == []


def test_a_scored_prompt_has_passes_of_its_own_behind_the_others(coming: ComingPasses) -> None:
    assert coming.rows_of(step(entry(SCORED, 0, PROMPT), entry(PLAIN, 0, PROMPT))) == [PROMPT, 8, 8, 4]


def test_a_scored_prompt_in_chunks_is_known_by_its_first_and_ends_before_its_last_token(coming: ComingPasses) -> None:
    assert coming.rows_of(step(entry(SCORED, 0, 10))) == [8, 2]
    assert coming.rows_of(step(entry(SCORED, 10, 19))) == [8, 1]
    assert coming.rows_of(step(entry(SCORED, 19, 20))) == [1], "its logits tell of the output, with those of all others"
    assert coming.rows_of(step(entry(PLAIN, 0, 3), entry(SCORED, 20, 21))) == [4]


def test_output_that_is_computed_again_is_not_scored(coming: ComingPasses) -> None:
    assert coming.rows_of(step(entry(SCORED, 0, 25, known=25))) == [8, 8, 9]


def test_a_job_that_is_gone_is_forgotten_with_its_scores(coming: ComingPasses) -> None:
    coming.rows_of(step(entry(SCORED, 0, 10)))
    coming.forget(SCORED)
    assert coming.rows_of(step(entry(SCORED, 10, 15))) == [5]
