"""Plans that are computed in one call: which are, and that their results are those of one after the other."""

from typing import Any

import pytest

from services.domain.errors import ProtocolError
from services.domain.ids import Epoch, JobId
from services.domain.iteration import Plan
from services.worker.model.served_decoder import ServedDecoder
from tests.worker.fake_kv_commands import FakeKvCommands
from tests.worker.fake_scheduler_plans import FakeSchedulerPlans
from tests.worker.tiny_engine import alone, native_tiny_model, new_engine, prompt_of, sampling, tiny_model

PROMPTS = {"a": prompt_of(1, 9), "b": prompt_of(2, 5), "c": prompt_of(3, 14)}


@pytest.fixture
def model() -> ServedDecoder:
    return native_tiny_model()


def begun(runner: FakeSchedulerPlans, names: str, **how: Any) -> list[JobId]:
    """Jobs with their first tokens."""
    jobs = [runner.add(name, PROMPTS[name], sampling(**how)) for name in names]
    runner.run(*(runner.entry(job_id) for job_id in jobs))
    return jobs


def plans_of(runner: FakeSchedulerPlans, *batches: list[JobId]) -> list[Plan]:
    return [runner.plan(*(runner.entry(job_id) for job_id in batch)) for batch in batches]


def run_all(runner: FakeSchedulerPlans, plans: list[Plan]) -> list[int]:
    """Runs the plans; returns how many each call took."""
    engine, taken = runner.kv.engine, []
    while plans:
        results = engine.run_first(plans)
        for plan, result in zip(plans, results, strict=False):
            assert result.result.plan_number == plan.plan_number
            runner.take(result)
        taken.append(len(results))
        plans = plans[len(results) :]
    return taken


def test_decodes_of_the_same_jobs_are_one_call_and_give_what_each_gives_alone(runner: FakeSchedulerPlans) -> None:
    jobs = begun(runner, "abc", max_tokens=9)
    assert run_all(runner, plans_of(runner, *[jobs] * 8)) == [8]
    for job_id in jobs:
        assert runner.outputs[job_id] == alone(PROMPTS[job_id], sampling(max_tokens=9))


HOWS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.0, "seed": 5},
    "top_p": {"temperature": 0.7, "seed": 6, "top_p": 0.9, "choice": 1},
    "top_k and min_p": {"temperature": 1.5, "seed": 7, "top_k": 20, "min_p": 0.05},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "presence and frequency": {"presence_penalty": 0.6, "frequency_penalty": 0.5},
    "logit_bias": {"logit_bias": ((3, 1.5), (40, -100.0), (41, 2.0))},
    "all": {"temperature": 0.8, "seed": 8, "top_p": 0.8, "repetition_penalty": 1.2, "logit_bias": ((9, 3.0),)},
}


def test_jobs_that_draw_are_computed_together_with_others_and_draw_what_they_draw_alone(
    runner: FakeSchedulerPlans,
) -> None:
    hows = dict(zip("abc", [HOWS["temperature"], {}, HOWS["all"]], strict=True))
    jobs = [runner.add(name, PROMPTS[name], sampling(max_tokens=9, **how)) for name, how in hows.items()]
    runner.run(*(runner.entry(job_id) for job_id in jobs))
    a, b, c = jobs
    assert run_all(runner, plans_of(runner, [a, b, c], [c, b, a], [a, c], [a, c])) == [4]
    runner.finish(a, b, c)
    for name, how in hows.items():
        assert runner.outputs[JobId(name)] == alone(PROMPTS[name], sampling(max_tokens=9, **how))


@pytest.mark.parametrize("how", HOWS.values(), ids=HOWS)
def test_a_job_has_the_same_tokens_in_a_run_as_beside_one_that_has_each_plan_alone(
    runner: FakeSchedulerPlans, how: dict[str, Any]
) -> None:
    (a,) = begun(runner, "a", max_tokens=24, **how)
    assert run_all(runner, plans_of(runner, *[[a]] * 8)) == [8]
    (b,) = begun(runner, "b", max_tokens=24, logprobs=0)
    assert run_all(runner, plans_of(runner, *[[a, b]] * 8)) == [1] * 8
    runner.finish(a)
    assert runner.outputs[a] == alone(PROMPTS["a"], sampling(max_tokens=24, **how))
    assert runner.outputs[a] != alone(PROMPTS["a"], sampling(max_tokens=24)), "it does something"


def test_jobs_that_leave_are_left_out_and_each_result_has_its_plans_order(runner: FakeSchedulerPlans) -> None:
    a, b, c = begun(runner, "abc", max_tokens=9)
    plans = plans_of(runner, [a, b, c], [c, b, a], [a, c], [c])
    results = runner.kv.engine.run_first(plans)
    named = [[token.job_id for token in result.result.tokens] for result in results]
    assert named == [[a, b, c], [c, b, a], [a, c], [c]]
    for result in results:
        runner.take(result)
    for job_id in (a, b, c):
        output = runner.outputs[job_id]
        assert output == alone(PROMPTS[job_id], sampling(max_tokens=9))[: len(output)]


def test_a_job_goes_on_after_a_run_from_its_last_token(runner: FakeSchedulerPlans) -> None:
    a, b = begun(runner, "ab", max_tokens=9)
    assert run_all(runner, plans_of(runner, *[[a, b]] * 3)) == [3]
    runner.finish(a, b)
    assert [runner.outputs[job_id] for job_id in (a, b)] == [
        alone(PROMPTS[job_id], sampling(max_tokens=9)) for job_id in (a, b)
    ]


def test_a_run_ends_with_a_stop_token_and_that_jobs_later_entries_are_passed_over(runner: FakeSchedulerPlans) -> None:
    outputs = {name: alone(prompt, sampling(max_tokens=9)) for name, prompt in PROMPTS.items()}
    stop = next(token for token in outputs["a"][2:] if token not in outputs["a"][:2])
    ends_at = outputs["a"].index(stop)
    a = runner.add("a", PROMPTS["a"], sampling(max_tokens=9, stop_token_ids=(stop,)))
    b = runner.add("b", PROMPTS["b"], sampling(max_tokens=9))
    runner.run(runner.entry(a), runner.entry(b))
    plans = plans_of(runner, *[[a, b]] * 8)
    assert run_all(runner, plans) == [ends_at, 8 - ends_at]
    assert runner.outputs == {a: outputs["a"][: ends_at + 1], b: outputs["b"]}


@pytest.mark.parametrize(
    "how",
    [
        {"logprobs": 0},
        {"min_tokens": 5, "stop_token_ids": (2,)},
    ],
    ids=lambda how: next(iter(how)),
)
def test_a_job_that_asks_for_more_than_tokens_or_may_not_end_yet_has_each_plan_alone(
    runner: FakeSchedulerPlans, how: dict[str, Any]
) -> None:
    (a,) = begun(runner, "a", max_tokens=9, **how)
    (b,) = begun(runner, "b", max_tokens=9)
    assert run_all(runner, plans_of(runner, [b, a], [b, a])) == [1, 1]
    runner.finish(a, b)
    assert runner.outputs[a] == alone(PROMPTS["a"], sampling(max_tokens=9, **how))


def test_min_tokens_no_longer_matter_once_the_job_has_them(runner: FakeSchedulerPlans) -> None:
    (a,) = begun(runner, "a", max_tokens=9, min_tokens=2, stop_token_ids=(500,))
    assert run_all(runner, plans_of(runner, *[[a]] * 5)) == [1, 4]


def test_a_plan_that_starts_a_job_begins_a_call_of_its_own(runner: FakeSchedulerPlans) -> None:
    (a,) = begun(runner, "a")
    b = runner.add("b", PROMPTS["b"], sampling())
    plans = plans_of(runner, [a], [a], [a, b], [a, b], [a, b])
    assert run_all(runner, plans) == [2, 1, 2]
    runner.finish(a, b)
    assert [runner.outputs[job_id] for job_id in (a, b)] == [alone(PROMPTS[name], sampling()) for name in "ab"]


def test_a_job_that_comes_back_after_a_pause_begins_a_call_of_its_own(runner: FakeSchedulerPlans) -> None:
    a, b = begun(runner, "ab")
    assert run_all(runner, plans_of(runner, [a, b], [a], [a, b], [a, b])) == [2, 2]


def test_no_plan_of_another_epoch_is_taken_in(runner: FakeSchedulerPlans) -> None:
    (a,) = begun(runner, "a")
    first, second = plans_of(runner, [a], [a])
    assert len(runner.kv.engine.run_first([first, Plan(Epoch(2), second.plan_number, second.entries)])) == 1


def test_a_plan_that_is_wrong_is_refused_in_its_turn(runner: FakeSchedulerPlans) -> None:
    """It goes beyond the job's table."""
    (a,) = begun(runner, "a")
    first, second = plans_of(runner, [a], [a])
    too_far = 4 * len(runner.kv.device[a])
    (entry,) = second.entries
    beyond = Plan(second.epoch, second.plan_number, (entry._replace(from_token=too_far, to_token=too_far + 1),))
    assert len(runner.kv.engine.run_first([first, beyond])) == 1
    with pytest.raises(ProtocolError, match=f"plan {second.plan_number}, job a"):
        runner.kv.engine.run_first([beyond])


def test_with_torch_each_plan_is_a_call() -> None:
    engine = new_engine(model=tiny_model())
    runner = FakeSchedulerPlans(FakeKvCommands(engine))
    (a,) = begun(runner, "a")
    assert run_all(runner, plans_of(runner, [a], [a])) == [1, 1]
    engine.close()


def test_each_iteration_has_its_own_time_and_all_are_counted(runner: FakeSchedulerPlans) -> None:
    (a,) = begun(runner, "a")
    before_s = runner.kv.engine.counters().busy_s
    results = runner.kv.engine.run_first(plans_of(runner, *[[a]] * 4))
    durations_s = [result.result.duration_s for result in results]
    assert min(durations_s) > 0
    assert runner.kv.engine.counters().busy_s - before_s == pytest.approx(sum(durations_s))
