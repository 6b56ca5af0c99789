"""`gittins`: how a job's key follows from its arrival, its prefill and what was learnt of lengths."""

from dataclasses import replace
from math import log
from typing import NamedTuple

import pytest

from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.domain.protocol import Ack, Order, OrderChange, Rank
from services.scheduler.machine.scheduler_events import Cancel, Submit
from services.scheduler.policies.gittins import (
    GREAT_SPREAD,
    LAST_UNITS,
    MOST_STRETCH,
    ORDERED_LEVEL,
    RESIDENT_FACTOR,
    STRETCH,
    TRUSTED_JOBS,
    Gittins,
)
from services.scheduler.policies.length_classes import PROMPT_CLASSES, KeyedClasses
from services.scheduler.policies.length_distribution import EDGES
from services.scheduler.policies.scheduling_policy import UNKNOWN_WORK
from services.scheduler.scheduler_config import LengthPredictor, PolicyName, SchedulerConfig
from tests.builders.cost_profiles import proportional_cost
from tests.scheduler.machine.checked_scheduler import CheckedScheduler, ended, entries, plans, told
from tests.scheduler.machine.events_from_kv import A, B, C, reclaim, resident
from tests.scheduler.machine.served_trace import Arrival, ServedTrace, serve_trace

COST = proportional_cost(0.001, 0.02)
"""A prefill of n tokens takes n ms, an iteration of decodes 20 ms."""


def gittins(**knobs: object) -> SchedulerConfig:
    """One job at a time, no loans."""
    alone = {"max_batch": 1, "plans_in_flight": 1, "silence_limit_s": None, "first_token_limit_s": None} | knobs
    return SchedulerConfig(policy=PolicyName.GITTINS, **alone)  # type: ignore[arg-type]


class Kind(NamedTuple):
    """What tells a job from another."""

    max_tokens: int
    client_number: int


def machine_of(**knobs: object) -> CheckedScheduler:
    machine = CheckedScheduler(gittins(**knobs))
    machine.start(COST)
    return machine


def rank_of(machine: CheckedScheduler, job_id: JobId) -> Rank:
    """Where the policy wants the job."""
    return machine.scheduler.jobs[job_id].place


def policy_of(machine: CheckedScheduler) -> Gittins:
    policy = machine.scheduler.policy
    assert isinstance(policy, Gittins)
    return policy


def orders(machine: CheckedScheduler) -> list[OrderChange]:
    """All changes of the order that the KV manager was told."""
    return [change for message in told(machine.commands) if isinstance(message, Order) for change in message.changes]


def taught(lengths: list[int], jobs: int = 2 * int(TRUSTED_JOBS)) -> list[Arrival]:
    """Jobs far apart that only teach the policy what lengths there are."""
    return [Arrival(f"t{number}", 10, lengths[number % len(lengths)], 10.0 * number) for number in range(jobs)]


def test_without_data_jobs_of_equal_prompts_run_in_the_order_of_arrival() -> None:
    arrivals = [Arrival(name, 100, 30, 0.01 * number) for number, name in enumerate("abcdef")]
    finished_s = serve_trace(gittins(), arrivals, COST).finished_s
    assert sorted(finished_s, key=finished_s.__getitem__) == list("abcdef")


def after(trace: list[Arrival], *jobs: Arrival) -> list[Arrival]:
    """The jobs, their arrivals counted from a while after the last one of the trace."""
    begin_s = trace[-1].arrival_s + 100.0
    return [*trace, *(replace(job, arrival_s=begin_s + job.arrival_s) for job in jobs)]


def test_a_short_prefill_overtakes_a_long_one_that_came_shortly_before_it() -> None:
    jobs = (Arrival("first", 100, 50), Arrival("long", 3000, 10, 0.1), Arrival("short", 10, 10, 0.2))
    finished_s = serve_trace(gittins(), after(taught([30]), *jobs), COST).finished_s
    assert list(finished_s)[-3:] == ["first", "short", "long"]


def test_as_long_as_few_jobs_have_completed_nobody_overtakes() -> None:
    jobs = (Arrival("first", 100, 50), Arrival("long", 3000, 10, 0.1), Arrival("short", 10, 10, 0.2))
    assert list(serve_trace(gittins(), list(jobs), COST).finished_s) == ["first", "long", "short"]


def test_nobody_is_overtaken_by_jobs_that_come_much_later_however_short_they_are() -> None:
    """Short jobs come without end, each ten milliseconds of work, a hundred a second."""
    stream = [Arrival(f"s{number}", 10, 1, 0.01 * number) for number in range(1200)]
    run = serve_trace(gittins(), [Arrival("long", 3000, 3, 0.1), *stream], COST)
    assert run.finished_s["long"] < 11.0


def machine_after(trace: list[Arrival], **knobs: object) -> CheckedScheduler:
    """A machine that has served these jobs, and has none left."""
    serving = ServedTrace(gittins(**knobs), trace, COST)
    while serving.iterate():
        pass
    return serving.machine


def machine_that_learnt(lengths: list[int]) -> CheckedScheduler:
    """A machine that has served jobs of these lengths, and has none left."""
    return machine_after(taught(lengths))


HEAVY = [*[1] * 70, 700, *[1] * 70, *[20] * 9]
"""One job in 150 is most of the work."""


def jumps_of_a_job(lengths: list[int], learnt_from: int) -> dict[int, float]:
    """How far a job goes behind when it has made so many tokens, in units of backlog and a long job's time: at each
    edge up to 64.
    """
    machine = machine_after(taught(lengths, learnt_from))
    policy = policy_of(machine)
    machine.turn(Submit(A, 10, 100))
    (plan,) = plans(machine.turn(resident(A, 200)))
    jumps: dict[int, float] = {}
    for tokens in range(1, 65):
        before = rank_of(machine, A).key
        turn = machine.turn(machine.result(plan))
        if (behind_s := rank_of(machine, A).key - before) > 0.0:
            jumps[tokens] = behind_s / policy.unit_s
        (plan,) = plans(turn)
    return jumps


def test_where_a_few_jobs_are_most_of_the_work_who_outlasts_nearly_all_goes_far_behind() -> None:
    jumps = jumps_of_a_job(HEAVY, 600)
    (border,) = [tokens for tokens, units in jumps.items() if units > LAST_UNITS / 2]
    assert 20 < border <= 64
    assert jumps[border] > LAST_UNITS


def stretch_of(policy: Gittins) -> float:
    policy.calibrate(COST, 4096)
    return policy.behind_s(1.0) / policy.unit_s


def test_there_the_order_is_stretched_as_far_as_it_may_once_the_queue_is_deep() -> None:
    machine = machine_after(taught(HEAVY, 570))
    policy = policy_of(machine)
    assert stretch_of(policy) == pytest.approx(STRETCH)
    assert policy.work.spread > GREAT_SPREAD
    machine.turn(*(Submit(JobId(f"q{number}"), 10, 100) for number in range(20)))
    assert stretch_of(policy) == pytest.approx(MOST_STRETCH)


def test_elsewhere_it_is_not_however_deep_the_queue_is() -> None:
    machine = machine_that_learnt([30, 45])
    machine.turn(*(Submit(JobId(f"q{number}"), 10, 100) for number in range(100)))
    assert stretch_of(policy_of(machine)) == pytest.approx(STRETCH)


def test_elsewhere_the_longest_jobs_go_behind_like_others() -> None:
    assert max(jumps_of_a_job([30, 45], 128).values(), default=0.0) < 1.0


def test_with_a_longer_backlog_the_same_job_overtakes_jobs_that_came_longer_before_it() -> None:
    apart_s = []
    for backlog in (1, 100):
        machine = machine_that_learnt([30])
        machine.turn(*(Submit(JobId(f"b{number}"), 1000, 10) for number in range(backlog)))
        machine.turn(Submit(A, 10, 10))
        machine.turn(Submit(B, 3000, 10))
        apart_s.append(rank_of(machine, B).key - rank_of(machine, A).key)
    assert apart_s[1] > 10 * apart_s[0] > 0


def test_what_was_learnt_of_lengths_makes_a_job_that_has_run_long_better_or_worse() -> None:
    """Regular lengths: whoever has run long is near its end. Heavy tails: whoever has run long goes on for longer."""
    for lengths, stays in (([60], True), ([1, 1, 1, 2, 2, 2, 4, 4, 400], False)):
        arrivals = after(taught(lengths), Arrival("old", 10, 60), Arrival("new", 10, 60, 0.9))
        last_s = arrivals[-2].arrival_s
        finished_s = serve_trace(gittins(), arrivals, COST, most_iterations=100_000).finished_s
        assert (finished_s["old"] - last_s < 1.3) is stays


def test_a_job_keeps_its_place_until_it_enters_the_next_bucket_of_lengths() -> None:
    serving = ServedTrace(gittins(), [Arrival("a", 10, 40)], COST)
    keys: dict[int, float] = {}
    while serving.iterate():
        job = serving.machine.scheduler.jobs.get(A)
        if job is not None:
            keys[job.output_tokens] = job.place.key
    moved = [made for made in sorted(keys)[1:] if keys[made] != keys[made - 1]]
    assert set(moved) <= set(EDGES)
    assert len(keys) > len(moved) + 20


@pytest.mark.parametrize(
    ("predictor", "brief", "wordy", "foreseen"),
    [
        (LengthPredictor.OFF, Kind(30, 1), Kind(30, 2), True),
        (LengthPredictor.OFF, Kind(30, 0), Kind(30, 0), False),
        (LengthPredictor.OFF, Kind(4, 0), Kind(60, 0), False),
        (LengthPredictor.ONLINE, Kind(4, 0), Kind(60, 0), True),
        (LengthPredictor.ONLINE, Kind(4, 1), Kind(60, 2), True),
    ],
)
def test_a_job_is_ahead_of_another_if_jobs_like_it_were_shorter(
    predictor: LengthPredictor, brief: Kind, wordy: Kind, foreseen: bool
) -> None:
    trace = [
        replace(arrival, client_number=(brief if arrival.output_tokens == 4 else wordy).client_number)
        for arrival in taught([4, 60])
    ]
    machine = machine_after(trace, length_predictor=predictor)
    machine.turn(
        Submit(A, 10, wordy.max_tokens, client_number=wordy.client_number),
        Submit(B, 10, brief.max_tokens, client_number=brief.client_number),
    )
    ahead_s = rank_of(machine, A).key - rank_of(machine, B).key
    assert (ahead_s > policy_of(machine).behind_s(log(1.5))) is foreseen


def test_of_more_classes_than_are_kept_those_stay_that_jobs_joined_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.scheduler.policies.gittins.MOST_CLASSES", 2)
    machine = machine_of()
    for client_number in (1, 2, 1, 3):
        machine.turn(Submit(JobId(f"{len(machine.turns)}"), 1, 10, client_number=client_number))
    *_, tables, _ = policy_of(machine).state_key()
    assert isinstance(tables, tuple)
    assert [number for number, _ in tables] == [PROMPT_CLASSES, 3 * PROMPT_CLASSES]
    machine.turn(*(Cancel(job_id, EndReason.CANCELLED) for job_id in list(machine.scheduler.jobs)))


def test_all_ranks_are_behind_the_level_of_loans() -> None:
    machine = machine_of()
    machine.turn(Submit(A, 10, 10))
    assert rank_of(machine, A).level == ORDERED_LEVEL == 1


def machine_with_a_resident() -> CheckedScheduler:
    """It learnt; A, B and C have come at the same time, and A has the device and has begun."""
    machine = machine_that_learnt([30])
    machine.turn(Submit(A, 10, 100), Submit(B, 10, 100), Submit(C, 10, 100))
    (plan,) = plans(machine.turn(resident(A)))
    machine.turn(machine.result(plan))
    return machine


def swap_out(machine: CheckedScheduler, job_id: JobId) -> None:
    """The KV manager asks for the blocks of a running job and gets them."""
    machine.turn(reclaim(job_id, None))
    assert Ack(job_id) in told(machine.turn(machine.result(plans(machine.commands)[-1])))
    machine.turn()


def test_a_job_that_has_the_device_is_ahead_by_the_factor_and_loses_that_with_the_device() -> None:
    machine = machine_with_a_resident()
    ahead = rank_of(machine, A)
    assert ahead < rank_of(machine, B)
    policy = policy_of(machine)
    assert policy.margin_s == policy.behind_s(log(RESIDENT_FACTOR))
    swap_out(machine, A)
    factor_s = policy.behind_s(log(RESIDENT_FACTOR))
    assert rank_of(machine, A).key - ahead.key == pytest.approx(factor_s, rel=0.05)
    assert rank_of(machine, A) in [change.rank for change in orders(machine)]


def test_where_moves_slow_the_worker_down_jobs_keep_a_device_that_has_no_room_for_longer() -> None:
    machine = machine_with_a_resident()
    policy = policy_of(machine)
    policy.paced(2.0)
    factor_s = policy.margin_s
    swap_out(machine, A)
    waiting = rank_of(machine, B)
    (plan,) = plans(machine.turn(resident(B)))
    machine.turn(machine.result(plan))
    assert policy.margin_s > 2 * factor_s
    assert waiting.key - rank_of(machine, B).key == pytest.approx(policy.margin_s, rel=0.1)
    policy.paced(1.0)
    assert policy.margin_s == policy.behind_s(log(RESIDENT_FACTOR))
    policy.paced(2.0)
    machine.turn(Cancel(A, EndReason.CANCELLED))
    assert policy.margin_s == policy.behind_s(log(RESIDENT_FACTOR))


def test_the_shape_of_the_work_is_learnt_from_the_jobs_that_were_served() -> None:
    fresh = policy_of(machine_of())
    assert fresh.work == UNKNOWN_WORK
    alike = policy_of(machine_that_learnt([100, 110])).work
    apart = policy_of(machine_that_learnt([2, 2, 2, 2, 2, 2, 2, 1000])).work.spread
    assert alike.spread < 0.1
    # A prefill takes 10 ms, 105 tokens of 20 ms each take 2.1 s.
    assert alike.prefill_share == pytest.approx(0.01 / 2.11, rel=0.3)
    # One in eight is 500 times as long: about seven, by buckets and with jobs that still run somewhat more.
    assert 5.0 < apart < 15.0


def test_who_came_before_the_first_jobs_ended_is_not_overtaken_by_who_came_after() -> None:
    """Equal jobs. As long as none has ended, they are expected to run on for about as long as they have run: not so
    long that all who come later would seem short beside them.
    """
    jobs = [Arrival(f"j{number:03}", 10, 200, 0.05 * number) for number in range(160)]
    serving = ServedTrace(gittins(max_batch=32), jobs, COST)
    most_s = 0.0
    while serving.iterate():
        most_s = max(most_s, policy_of(serving.machine).backlog_s)
    began = sorted(serving.run.first_token_s, key=lambda job: serving.run.first_token_s[job])
    assert max(abs(place - int(job[1:])) for place, job in enumerate(began)) < 8
    # A token is a 32nd of an iteration of 20 ms, a prefill takes 10 ms.
    assert most_s < 2 * 160 * (200 * 0.02 / 32 + 0.01)


def test_the_backlog_is_the_expected_work_of_the_living_jobs() -> None:
    machine = machine_of()
    machine.turn(Submit(A, 1000, 10), Submit(B, 2000, 10), Submit(C, 10, 10))
    jobs = machine.scheduler.jobs
    policy = policy_of(machine)
    assert policy.backlog_s == pytest.approx(sum(job.expected_s for job in jobs.values()))
    assert jobs[B].expected_s - jobs[A].expected_s == pytest.approx(1.0, rel=1e-3)
    machine.turn(Cancel(A, EndReason.CANCELLED), Cancel(B, EndReason.CANCELLED), Cancel(C, EndReason.CANCELLED))
    assert policy.backlog_s == pytest.approx(0.0, abs=1e-9)


def test_a_job_that_was_given_up_teaches_that_it_ran_so_long_and_not_that_it_ended() -> None:
    machine = machine_of()
    before = policy_of(machine).state_key()
    machine.turn(Submit(A, 10, 100))
    (plan,) = plans(machine.turn(resident(A)))
    assert entries(plan) == [(A, 0, 10)]
    machine.turn(machine.result(plan))  # its first token: it goes on, past the first bucket
    assert ended(machine.turn(Cancel(A, EndReason.CANCELLED))) == [(A, EndReason.CANCELLED)]
    assert policy_of(machine).hazards()[0] < 1 / 128
    assert policy_of(machine).state_key() != before


@pytest.mark.parametrize(("prompt_tokens", "expected"), [(1, 0), (3, 0), (4, 1), (15, 1), (16, 2), (1000, 4)])
def test_prompts_are_classed_in_factors_of_four_of_each_client(prompt_tokens: int, expected: int) -> None:
    machine = machine_of()
    machine.turn(Submit(A, prompt_tokens, 1), Submit(B, prompt_tokens, 1, client_number=3))
    jobs = machine.scheduler.jobs
    classes = KeyedClasses()
    assert classes.class_of(jobs[A]) == expected < PROMPT_CLASSES
    assert classes.class_of(jobs[B]) == expected + 3 * PROMPT_CLASSES
