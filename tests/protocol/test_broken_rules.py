"""The explorer can fail: with a rule of PROTOCOL broken on purpose, it finds the way to what that rule is there for.

In brackets: the rule's number, and what of it is broken.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from services.domain.ids import JobId, PlanNumber
from services.domain.protocol import Ack, Applied, Done, Grown, Recalled, Refuse, Release, Resident, SchedulerToKv
from services.domain.ranked import Ranked
from services.kvmanager.machine import decisions as decide
from services.kvmanager.machine import moves
from services.kvmanager.machine.decisions import blocks_wanted
from services.kvmanager.machine.kv_job import KvJob, KvState
from services.kvmanager.machine.ledger import Ledger
from services.kvmanager.policies.kv_config import KvConfig
from services.scheduler.job import JobState
from services.scheduler.machine import moving
from services.scheduler.machine.iterations import Iterations
from services.scheduler.machine.recalls import Recalls
from services.scheduler.machine.releases import Releases
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import Event, FromKv
from services.scheduler.scheduler_config import PolicyName
from tests.fakes.fake_worker_tables import FakeWorkerTables
from tests.protocol.explorer import CounterexampleError, explore
from tests.protocol.instance import Instance, JobSize

MOST_STATES = 60_000
Patch = Callable[[pytest.MonkeyPatch], None]


def release_at_once(patch: pytest.MonkeyPatch) -> None:
    """[3 release-waits] an ended job is released while a plan still names it."""

    def release(self: Releases, now_s: float) -> list[SchedulerToKv]:
        ended, self.closing = self.closing, []
        for job in ended:
            self._forget(job, now_s)
        return [Release(job.job_id) for job in ended]

    patch.setattr(Releases, "release", release)


def consent_at_once(patch: pytest.MonkeyPatch) -> None:
    """[4 ack-waits] consent is given while a plan still names the job."""

    def acknowledge(self: Releases, now_s: float) -> list[SchedulerToKv]:
        draining, self.draining = self.draining, []
        for job in draining:
            job.move(JobState.OUT, now_s, "consented")
        return [Ack(job.job_id) for job in draining]

    patch.setattr(Releases, "acknowledge", acknowledge)
    patch.setattr(Scheduler, "check", lambda self: None)


def ask_again_at_once(patch: pytest.MonkeyPatch) -> None:
    """A refused job may be asked for again in the same turn."""
    original = moves.refused

    def refused(ledger: Ledger, job: KvJob) -> None:
        original(ledger, job)
        moves.unprotect(ledger, job)

    patch.setattr(moves, "refused", refused)


def refuse_the_planned(patch: pytest.MonkeyPatch) -> None:
    """[4 consent-only-delayed] a job is refused because a plan names it: asking again at once floods the link."""
    original = Releases.answer

    def answer(self: Releases, now_s: float) -> list[SchedulerToKv]:
        busy = [request for request in self._requests if self._jobs[request.job_id].in_flight]
        self._requests = [request for request in self._requests if request not in busy]
        return [*(Refuse(request.job_id) for request in busy), *original(self, now_s)]

    patch.setattr(Releases, "answer", answer)
    ask_again_at_once(patch)


def grown_is_resident(patch: pytest.MonkeyPatch) -> None:
    """[5 grown-is-not-resident] growth is announced though the job was asked for, and taken for residency."""
    take = Scheduler._from_kv
    refuse = moves._assigned

    def from_kv(self: Scheduler, message: Any, now_s: float) -> None:
        job = self.jobs.get(message.job_id)
        if isinstance(message, Grown) and job is not None and job.state is JobState.OUT:
            message = Resident(message.job_id, message.capacity_tokens, job.finished_tokens, job.stay_number)
        take(self, message, now_s)

    def assigned(ledger: Ledger, command: Any) -> None:
        was_asked = command.job.state is KvState.ASKED
        refuse(ledger, command)
        if was_asked:
            moves._announce_growth(ledger, command.job)

    patch.setattr(Scheduler, "_from_kv", from_kv)
    patch.setattr(moves, "_assigned", assigned)


def announce_before_applied(patch: pytest.MonkeyPatch) -> None:
    """[8 confirm] a capacity is announced before the worker knows of it."""
    original = moves.assign

    def assign(ledger: Ledger, job: KvJob, blocks: int) -> None:
        original(ledger, job, blocks)
        assert job.assign is not None
        moves._assigned(ledger, job.assign)

    patch.setattr(moves, "assign", assign)


def resident_before_uploaded(patch: pytest.MonkeyPatch) -> None:
    """[17 wait-own-upload] a plan starts while an upload of its job is unfinished."""
    original = moves.worker_said

    def said(ledger: Ledger, message: Applied | Done) -> None:
        command = ledger.pending.get(message.command_number)
        if command is not None and isinstance(message, Applied) and command.job.state is KvState.UPLOADING:
            message = Done(message.command_number)
        original(ledger, message)

    patch.setattr(moves, "worker_said", said)
    patch.setattr(FakeWorkerTables, "can_start", lambda self, entries: True)


def give_away_under_an_offload(patch: pytest.MonkeyPatch) -> None:
    """[9 offload-waits-done] blocks are free when the offload begins."""
    original = moves._evict

    def evict(ledger: Ledger, job: KvJob, keeps_kv: bool) -> None:
        original(ledger, job, keeps_kv)
        ledger.free_device(job, keep=0)

    patch.setattr(moves, "_evict", evict)


def give_away_under_a_released_copy(patch: pytest.MonkeyPatch) -> None:
    """[9 release-keeps-copies] blocks are free when their job is released, though a copy of them runs."""
    original = moves.release

    def release(ledger: Ledger, job: KvJob) -> None:
        original(ledger, job)
        if job.state is KvState.ZOMBIE:
            ledger.free_device(job, keep=0)

    patch.setattr(moves, "release", release)


def reclaim_from_anybody(patch: pytest.MonkeyPatch) -> None:
    """[13 rank] jobs that rank above the beneficiary are asked for too, refused, and asked for again."""
    patch.setattr(Ranked, "below", lambda self, rank, limit: list(self)[::-1])
    overtake(patch)
    ask_again_at_once(patch)


def forget_growth_at_refusal(patch: pytest.MonkeyPatch) -> None:
    """[14 refusal-announces] growth that was applied while the job was asked for is never announced."""

    def refused(ledger: Ledger, job: KvJob) -> None:
        ledger.enter(job, KvState.DEVICE)

    patch.setattr(moves, "refused", refused)


def overtake(patch: pytest.MonkeyPatch) -> None:
    """[12 no-overtaking] lower jobs get blocks that a higher one could use."""

    def serve_window(ledger: Ledger, window: list[KvJob], knobs: KvConfig, reserve: int) -> int:
        for job in window:
            wanted = blocks_wanted(ledger, job, knobs)
            if wanted == 0:
                continue
            if wanted <= ledger.device.free_count:
                decide._give(ledger, job, wanted, knobs, reserve)
            else:
                coming = ledger.device.free_count + ledger.leaving_blocks
                decide._reclaim(ledger, job, wanted - coming, knobs)
        return 0

    patch.setattr(decide, "_serve_window", serve_window)


def believe_old_residency(patch: pytest.MonkeyPatch) -> None:
    """[19 epoch-checked] messages of the KV manager about an earlier epoch of the worker are accepted."""
    original = Scheduler._take

    def take(self: Scheduler, event: Event, now_s: float) -> None:
        original(self, FromKv(self.epoch, event.message) if isinstance(event, FromKv) else event, now_s)

    patch.setattr(Scheduler, "_take", take)


def believe_an_earlier_stay(patch: pytest.MonkeyPatch) -> None:
    """[28 id-comes-again] what the KV manager says of a cancelled job is taken for another one with the same id."""
    original = Scheduler._from_kv

    def from_kv(self: Scheduler, message: Any, now_s: float) -> None:
        job = self.jobs.get(message.job_id)
        original(self, message if job is None else message._replace(stay_number=job.stay_number), now_s)

    patch.setattr(Scheduler, "_from_kv", from_kv)


def leave_at_once(patch: pytest.MonkeyPatch) -> None:
    """[27 leaves-when-out] a job leaves for another group though a plan names it, also one that is held (rule 41)."""

    def may_leave(scheduler: Scheduler, job_id: JobId) -> bool:
        job = scheduler.jobs.get(job_id)
        return job is not None and job.state in (JobState.OUT, JobState.RESIDENT)

    patch.setattr(moving, "may_leave", may_leave)


def plan_while_recalling(patch: pytest.MonkeyPatch) -> None:
    """[42 recall-waits] plans are made before the worker has said which of the earlier ones it gives back."""
    original = Iterations.may_plan

    def may_plan(self: Iterations, now_s: float) -> bool:
        recalled_from, self.recalled_from = self.recalled_from, None
        may = original(self, now_s)
        self.recalled_from = recalled_from
        return may

    patch.setattr(Iterations, "may_plan", may_plan)


def keep_the_positions_of_recalled_plans(patch: pytest.MonkeyPatch) -> None:
    """[42 recalled-is-undone] the jobs of a plan that came back are planned on as if it would run."""

    def undo_last(self: Iterations, now_s: float) -> PlanNumber:
        flight = self.unfinished.pop()
        for job in flight.jobs:
            job.in_flight -= 1
        return flight.plan_number

    patch.setattr(Iterations, "undo_last", undo_last)
    patch.setattr(Scheduler, "check", lambda self: None)


def recall_in_silence(patch: pytest.MonkeyPatch) -> None:
    """[42 recalled-is-told] the KV manager does not hear which plans will not run, and waits for their results."""
    original = Recalls.given_back

    def given_back(self: Recalls, first: PlanNumber | None, now_s: float) -> list[Recalled]:
        original(self, first, now_s)
        return []

    patch.setattr(Recalls, "given_back", given_back)


def small(**changes: Any) -> Instance:
    """Two jobs with a pool that holds only one of them."""
    return replace(Instance((JobSize(1, 3), JobSize(1, 3)), 3, 3, kv_policy="reactive"), **changes)


THREE_JOBS = Instance(
    (JobSize(1, 2), JobSize(1, 2), JobSize(2, 2)),
    4,
    4,
    policy=PolicyName.SRPT,
    kv_policy="reactive",
    max_batch=3,
    protected_plans=0,
)
"""Jobs just brought in are not protected here; otherwise they would run, and the loop would make tokens."""

RECALLED = Instance(
    (JobSize(1, 3), JobSize(1, 2)), 3, 2, plans_in_flight=3, plans_ahead=2, kv_policy="reactive", late_arrivals=True
)

BROKEN: list[tuple[Patch, Instance]] = [
    (release_at_once, small(early_ends=frozenset({0}))),
    (consent_at_once, small()),
    (refuse_the_planned, small()),
    (grown_is_resident, small()),
    (announce_before_applied, small()),
    (resident_before_uploaded, small()),
    (give_away_under_an_offload, small()),
    (give_away_under_a_released_copy, small(cancels=frozenset({0}))),
    (reclaim_from_anybody, small(max_batch=2)),
    (forget_growth_at_refusal, small()),
    (overtake, THREE_JOBS),
    (believe_old_residency, small(kills=1)),
    (leave_at_once, small(moves=1)),
    (leave_at_once, small(holds=1)),
    (plan_while_recalling, RECALLED),
    (keep_the_positions_of_recalled_plans, RECALLED),
    (recall_in_silence, RECALLED),
    (believe_an_earlier_stay, small(moves=2)),
    (believe_an_earlier_stay, small(cancels=frozenset({0}), again=frozenset({0}))),
]


@pytest.mark.parametrize(("break_it", "instance"), BROKEN, ids=[break_it.__name__ for break_it, _ in BROKEN])
def test_a_broken_rule_has_a_counterexample(
    break_it: Patch, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    with pytest.raises(CounterexampleError) as found:
        explore(instance, MOST_STATES)
    print(found.value)


SOUND = {"two jobs": small(max_batch=2), "three jobs": THREE_JOBS, "recalls": RECALLED}


@pytest.mark.parametrize("instance", SOUND.values(), ids=SOUND)
def test_the_same_instances_end_well_with_all_rules(instance: Instance) -> None:
    assert explore(instance, MOST_STATES).ends > 0
