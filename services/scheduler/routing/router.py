"""The router: before the machines of several groups it admits jobs, and says which group gets which. Pure.

A job goes to the group that is predicted to end it first (group_forecast.py), by the work that ranks before it there.
It moves to another one, once more by that forecast, in three cases: its group has no worker any more; its worker is
about to end (draining.py); or another group has free places in its batch while this job waits behind a full one and
nothing of it is computed. A job is always in one group. Groups come and go; a job for which there is none waits for
the next one (waiting_room.py).

Output lengths are learnt from the jobs of all groups (length_distribution.py), under SRPT they are known. What the
router knows of the groups' jobs it takes from their machines' commands: ranks from Order and Jobs, tokens from Emit.
With one group there is nothing to choose, and it only admits.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.domain.protocol import IterationResult, Jobs, Order, OrderChange, PlansGivenBack, Rank
from services.domain.submission import ServingLimits
from services.scheduler.machine.admission import Admission
from services.scheduler.machine.moving import NO_LEVEL, foresee
from services.scheduler.machine.scheduler import NO_WORKER, Scheduler
from services.scheduler.machine.scheduler_events import (
    Command,
    Emit,
    End,
    Event,
    Hold,
    MovingJob,
    Reject,
    SendPlan,
    Submit,
    TakeIn,
    ToKv,
    WorkerJoined,
)
from services.scheduler.policies.batch_limit import BatchLimit
from services.scheduler.policies.length_distribution import (
    EDGES,
    FadeClock,
    LengthDistribution,
    bucket_entered,
    end_in_bucket,
    pass_buckets,
)
from services.scheduler.routing.draining import GroupDrain, decide_holds
from services.scheduler.routing.group_forecast import GroupForecast
from services.scheduler.routing.job_moves import JobMove, evacuated, let_go, taken_over, taken_up
from services.scheduler.routing.waiting_room import WaitingRoom
from services.scheduler.routing.work_order import RoutedJob, WorkOrder
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig

NO_GROUP = -1
"""Of a job that waits for one."""
MOST_MOVES = 128
"""Jobs that move in one turn; the others follow in the next turns."""


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


class Router:
    """Routes the jobs of these machines, by group number. `max_model_len`: the model's context, up to which jobs are
    admitted before the first worker has joined; None: none are.
    """

    def __init__(
        self, config: SchedulerConfig, machines: Mapping[int, Scheduler], max_model_len: int | None = None
    ) -> None:
        self.jobs: dict[JobId, RoutedJob] = {}
        """All living jobs."""
        self.room = WaitingRoom()
        """Those without a group."""
        self.limits = ServingLimits(max_model_len is not None, max_model_len or 0, max_model_len or 0)
        """What a job must meet: the limits of the group with the most room, of the last ones that had a worker."""
        self._batch = BatchLimit(config)
        self.admission = Admission(config, self._batch)
        if max_model_len is not None:
            self.admission.set_limits(max_model_len, max_model_len)
        """The bounds for all groups together."""
        self.rejections: dict[str, int] = {}
        """Jobs refused, by reason."""
        self.forecasts = {number: GroupForecast(number, machine.batch) for number, machine in machines.items()}
        self.machines = dict(machines)
        self._drains: dict[int, GroupDrain] = {}
        """Of the groups whose workers are about to end."""
        self._to_place: deque[JobId] = deque()
        """Jobs without a group that are to be looked at, because a group has come."""
        self._chooses = len(machines) > 1
        self._knows_lengths = config.policy is PolicyName.SRPT
        self._lengths = LengthDistribution()
        self._fade_clock = FadeClock()
        self._arrivals = 0
        self._nothing_moves: dict[int, tuple[int, ...]] = {}
        """By group without a worker: the ready groups into which none of its jobs fits."""

    # --- groups ------------------------------------------------------------------------------------------------------

    def add_group(self, number: int, machine: Scheduler) -> None:
        """A group begins, with a new machine."""
        self.machines[number] = machine
        self.forecasts[number] = GroupForecast(number, machine.batch)
        self._count_groups()

    def remove_group(self, number: int) -> None:
        """Forget a group. It must have no job."""
        del self.machines[number], self.forecasts[number]
        self._drains.pop(number, None)
        self._nothing_moves.pop(number, None)
        self._count_groups()
        self._set_limits()

    def drain(self, number: int, limit_s: float, now_s: float) -> None:
        """The group's worker was told to end, and will in `limit_s` seconds."""
        self._drains[number] = GroupDrain(limit_s, now_s)

    def next_s(self) -> float | None:
        """When a deadline of a job without a group is next due, or it is to be looked what a draining group holds."""
        times = (self.room.next_s(), *(drain.look_s for drain in self._drains.values()))
        return min((time_s for time_s in times if time_s is not None), default=None)

    def stopped(self, number: int) -> None:
        """The group has lost its worker."""
        self._drains.pop(number, None)

    def _count_groups(self) -> None:
        """Begin to keep the orders of the groups when there are two of them, and cease when one is left."""
        chooses = len(self.forecasts) > 1
        if chooses is self._chooses:
            return
        self._chooses = chooses
        for forecast in self.forecasts.values():
            forecast.order = WorkOrder()
        for job in self.jobs.values():
            job.part = None
            if chooses and job.group != NO_GROUP:
                self._catch_up(job)
                self.forecasts[job.group].order.add(job)

    def _catch_up(self, job: RoutedJob) -> None:
        """Take from the job's machine what was not followed so far. It may not have heard of the job yet."""
        known = self.machines[job.group].jobs.get(job.job_id)
        if known is not None:
            job.catch_up(known.rank, known.known_tokens, 0 if known.finished_tokens else known.known_tokens)
            job.rest_tokens = self._expected_rest(job)

    def _set_limits(self) -> None:
        largest = max(self.forecasts.values(), key=lambda one: one.most_tokens, default=None)
        if largest is not None and largest.most_tokens:
            self.limits = ServingLimits(True, largest.max_model_len, largest.pool_tokens)
            self.admission.set_limits(largest.max_model_len, largest.pool_tokens)

    # --- admission and the choice of a group -------------------------------------------------------------------------

    def submit(self, submit: Submit, now_s: float, resumed: Resumed | None = None) -> Routed | Reject | None:
        """Admit a job and choose its group, or say why it is refused. None: it waits for a group."""
        refusal = self.admission.refusal(submit)
        if refusal is not None:
            return self._refused(refusal)
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
        submit = submit._replace(arrival_number=number)
        if not self._place(job):
            self.room.add(submit, now_s, is_resumed=resumed is not None)
            return None
        return Routed(job.group, submit if resumed is None else taken_up(job, submit, now_s))

    def group_of(self, job_id: JobId) -> int | None:
        """The group that has the job; None if it has ended, waits for a group, or was never admitted."""
        job = self.jobs.get(job_id)
        return None if job is None or job.group == NO_GROUP else job.group

    def cancel_waiting(self, job_id: JobId, reason: EndReason, now_s: float) -> End | None:
        """End a job that waits for a group. None: it does not."""
        if job_id not in self.room:
            return None
        self._ended(job_id, now_s, None)
        return self.room.end(job_id, reason, now_s)

    def expire_waiting(self, now_s: float) -> list[End]:
        """End the jobs whose deadlines have passed while they waited for a group."""
        ends = self.room.expire(now_s)
        for end in ends:
            self._ended(end.job_id, now_s, None)
        return ends

    def placements(self, now_s: float) -> list[Routed | Reject]:
        """The jobs that waited for a group and are given one now, MOST_MOVES at most: then more may follow. Refused is
        one that turns out to fit no group.
        """
        placed: list[Routed | Reject] = []
        while self._to_place and len(placed) < MOST_MOVES:
            job_id = self._to_place.popleft()
            if job_id not in self.room:
                continue
            refusal = self.admission.misfit(self.room.submit_of(job_id))
            if refusal is not None:
                self._ended(job_id, now_s, None)
                self.room.take(job_id)
                placed.append(self._refused(refusal))
            elif self._place(job := self.jobs[job_id]):
                is_resumed, submit = self.room.is_resumed(job_id), self.room.take(job_id)
                placed.append(Routed(job.group, taken_up(job, submit, now_s) if is_resumed else submit))
        return placed

    def _refused(self, refusal: Reject) -> Reject:
        self.rejections[refusal.kind.value] = self.rejections.get(refusal.kind.value, 0) + 1
        return refusal

    def _place(self, job: RoutedJob) -> bool:
        """Choose a group for a job that has none: one that serves, else one that had a worker and may have one again.
        Returns whether there is one.
        """
        chosen = self.choose(job, self._ready()) or self.choose(
            job, [one for number, one in self.forecasts.items() if number not in self._drains]
        )
        if chosen is None:
            return False
        self.enter(job, *chosen)
        return True

    def choose(self, job: RoutedJob, among: Sequence[GroupForecast]) -> tuple[GroupForecast, Rank] | None:
        """The group with the earliest predicted end, and the job's rank there; None if it fits none of them."""
        fitting = [one for one in among if job.whole_tokens <= one.most_tokens]
        if len(fitting) <= 1 and not self._chooses:
            return (fitting[0], job.rank) if fitting else None
        places = [(one, self.foreseen(one, job)) for one in fitting]
        return min(
            places,
            key=lambda place: (place[0].finish_s(job, place[1]), len(place[0].order), place[0].number),
            default=None,
        )

    def foreseen(self, forecast: GroupForecast, job: RoutedJob) -> Rank:
        machine = self.machines[forecast.number]
        if forecast.number == job.group or machine.newest_epoch == NO_WORKER:
            return job.rank  # no worker has joined before this turn: the policy can't tell yet
        level = NO_LEVEL if job.group == NO_GROUP else job.rank.level
        moving = MovingJob(
            job.job_id, job.arrival_number, job.prompt_tokens, job.known_tokens, 0, job.max_tokens, job.arrived_s,
            job.arrived_s, None, job.client_number, level, 0.0, False, 0, None, None, None,
        )  # fmt: skip
        return foresee(machine, moving)

    def enter(self, job: RoutedJob, forecast: GroupForecast, rank: Rank) -> None:
        """The job is in this group from now on, with nothing computed."""
        if job.part is not None:
            self.forecasts[job.group].order.remove(job)
        job.group, job.rank = forecast.number, rank
        job.prefill_tokens = job.known_tokens
        if self._chooses:
            forecast.order.add(job)

    def _ready(self) -> list[GroupForecast]:
        """The groups that serve and will go on."""
        return [
            one
            for number, one in self.forecasts.items()
            if self.machines[number].ready() and number not in self._drains
        ]

    # --- what the machines say ---------------------------------------------------------------------------------------

    def heard(self, group: int, events: Sequence[Event], commands: Sequence[Command], now_s: float) -> None:
        """Take a turn of a group's machine: what it was given, and what it answered."""
        forecast = self.forecasts[group]
        for event in events:
            if isinstance(event, IterationResult):
                forecast.took(event.plan_number, event.duration_s)
            elif isinstance(event, PlansGivenBack) and event.first_plan_number is not None:
                forecast.forget(event.first_plan_number)
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
        self._batch.calibrate(event.profile, event.device_pool_tokens)
        forecast = self.forecasts[group]
        measured = [one.ratio for one in self.forecasts.values() if one is not forecast and one.is_measured]
        ratio = sum(measured) / len(measured) if measured else 1.0
        forecast.joined(event.profile, event.device_pool_tokens, event.max_model_len, event.stage_count, ratio)
        forecast.order.restart()
        self._drains.pop(group, None)
        self._set_limits()
        self._to_place = deque(self.room.job_ids)

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
        if not self._chooses or job.group == NO_GROUP:
            return
        self.forecasts[job.group].order.remove(job)
        if reason is not None and reason.completes:
            end_in_bucket(job.bucket, job.output_tokens, self._lengths)

    # --- moves -------------------------------------------------------------------------------------------------------

    def holds(self, now_s: float) -> list[tuple[int, Hold]]:
        """What the groups whose workers are about to end must hold from now on. Decided anew whenever other groups can
        take jobs. Called after the machines' turns, before `moves`.
        """
        return decide_holds(self._drains, self.forecasts, self._ready(), now_s) if self._drains else []

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
            elif forecast.number in self._drains and self.machines[forecast.number].ready():
                moves += let_go(self, self._drains[forecast.number], forecast, ready, MOST_MOVES - len(moves))
            elif len(forecast.order) and self._nothing_moves.get(forecast.number) != names:
                moves += evacuated(self, forecast, ready, MOST_MOVES - len(moves))
                if not moves:
                    self._nothing_moves[forecast.number] = names
        for forecast in ready:
            room = min(forecast.batch_slots - len(forecast.order), MOST_MOVES - len(moves))
            if room > 0:
                moves += taken_over(self, forecast, ready, room)
        return moves

    def check(self) -> None:
        """Assert that the router and the machines agree. O(jobs), for tests."""
        assert {job.job_id for job in self.jobs.values() if job.group == NO_GROUP} == set(self.room.job_ids)
        for number, forecast in self.forecasts.items():
            forecast.order.check()
            here = {job.job_id for job in self.jobs.values() if job.group == number}
            alive = self.machines[number].ranking.by_rank()
            assert here == {job.job_id for job in alive}, f"group {number} has other jobs than the router thinks"
            assert not self._chooses or here == {job.job_id for job in forecast.order}
        assert self.admission.queued_jobs == len(self.jobs)
