"""The router: before the machines of several groups it admits jobs, and says which group gets which. Pure.

A job goes to the group that is predicted to end it first (group_forecast.py), by the work that ranks before it there.
It moves to another one, once more by that forecast, in two cases: its group has no worker any more, or another group
has free places in its batch while this job waits behind a full one and nothing of it is computed. A group never gives
away what it has computed, so a job is always in one group.

Output lengths are learnt from the jobs of all groups (length_distribution.py), under SRPT they are known. What the
router knows of the groups' jobs it takes from their machines' commands: ranks from Order and Jobs, tokens from Emit.
With one group there is nothing to choose, and it only admits.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.domain.protocol import IterationResult, Jobs, Order, OrderChange, Rank
from services.domain.submission import ServingLimits
from services.scheduler.machine.admission import Admission
from services.scheduler.machine.moving import NO_LEVEL, foresee, may_leave
from services.scheduler.machine.scheduler import NO_WORKER, Scheduler
from services.scheduler.machine.scheduler_events import (
    Command,
    Emit,
    End,
    Event,
    MovingJob,
    Reject,
    SendPlan,
    Submit,
    TakeIn,
    ToKv,
    WorkerJoined,
)
from services.scheduler.policies.length_distribution import (
    EDGES,
    FadeClock,
    LengthDistribution,
    bucket_entered,
    end_in_bucket,
    pass_buckets,
)
from services.scheduler.routing.group_forecast import GroupForecast
from services.scheduler.routing.work_order import RoutedJob
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig

MOST_MOVES = 128
"""Jobs that move in one turn; the others follow in the next turns."""
MOST_LOOKS = 64
"""Waiting jobs that are examined for a group with free places."""
MOST_MOVES_OF_A_JOB = 4
"""How often a job may move although its group has a worker."""
MOVING_GAIN = 0.9
"""A job moves between living groups if it ends in this share of the time."""


class Resumed(NamedTuple):
    """What a job has that another scheduler began (PROTOCOL 37): its output so far, and when it arrived, on the clock
    of `now_s`.
    """

    output_tokens: int
    arrived_s: float


class Routed(NamedTuple):
    """An admitted job, for the machine of its group."""

    group: int
    submit: Submit | TakeIn


class JobMove(NamedTuple):
    """A job's move, to be carried out in this turn: Withdraw there, TakeIn here."""

    job_id: JobId
    from_group: int
    to_group: int


class Router:
    """Routes the jobs of these machines, by group number."""

    def __init__(self, config: SchedulerConfig, machines: Mapping[int, Scheduler]) -> None:
        self.jobs: dict[JobId, RoutedJob] = {}
        """All living jobs."""
        self.admission = Admission(config)
        """The bounds for all groups together."""
        self.rejections: dict[str, int] = {}
        """Jobs refused, by reason."""
        self.forecasts = {number: GroupForecast(number, config.max_batch) for number in machines}
        self._machines = machines
        self._chooses = len(machines) > 1
        self._knows_lengths = config.policy is PolicyName.SRPT
        self._lengths = LengthDistribution()
        self._fade_clock = FadeClock()
        self._arrivals = 0
        self._nothing_moves: dict[int, tuple[int, ...]] = {}
        """By group without a worker: the ready groups into which none of its jobs fits."""

    # --- admission and the choice of a group -------------------------------------------------------------------------

    def submit(self, submit: Submit, now_s: float, resumed: Resumed | None = None) -> Routed | Reject:
        """Admit a job and choose its group, or say why it is refused."""
        refusal = self.admission.refusal(submit)
        if refusal is not None:
            self.rejections[refusal.kind.value] = self.rejections.get(refusal.kind.value, 0) + 1
            return refusal
        if elapsed_s := self._fade_clock.due_s(now_s):
            self._lengths.fade(elapsed_s)
        number = self._arrivals
        self._arrivals += 1
        output_tokens, arrived_s = (0, now_s) if resumed is None else resumed
        job = RoutedJob(submit.job_id, number, submit.prompt_tokens, submit.max_tokens, arrived_s, submit.client_number)
        job.known_tokens += output_tokens
        job.bucket = bucket_entered(output_tokens)
        job.bucket_end = EDGES[job.bucket + 1]
        job.rest_tokens = self._expected_rest(job)
        self.jobs[submit.job_id] = job
        self.admission.enter(submit.prompt_tokens, submit.max_tokens)
        chosen = self._choose(job, self._ready() or list(self.forecasts.values()))
        if chosen is None:
            chosen = self._choose(job, list(self.forecasts.values()))
        assert chosen is not None, "an admitted job fits one group at least"
        self._enter(job, *chosen)
        if resumed is None:
            return Routed(job.group, submit._replace(arrival_number=number))
        return Routed(job.group, TakeIn(_taken_up(job, submit, now_s)))

    @property
    def limits(self) -> ServingLimits:
        """What a job must meet: the limits of the group with the most room, of all that have had a worker."""
        largest = max(self.forecasts.values(), key=lambda one: one.most_tokens)
        return ServingLimits(largest.most_tokens > 0, largest.max_model_len, largest.pool_tokens)

    def group_of(self, job_id: JobId) -> int | None:
        """The group that has the job; None if it has ended or was never admitted."""
        job = self.jobs.get(job_id)
        return None if job is None else job.group

    def _choose(self, job: RoutedJob, among: Sequence[GroupForecast]) -> tuple[GroupForecast, Rank] | None:
        """The group with the earliest predicted end, and the job's rank there; None if it fits none of them."""
        fitting = [one for one in among if job.whole_tokens <= one.most_tokens]
        if len(fitting) <= 1 and not self._chooses:
            return (fitting[0], job.rank) if fitting else None
        places = [(one, self._foreseen(one, job)) for one in fitting]
        return min(
            places,
            key=lambda place: (place[0].finish_s(job, place[1]), len(place[0].order), place[0].number),
            default=None,
        )

    def _foreseen(self, forecast: GroupForecast, job: RoutedJob) -> Rank:
        machine = self._machines[forecast.number]
        if forecast.number == job.group or machine.newest_epoch == NO_WORKER:
            return job.rank  # no worker has joined before this turn: the policy can't tell yet
        level = NO_LEVEL if job.group < 0 else job.rank.level
        moving = MovingJob(
            job.job_id, job.arrival_number, job.prompt_tokens, job.known_tokens, 0, job.max_tokens, job.arrived_s,
            job.arrived_s, None, job.client_number, level, 0.0, False, 0, None, None, None,
        )  # fmt: skip
        return foresee(machine, moving)

    def _enter(self, job: RoutedJob, forecast: GroupForecast, rank: Rank) -> None:
        """The job is in this group from now on, with nothing computed."""
        if job.part is not None:
            self.forecasts[job.group].order.remove(job)
        job.group, job.rank = forecast.number, rank
        job.prefill_tokens = job.known_tokens
        if self._chooses:
            forecast.order.add(job)

    def _ready(self) -> list[GroupForecast]:
        return [one for number, one in self.forecasts.items() if self._machines[number].ready()]

    # --- what the machines say ---------------------------------------------------------------------------------------

    def heard(self, group: int, events: Sequence[Event], commands: Sequence[Command], now_s: float) -> None:
        """Take a turn of a group's machine: what it was given, and what it answered."""
        forecast = self.forecasts[group]
        for event in events:
            if isinstance(event, IterationResult):
                forecast.took(event.plan_number, event.duration_s)
        for command in commands:
            if isinstance(command, End):
                self._ended(command.job_id, now_s, command.reason)
            elif isinstance(command, Reject):
                self._ended(command.job_id, now_s, None)
            elif not self._chooses:
                continue
            elif isinstance(command, Emit):
                self._made_token(self.jobs[command.job_id])
            elif isinstance(command, SendPlan):
                forecast.planned(command.plan_number, command.entries)
            elif isinstance(command, ToKv):
                if isinstance(command.message, Order):
                    self._reorder(forecast, command.message.changes)
                elif isinstance(command.message, Jobs):
                    self._reorder(forecast, command.message.order)

    def joined(self, group: int, event: WorkerJoined) -> None:
        """A worker is about to join the group; called before its machine's turn, so that jobs are admitted in it."""
        forecast = self.forecasts[group]
        measured = [one.ratio for one in self.forecasts.values() if one is not forecast and one.is_measured]
        ratio = sum(measured) / len(measured) if measured else 1.0
        forecast.joined(event.profile, event.device_pool_tokens, event.max_model_len, event.stage_count, ratio)
        forecast.order.restart()
        limits = self.limits
        self.admission.set_limits(limits.max_model_len, limits.device_pool_tokens)

    def _reorder(self, forecast: GroupForecast, changes: Sequence[OrderChange]) -> None:
        for job_id, rank in changes:
            job = self.jobs.get(job_id)
            if job is not None and job.group == forecast.number:
                forecast.order.move(job, rank)

    def _made_token(self, job: RoutedJob) -> None:
        made = job.output_tokens + 1
        left = job.max_tokens - made
        if self._knows_lengths:
            rest_tokens: float = left
        elif made < job.bucket_end:
            rest_tokens = min(max(job.rest_tokens - 1.0, 1.0), left)
        else:
            job.bucket = pass_buckets(job.bucket, made, self._lengths)
            job.bucket_end = EDGES[job.bucket + 1]
            rest_tokens = min(self._lengths.mean_rest_tokens(job.bucket), left)
        self.forecasts[job.group].order.made_token(job, rest_tokens)

    def _expected_rest(self, job: RoutedJob) -> float:
        left = job.max_tokens - job.output_tokens
        return left if self._knows_lengths else min(self._lengths.mean_rest_tokens(job.bucket), left)

    def _ended(self, job_id: JobId, now_s: float, reason: EndReason | None) -> None:
        """The job ended for this reason, or (None) its machine refused it."""
        job = self.jobs.pop(job_id)
        self.admission.leave(job.prompt_tokens, job.max_tokens, now_s)
        if not self._chooses:
            return
        self.forecasts[job.group].order.remove(job)
        if reason is not None and reason.completes:
            end_in_bucket(job.bucket, job.output_tokens, self._lengths)

    # --- moves -------------------------------------------------------------------------------------------------------

    def moves(self) -> list[JobMove]:
        """The jobs that move now, MOST_MOVES at most: then more may follow. Called after the machines' turns."""
        if not self._chooses:
            return []
        ready = self._ready()
        moves: list[JobMove] = []
        if not ready:
            return moves
        names = tuple(one.number for one in ready)
        for forecast in self.forecasts.values():
            if forecast.number in names:
                self._nothing_moves.pop(forecast.number, None)
            elif len(forecast.order) and self._nothing_moves.get(forecast.number) != names:
                moves += self._evacuated(forecast, ready, MOST_MOVES - len(moves))
                if not moves:
                    self._nothing_moves[forecast.number] = names
        for forecast in ready:
            room = min(forecast.batch_slots - len(forecast.order), MOST_MOVES - len(moves))
            if room > 0:
                moves += self._taken_over(forecast, ready, room)
        return moves

    def _evacuated(self, dead: GroupForecast, ready: Sequence[GroupForecast], most: int) -> list[JobMove]:
        """The best jobs of a group without a worker, each to the group that will end it first."""
        widest = max(one.most_tokens for one in ready)
        machine = self._machines[dead.number]
        fitting = (job for job in dead.order if job.whole_tokens <= widest and may_leave(machine, job.job_id))
        moves: list[JobMove] = []
        for job in list(islice(fitting, most)):
            chosen = self._choose(job, ready)
            assert chosen is not None
            moves.append(JobMove(job.job_id, dead.number, chosen[0].number))
            self._enter(job, *chosen)
        return moves

    def _taken_over(self, taker: GroupForecast, ready: Sequence[GroupForecast], room: int) -> list[JobMove]:
        """Waiting jobs for a group with room in its batch, from the group with the largest backlog that has some."""
        givers = [
            one for one in ready if one is not taker and one.order.whole.unstarted and len(one.order) > one.batch_slots
        ]
        moves: list[JobMove] = []
        for giver in sorted(givers, key=lambda one: (-one.backlog_s, one.number)):
            machine = self._machines[giver.number]
            for job in giver.order.after(giver.batch_slots, MOST_LOOKS):
                if len(moves) == room:
                    return moves
                waits = job.prefill_tokens and job.moves < MOST_MOVES_OF_A_JOB and job.whole_tokens <= taker.most_tokens
                if not waits or not may_leave(machine, job.job_id):
                    continue
                rank = self._foreseen(taker, job)
                if taker.finish_s(job, rank) > MOVING_GAIN * giver.finish_s(job, job.rank):
                    break
                moves.append(JobMove(job.job_id, giver.number, taker.number))
                job.moves += 1
                self._enter(job, taker, rank)
        return moves

    def check(self) -> None:
        """Assert that the router and the machines agree. O(jobs), for tests."""
        for number, forecast in self.forecasts.items():
            forecast.order.check()
            here = {job.job_id for job in self.jobs.values() if job.group == number}
            alive = self._machines[number].ranking.by_rank()
            assert here == {job.job_id for job in alive}, f"group {number} has other jobs than the router thinks"
            assert not self._chooses or here == {job.job_id for job in forecast.order}
        assert self.admission.queued_jobs == len(self.jobs)


def _taken_up(job: RoutedJob, submit: Submit, now_s: float) -> MovingJob:
    """The job as its machine takes it in. Its KV was another scheduler's. When that one first ran it nobody knows any
    more, so a job with output counts as first run now.
    """
    began_s = now_s if job.output_tokens else None
    return MovingJob(
        job_id=job.job_id,
        arrival_number=job.arrival_number,
        prompt_tokens=job.prompt_tokens,
        known_tokens=job.known_tokens,
        finished_tokens=job.known_tokens - 1 if job.output_tokens else 0,
        max_tokens=job.max_tokens,
        arrived_s=job.arrived_s,
        waiting_since_s=now_s,
        deadline_s=submit.deadline_s,
        client_number=job.client_number,
        level=NO_LEVEL,
        service_s=0.0,
        promoted=False,
        preemptions=0,
        first_planned_s=began_s,
        first_token_s=began_s,
        last_token_s=began_s,
        is_guided=submit.is_guided,
    )
