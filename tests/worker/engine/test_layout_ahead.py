"""The layout of the plan behind the one that a device computes: made meanwhile, used if the guess was right."""

from collections.abc import Sequence

import pytest

from services.domain.ids import JobId
from services.domain.iteration import Plan, PlanWork
from services.worker.engine.layout_ahead import LayoutAhead
from services.worker.kernels.gpu.recorded_decoder import RecordedDecoder
from services.worker.model.batch import BatchLayout, SequenceRows
from services.worker.model.served_decoder import ServedDecoder
from tests.worker.fake_scheduler_plans import FakeSchedulerPlans
from tests.worker.tiny_engine import alone, prompt_of, sampling, tiny_model

PROMPTS = {"a": prompt_of(1, 9), "b": prompt_of(2, 5), "c": prompt_of(3, 14)}
HOW = sampling(max_tokens=9)


@pytest.fixture
def model() -> ServedDecoder:
    """Nothing is recorded here: passes run as the model does."""
    return RecordedDecoder(tiny_model())


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """The rows of every layout that is made."""
    made: list[list[tuple[int, int]]] = []
    lay_out = LayoutAhead._laid_out

    def noted(self: LayoutAhead, sequences: Sequence[SequenceRows]) -> BatchLayout:
        made.append([(rows.from_token, rows.to_token) for rows in sequences])
        return lay_out(self, sequences)

    monkeypatch.setattr(LayoutAhead, "_laid_out", noted)
    return made


def begun(runner: FakeSchedulerPlans, names: str) -> list[JobId]:
    """Jobs with their first tokens."""
    jobs = [runner.add(name, PROMPTS[name], HOW) for name in names]
    runner.run(*(runner.entry(job_id) for job_id in jobs))
    return jobs


def run(runner: FakeSchedulerPlans, plan: Plan, then: Plan | None) -> None:
    """Runs a plan while `then` is thought to be the next."""
    (result,) = runner.kv.engine.run_first([plan], lambda: then)
    runner.take(result)


def check_outputs(runner: FakeSchedulerPlans) -> None:
    """What each job has is what it gives alone."""
    for job_id, output in runner.outputs.items():
        assert output == alone(PROMPTS[job_id], HOW)[: len(output)]


def test_the_next_layout_is_made_while_this_one_is_computed_and_no_other(
    runner: FakeSchedulerPlans, laid_out: list[list[tuple[int, int]]]
) -> None:
    a, b = begun(runner, "ab")
    c = runner.add("c", PROMPTS["c"], HOW)
    batches: list[list[PlanWork]] = [
        [runner.entry(a), runner.entry(b)],
        [runner.entry(c, 6), runner.entry(a), runner.entry(b)],
        [runner.entry(b), runner.entry(c)],
        [runner.entry(c), runner.entry(b), runner.entry(a)],
    ]
    plans = [runner.plan(*batch) for batch in batches]
    laid_out.clear()
    for number, (plan, then) in enumerate(zip(plans, [*plans[1:], None], strict=True)):
        run(runner, plan, then)
        assert len(laid_out) == min(number + 2, len(plans))
    assert laid_out == [
        [(9, 10), (5, 6)],
        [(10, 11), (6, 7), (0, 6)],
        [(7, 8), (6, 14)],
        [(14, 15), (8, 9), (11, 12)],
    ]
    check_outputs(runner)
    assert [len(runner.outputs[job_id]) for job_id in (a, b, c)] == [4, 5, 2]


def test_another_plan_than_the_expected_one_is_laid_out_anew(runner: FakeSchedulerPlans) -> None:
    a, b = begun(runner, "ab")
    first, recalled = runner.plan(runner.entry(a)), runner.plan(runner.entry(b))
    run(runner, first, recalled)
    runner.planned[b] -= 1
    for _ in range(2):
        run(runner, runner.plan(runner.entry(b), runner.entry(a)), recalled)
    runner.finish(a, b)
    check_outputs(runner)


def test_a_job_that_ends_meanwhile_is_not_in_the_next_batch(runner: FakeSchedulerPlans) -> None:
    output = alone(PROMPTS["a"], HOW)
    stop = next(token for token in output[1:] if token != output[0])
    a = runner.add("a", PROMPTS["a"], sampling(max_tokens=9, stop_token_ids=(stop,)))
    (b,) = begun(runner, "b")
    runner.run(runner.entry(a))
    plans = [runner.plan(runner.entry(a), runner.entry(b)) for _ in range(6)]
    for plan, then in zip(plans, [*plans[1:], None], strict=True):
        run(runner, plan, then)
    assert runner.outputs[a] == output[: output.index(stop) + 1]
    check_outputs(runner)


def test_a_job_that_has_moved_to_other_blocks_is_read_from_there(runner: FakeSchedulerPlans) -> None:
    a, b = begun(runner, "ab")
    first, second = (runner.plan(runner.entry(a), runner.entry(b)) for _ in range(2))
    run(runner, first, second)
    valid_tokens = second.entries[0].from_token
    runner.kv.wait_done(runner.kv.offload(a, valid_tokens))
    runner.kv.settle()
    runner.kv.wait_done(runner.kv.upload(a, valid_tokens))
    runner.kv.grow(a, valid_tokens + 1)
    run(runner, second, None)
    runner.finish(a, b)
    check_outputs(runner)


def test_a_plan_that_can_not_be_right_is_no_guess(
    runner: FakeSchedulerPlans, laid_out: list[list[tuple[int, int]]]
) -> None:
    """It is refused when it is run, with a better message."""
    (a,) = begun(runner, "a")
    for wrong in (
        PlanWork(JobId("unknown"), 3, 4, (), None, None),
        PlanWork(a, 400, 401, (), None, None),
        PlanWork(a, 10, 10, (), None, None),
    ):
        laid_out.clear()
        run(runner, runner.plan(runner.entry(a)), runner.plan(wrong))
        assert len(laid_out) == 1
    check_outputs(runner)


def test_passes_of_their_own_are_not_part_of_the_guess(runner: FakeSchedulerPlans) -> None:
    """A prefill that may be given up, and a prompt whose log probabilities are wanted."""
    (a,) = begun(runner, "a")
    b = runner.add("b", PROMPTS["b"], HOW)
    c = runner.add("c", PROMPTS["c"], sampling(max_tokens=9, prompt_logprobs=0))
    plans = [
        runner.plan(runner.entry(a)),
        runner.plan(runner.entry(b, cut_after_s=100.0), runner.entry(a), runner.entry(c)),
        runner.plan(*(runner.entry(job_id) for job_id in (a, b, c))),
    ]
    for plan, then in zip(plans, [*plans[1:], None], strict=True):
        run(runner, plan, then)
    runner.finish(a, b, c)
    check_outputs(runner)
