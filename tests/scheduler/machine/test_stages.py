"""A worker with several pipeline stages: which jobs form the batches in flight (PAPER 4)."""

from services.domain.ids import JobId
from services.domain.protocol import Finished, Jobs
from services.scheduler.machine.scheduler_events import Command, KvConnected, Submit, WorkerJoined
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.scheduler.machine.checked_scheduler import COST, EPOCH, CheckedScheduler, entries, plans, told
from tests.scheduler.machine.events_from_kv import resident


def started(
    stages: int, plans_in_flight: int | None, policy: PolicyName = PolicyName.FCFS, **knobs: int
) -> CheckedScheduler:
    machine = CheckedScheduler(SchedulerConfig(policy=policy, plans_in_flight=plans_in_flight, **knobs))  # type: ignore[arg-type]
    machine.turn(WorkerJoined(EPOCH, 100_000, 4000, COST, stages), KvConnected())
    return machine


def come(machine: CheckedScheduler, names: str, prompt_tokens: int = 10) -> list[Command]:
    """Jobs arrive and are resident at once."""
    machine.turn(*(Submit(JobId(name), prompt_tokens, 50) for name in names))
    return machine.turn(*(resident(JobId(name), 100) for name in names))


def planned(commands: list[Command]) -> list[str]:
    """The jobs of each plan."""
    return ["".join(job for job, _, _ in entries(plan)) for plan in plans(commands)]


def test_each_stage_gets_the_best_jobs_that_no_other_stage_has() -> None:
    machine = started(stages=2, plans_in_flight=2, max_batch=2)
    commands = come(machine, "abcde")
    assert planned(commands) == ["ab", "cd"]
    assert planned(machine.turn(machine.result(plans(commands)[0]))) == ["ab"]
    assert machine.scheduler.counters.preemptions == 0


def test_the_plan_beyond_the_stages_names_the_jobs_that_the_last_stage_has() -> None:
    assert planned(come(started(stages=2, plans_in_flight=3, max_batch=2), "abcde")) == ["ab", "cd", "ab"]


def test_jobs_too_few_for_all_stages_are_planned_one_plan_ahead_and_no_further() -> None:
    assert planned(come(started(stages=3, plans_in_flight=4, max_batch=4), "ab")) == ["ab", "ab"]


def test_a_job_that_is_left_out_while_another_stage_has_it_is_not_preempted_but_one_that_nobody_has_is() -> None:
    machine = started(stages=2, plans_in_flight=2, policy=PolicyName.FIXED_PRIORITY, max_batch=1)
    first, second = plans(come(machine, "ab", prompt_tokens=20))
    assert planned(come(machine, "c", prompt_tokens=10)) == []
    assert planned(machine.turn(machine.result(first))) == ["c"]
    assert machine.scheduler.counters.preemptions == 1
    assert machine.scheduler.jobs[JobId("a")].preemptions == 1
    assert planned(machine.turn(machine.result(second))) == ["a"]


def test_the_kv_manager_is_told_how_many_jobs_run_at_a_time() -> None:
    jobs = [message for message in told(started(3, 3, max_batch=4).commands) if isinstance(message, Jobs)]
    assert [message.max_batch for message in jobs] == [12]


def test_without_a_number_one_plan_more_than_stages_is_in_flight() -> None:
    assert planned(come(started(stages=3, plans_in_flight=None, max_batch=1), "abcde")) == ["a", "b", "c", "a"]


def test_static_batches_fill_all_stages() -> None:
    machine = started(stages=2, plans_in_flight=2, policy=PolicyName.STATIC, max_batch=2)
    assert planned(come(machine, "abcde")) == ["ab", "cd"]


def test_a_static_batch_that_ended_is_followed_by_another_while_those_of_other_stages_go_on() -> None:
    machine = started(stages=2, plans_in_flight=2, policy=PolicyName.STATIC, max_batch=2)
    first, second = plans(come(machine, "abcde"))
    assert planned(machine.turn(machine.result(first, ends=["a"]))) == ["b"]
    machine.turn(machine.result(second))
    third = plans(machine.commands)[-2]
    assert planned(machine.turn(machine.result(third, ends=["b"]))) == ["e"]


def test_the_kv_manager_is_told_which_prefills_were_cut() -> None:
    machine = started(1, 1, policy=PolicyName.MLFQ_KILL, max_batch=2)
    machine.turn(Submit(JobId("a"), 500, 5))
    (plan,) = plans(machine.turn(resident(JobId("a"), 600)))
    assert plan.cut_after_s
    assert Finished(plan.plan_number, (JobId("a"),)) in told(machine.turn(machine.result(plan, cut=["a"])))
