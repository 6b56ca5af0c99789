"""Loans: who is lent an iteration at the head of the order, when, how much, and that it goes back to its place."""

from collections import Counter
from itertools import pairwise

import pytest

from services.domain.cost import CostProfile
from services.domain.ids import JobId
from services.domain.protocol import Order
from services.scheduler.job import Job, LoanKind
from services.scheduler.machine.lending import LENT_LEVEL, Lending
from services.scheduler.machine.loan_account import (
    CREDIT_S,
    FAR_PERIOD_S,
    FAR_TOKENS,
    LATER_ROWS,
    MOST_SILENCE_ROWS,
    SILENCE_ROWS,
)
from services.scheduler.machine.scheduler_events import Submit
from services.scheduler.policies.scheduling_policy import UNKNOWN_WORK
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.builders.cost_profiles import proportional_cost
from tests.scheduler.machine.checked_scheduler import CheckedScheduler, entries, plans, told
from tests.scheduler.machine.events_from_kv import A, B, C, resident
from tests.scheduler.machine.served_trace import Arrival, ServedTrace, TraceOutcome, serve_trace

COST = proportional_cost(0.001, 0.02)
"""A prefill of n tokens takes n ms, an iteration of decodes 20 ms."""


def lending(**knobs: object) -> SchedulerConfig:
    """Batches of 4: one job is lent for silence, plenty for first tokens (after a second), nothing for later ones."""
    small: dict[str, object] = {
        "max_batch": 4,
        "plans_in_flight": 1,
        "first_token_limit_s": 1.0,
        "first_token_share": 1.0,
        "per_token_limit_s": None,
    }
    return SchedulerConfig(policy=PolicyName.GITTINS, **(small | knobs))  # type: ignore[arg-type]


def crowd(count: int, output_tokens: int = 200) -> list[Arrival]:
    """So many equal jobs, a hundredth of a second apart."""
    return [Arrival(f"j{number:02}", 10, output_tokens, 0.01 * number) for number in range(count)]


def served(
    config: SchedulerConfig, arrivals: list[Arrival], cost: CostProfile = COST
) -> tuple[TraceOutcome, dict[str, list[float]]]:
    """The outcome, and when each job ran."""
    serving = ServedTrace(config, arrivals, cost)
    ran_s: dict[str, list[float]] = {}
    while serving.iterate():
        for job in serving.run.order[-1]:
            ran_s.setdefault(job, []).append(serving.machine.now_s)
    return serving.run, ran_s


def lent_by_turn(serving: ServedTrace, until_s: float = 1e9) -> list[list[str]]:
    """The jobs that were moved to the level of loans in each turn."""
    while serving.iterate() and serving.machine.now_s < until_s:
        pass
    turns: list[list[str]] = []
    for _, _, commands in serving.machine.turns:
        orders = [message for message in told(commands) if isinstance(message, Order)]
        turns.append([one.job_id for order in orders for one in order.changes if one.rank.level == LENT_LEVEL])
    return turns


def worst_silence_s(ran_s: list[float]) -> float:
    return max((later - sooner for sooner, later in pairwise(ran_s)), default=0.0)


def test_a_job_that_has_not_started_is_lent_its_prefill_after_the_limit() -> None:
    run, _ = served(lending(), crowd(8))
    assert max(run.first_token_s.values()) < 1.6
    without, _ = served(lending(first_token_limit_s=None), crowd(8))
    assert max(without.first_token_s.values()) > 3.0


def test_a_started_job_is_never_silent_for_much_longer_than_the_limit() -> None:
    _, ran_s = served(lending(), crowd(8))
    assert 1.4 < max(map(worst_silence_s, ran_s.values())) < 1.7
    _, ran_s = served(lending(silence_limit_s=None), crowd(8))
    assert max(map(worst_silence_s, ran_s.values())) > 2.5


def test_where_iterations_are_long_a_silent_job_is_lent_one_sooner() -> None:
    """Its token comes some iterations after that."""
    _, ran_s = served(lending(per_token_limit_s=None), crowd(8), proportional_cost(0.001, 0.15))
    assert 1.2 < max(map(worst_silence_s, ran_s.values())) < 1.6


def test_loans_leave_the_order_as_it_is() -> None:
    with_loans, _ = served(lending(), crowd(12))
    without, _ = served(lending(silence_limit_s=None, first_token_limit_s=None), crowd(12))
    by_end = [sorted(run.finished_s, key=run.finished_s.__getitem__) for run in (with_loans, without)]
    assert by_end[0][:4] == by_end[1][:4]
    assert by_end[0][-4:] == by_end[1][-4:]
    assert with_loans.mean_s < 1.1 * without.mean_s


def test_a_loan_is_one_iteration_and_the_kv_manager_hears_of_both_moves() -> None:
    machine = CheckedScheduler(lending(max_batch=1))
    machine.start(COST)
    machine.turn(Submit(A, 10, 300), Submit(B, 10, 300))
    machine.turn(resident(A), resident(B))
    while_alone = []
    for _ in range(400):
        (plan,) = plans(machine.commands)[-1:]
        while_alone.append("".join(job for job, _, _ in entries(plan)))
        machine.turn(machine.result(plan), at_s=machine.now_s + 0.02)
        if len(machine.scheduler.jobs) < 2:
            break
    # The first loan is B's prefill after a second, the others are one token after one and a half.
    runs = "".join(while_alone)
    assert "bb" not in runs
    assert runs.count("b") == 4
    assert [len(part) for part in runs.split("b")[1:-1]] == pytest.approx([75, 75, 75], abs=3)
    levels = [
        change.rank.level
        for message in told(machine.commands)
        if isinstance(message, Order)
        for change in message.changes
        if change.job_id == B
    ]
    assert LENT_LEVEL in levels
    assert levels[levels.index(LENT_LEVEL) + 1] == 1


def short_among_long(long_jobs: int) -> list[Arrival]:
    """A job of 20 tokens that comes last."""
    return [*crowd(long_jobs, output_tokens=300), Arrival("short", 10, 20, 0.5)]


def per_later_token_s(run: TraceOutcome, job: str, output_tokens: int) -> float:
    return (run.finished_s[job] - run.first_token_s[job]) / (output_tokens - 1)


def test_a_job_that_would_make_later_tokens_too_slowly_is_lent_them() -> None:
    without, _ = served(lending(), short_among_long(4))
    assert per_later_token_s(without, "short", 20) > 0.2
    run, _ = served(lending(per_token_limit_s=0.1), short_among_long(4))
    assert 0.02 < per_later_token_s(run, "short", 20) < 0.1
    assert all(per_later_token_s(run, f"j{number:02}", 300) < 0.1 for number in range(4))


def test_later_tokens_are_paid_from_the_account_where_they_delay_others() -> None:
    many = short_among_long(40)
    knobs = {"per_token_limit_s": 0.1, "first_token_limit_s": 0.3}
    run, _ = served(lending(first_token_share=1.0, **knobs), many)
    within = sum(per_later_token_s(run, job, 300) < 0.1 for job in run.finished_s if job != "short")
    poor, _ = served(lending(first_token_share=0.0, **knobs), many)
    assert within == 40
    assert poor.first_token_s["short"] > 30.0
    assert run.first_token_s["short"] < 30.0


def test_not_more_of_a_batch_is_lent_for_later_tokens_than_its_share() -> None:
    config = lending(max_batch=8, first_token_limit_s=0.05, silence_limit_s=None, per_token_limit_s=0.1)
    serving = ServedTrace(config, crowd(40, output_tokens=60), COST)
    most = 0
    while serving.iterate():
        most = max(most, serving.machine.scheduler.lending.lent_jobs)
    assert 2 < most <= int(8 * LATER_ROWS) + 1, "and one for a first token"


def test_at_most_a_quarter_of_a_batch_is_lent_for_silence_while_few_wait_for_it() -> None:
    config = lending(max_batch=8, first_token_limit_s=0.05, silence_limit_s=0.2)
    serving = ServedTrace(config, crowd(40, output_tokens=60), COST)
    at_once = [len(jobs) for jobs in lent_by_turn(serving)]
    assert max(at_once) == int(8 * SILENCE_ROWS) + 1 == 3, "and one for a first token"


def test_up_to_half_of_a_batch_is_lent_for_silence_while_many_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations of 50 ms: of six jobs that wait one would be served in 0.3 s only, if there were one row."""
    config = lending(first_token_limit_s=0.05, silence_limit_s=0.4, per_token_limit_s=0.4)
    serving = ServedTrace(config, crowd(20, output_tokens=60), proportional_cost(0.001, 0.05))
    lend, at_once = Lending.lend, Counter[float]()

    def counting(lending: Lending, kind: LoanKind, job: Job, tokens: int, now_s: float) -> None:
        at_once[now_s] += kind is LoanKind.SILENCE
        lend(lending, kind, job, tokens, now_s)

    monkeypatch.setattr(Lending, "lend", counting)
    while serving.iterate():
        pass
    assert max(at_once.values()) == int(4 * MOST_SILENCE_ROWS) == 2


def test_no_prefill_is_lent_while_silent_jobs_wait_for_their_loans() -> None:
    """By the limit on later tokens alone loans could keep 30 jobs, but they are silent after 0.1 s already."""
    config = lending(max_batch=8, first_token_limit_s=0.05, silence_limit_s=0.1, per_token_limit_s=0.1)
    run, ran_s = served(config, crowd(80, output_tokens=60))
    most_started = max(
        sum(began_s <= now_s < run.finished_s[job] for job, began_s in run.first_token_s.items())
        for now_s in run.first_token_s.values()
    )
    assert 16 < most_started < 30
    assert max(map(worst_silence_s, ran_s.values())) < 0.2


def test_prefills_that_are_lent_take_no_more_than_their_share_of_the_time_and_the_newest_come_first() -> None:
    """Each prefill is half a second of work, one job comes every tenth of a second."""
    jobs = [Arrival(f"j{number:02}", 500, 100, 0.1 * number) for number in range(60)]
    config = lending(first_token_share=0.5, max_batch=2, silence_limit_s=None)
    serving = ServedTrace(config, jobs, COST)
    lent = [job for jobs in lent_by_turn(serving, until_s=30.0) for job in jobs]
    assert 4 <= len(lent) == len(set(lent)) <= (CREDIT_S + 0.5 * 30.0) / 0.5 + 1
    while_they_came = [job for job in lent if serving.run.first_token_s[job] < 6.0]
    assert len(while_they_came) > 2
    for job in while_they_came:
        waited_s = serving.run.first_token_s[job] - 0.1 * int(job[1:])
        assert 1.0 <= waited_s < 3.0, "whoever came last is lent it, soon after the limit"


def test_no_prefill_is_lent_when_started_jobs_hold_most_of_the_device() -> None:
    machine = CheckedScheduler(lending(max_batch=1))
    machine.start(COST, pool_tokens=1000)
    machine.turn(Submit(A, 10, 900), Submit(B, 10, 300))
    machine.turn(resident(A, capacity=900))
    for _ in range(80):
        (plan,) = plans(machine.commands)[-1:]
        machine.turn(machine.result(plan), at_s=machine.now_s + 0.02)
    assert machine.scheduler.lending.lent_jobs == 0
    small = CheckedScheduler(lending(max_batch=1))
    small.start(COST, pool_tokens=2000)
    small.turn(Submit(A, 10, 900), Submit(B, 10, 300))
    small.turn(resident(A, capacity=900))
    for _ in range(80):
        (plan,) = plans(small.commands)[-1:]
        small.turn(small.result(plan), at_s=small.now_s + 0.02)
    assert small.scheduler.lending.lent_jobs == 1


def test_a_job_whose_kv_is_away_is_lent_several_tokens_and_not_again_before_a_while() -> None:
    machine = CheckedScheduler(lending(max_batch=1, first_token_limit_s=None))
    machine.start(COST)
    machine.turn(Submit(C, 10, 5), Submit(A, 10, 3000), Submit(B, 10, 3000))
    machine.turn(resident(A))
    lending_of = machine.scheduler.lending
    job = machine.scheduler.jobs[A]
    # A starts, and the KV manager takes it away for C, which runs from then on.
    (plan,) = plans(machine.commands)[-1:]
    machine.turn(machine.result(plan), at_s=0.1)
    job.move(type(job.state).OUT, 0.1, "the test took it away")
    machine.scheduler.ranking.set_ready(job, False)
    machine.turn(machine.result(plans(machine.commands)[-1]), resident(B), at_s=0.2)
    began_s = 0.0
    for _ in range(200):
        (plan,) = plans(machine.commands)[-1:]
        machine.turn(machine.result(plan), at_s=machine.now_s + 0.02)
        if job.lent_to_token is not None:
            began_s = machine.now_s
            break
    assert began_s == pytest.approx(1.7, abs=0.1)
    assert job.lent_to_token == job.expected_tokens + FAR_TOKENS - 1
    assert job.next_far_loan_s == pytest.approx(began_s + FAR_PERIOD_S)
    assert lending_of.lent_jobs == 1


def test_a_lent_decode_takes_nothing_of_the_token_budget() -> None:
    machine = CheckedScheduler(lending(max_batch=2, max_batch_tokens=3))
    machine.start(COST)
    machine.turn(Submit(A, 2, 50), Submit(B, 3, 50))
    machine.turn(resident(A))
    machine.turn(machine.result(plans(machine.commands)[-1]))
    job = machine.scheduler.jobs[A]
    machine.scheduler.lending.lend(LoanKind.SILENCE, job, 11, machine.now_s)
    (plan,) = plans(machine.turn(machine.result(plans(machine.commands)[-1]), resident(B)))
    assert entries(plan) == [("a", 3, 4), ("b", 0, 3)]


def test_only_gittins_lends() -> None:
    for policy in set(PolicyName) - {PolicyName.GITTINS}:
        machine = CheckedScheduler(SchedulerConfig(policy=policy))
        machine.start(COST)
        machine.turn(Submit(A, 10, 10), at_s=1.0)
        machine.scheduler.lending.step(100.0, 1, UNKNOWN_WORK)
        assert machine.scheduler.lending.lent_jobs == 0


def test_a_job_that_ends_while_it_is_lent_an_iteration_leaves_room_for_the_next() -> None:
    run = serve_trace(lending(), [*crowd(8), Arrival("one", 10, 1, 0.2)], COST)
    assert len(run.finished_s) == 9
    assert run.finished_s["one"] == run.first_token_s["one"] < 2.0


def test_ids_that_come_again_are_other_jobs() -> None:
    machine = CheckedScheduler(lending())
    machine.start(COST)
    machine.turn(Submit(JobId("x"), 10, 1))
    machine.turn(resident(JobId("x")))
    machine.turn(machine.result(plans(machine.commands)[-1]))
    machine.turn(Submit(JobId("x"), 10, 2))
    assert machine.scheduler.lending.started_jobs == 0
