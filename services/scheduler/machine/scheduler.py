"""The scheduler as a pure state machine: events and the time in, commands out.

One turn takes all waiting events in order and then acts on them, in an order that PROTOCOL depends on:

1. events: results free their plans (Finished), new jobs arrive (Arrive), residency changes;
2. deadlines, promotions, the policy's own moves, and rule 6 (the top job is held on top);
3. Order, so that every later message is judged by the order that the KV manager knows;
4. Release of ended jobs that no unfinished plan names (rule 3), before the answers to the ReclaimRequests that those
jobs may have caused;
5. Refuse, or draining and Ack once no unfinished plan names the job (rule 4);
6. plans, while fewer than may be are under way (plan_lead.py) and some job can run, unless plans are recalled first
(rule 42).

A worker's epoch opens with Jobs: every job is OUT, and nothing is valid (rule 23). When the stream to the KV manager
is lost, the tables that it kept for this epoch are lost too, so the worker is dropped and comes back with a new epoch.
"""

from collections.abc import Container, Iterable, Sequence

from services.domain.errors import ProtocolError
from services.domain.generation import EndReason
from services.domain.ids import Epoch, JobId
from services.domain.protocol import (
    Arrive,
    ArrivedJob,
    Finished,
    Grown,
    IterationResult,
    Order,
    Planned,
    PlansGivenBack,
    Rank,
    ReclaimRequest,
    Resident,
    SchedulerToKv,
)
from services.domain.server_status import LevelStatus
from services.scheduler.job import CLOSING, ENDED, OUT, Job
from services.scheduler.machine import invariants
from services.scheduler.machine.admission import Admission
from services.scheduler.machine.first_message import first_message
from services.scheduler.machine.iterations import Iterations
from services.scheduler.machine.job_counts import level_statuses
from services.scheduler.machine.lending import Lending
from services.scheduler.machine.moving import hold, take_in, withdraw
from services.scheduler.machine.promotion import Promotion
from services.scheduler.machine.ranking import Ranking
from services.scheduler.machine.recalls import Recalls
from services.scheduler.machine.releases import Releases
from services.scheduler.machine.residency import Residency
from services.scheduler.machine.scheduler_counters import SchedulerCounters
from services.scheduler.machine.scheduler_events import (
    Cancel,
    Command,
    DropWorker,
    End,
    Event,
    FromKv,
    Hold,
    KvConnected,
    KvLost,
    RecallPlans,
    SendPlan,
    Submit,
    TakeIn,
    ToKv,
    Withdraw,
    WorkerJoined,
    WorkerLost,
)
from services.scheduler.machine.timers import Alarm, Timers
from services.scheduler.policies.batch_limit import BatchLimit
from services.scheduler.policies.policy_choice import make_policy
from services.scheduler.scheduler_config import SchedulerConfig

NO_WORKER = Epoch(0)


class Scheduler:
    """Decides which jobs run in the next iteration of one worker group.

    With `strict` (tests, explorer, simulator), `handle` raises ProtocolError when a peer breaks PROTOCOL, and the
    machine must not be used afterwards. Without it, the worker is dropped with the error as the reason, and everything
    starts over with its next epoch.
    """

    def __init__(self, config: SchedulerConfig, *, strict: bool = True) -> None:
        self.config = config
        self.counters = SchedulerCounters()
        self.batch = BatchLimit(config)
        self.policy = make_policy(config, self.batch)
        self.ranking = Ranking()
        self.admission = Admission(config, self.batch)
        self.promotion = Promotion(config.starvation_limit_s, config.promotions_per_step, self.policy)
        self.lending = Lending(config, self.batch, self.ranking, enabled=self.policy.lends)
        self.iterations = Iterations(
            config, self.batch, self.policy, self.promotion, self.lending, self.ranking, self.counters
        )
        self.jobs: dict[JobId, Job] = {}
        self.residency = Residency(self.policy, self.ranking, self.iterations, self.lending, self.counters)
        self.recalls = Recalls(self.batch, self.ranking, self.iterations)
        self.leaving = Releases(self.jobs, self.ranking, self.iterations, self.residency)
        self.epoch = NO_WORKER
        """The worker's epoch; NO_WORKER while no worker is connected."""
        self.newest_epoch = NO_WORKER
        self.kv_connected = False
        self.linked = False
        """Whether Jobs was sent for this epoch: scheduler, KV manager and worker then share the same epoch."""
        self._strict = strict
        self.deadlines = Timers()
        self._arrivals = 0
        self._alarm = Alarm()
        self._stepped = self._results = 0
        """Iterations that ended in this turn, and results that came with it."""
        self.idle_step_left = True
        """Whether the one step of promotions that is allowed while no plan is under way is still available."""
        self._out: list[Command] = []

    def handle(self, events: Sequence[Event], now_s: float) -> list[Command]:
        """Take all events of a turn. Raises ProtocolError if `strict` and a peer broke the protocol."""
        self._out = []
        self._stepped, self._results = 0, sum(isinstance(event, IterationResult) for event in events)
        for event in events:
            try:
                self._take(event, now_s)
            except ProtocolError as error:
                self._fault(error, now_s)
        self._expire(now_s)
        self._promote(now_s)
        self.lending.take_back()
        self.residency.settle()
        if self._stepped:
            lent_jobs = self.lending.lent_jobs
            self.lending.step(now_s, self._stepped, self.policy.work)
            self.recalls.has_news |= self.lending.lent_jobs > lent_jobs
        for job, place in self.policy.settle():
            self.ranking.place(job, place)
        self.ranking.hold_top()
        if changes := self.ranking.take_changes():
            self._to_kv(Order(changes))
        leaving = self.leaving
        if leaving.closing:
            self._tell(leaving.release(now_s))
        if leaving.has_requests:
            try:
                self._tell(leaving.answer(now_s))
                self.recalls.has_news = True
            except ProtocolError as error:
                self._fault(error, now_s)
        if leaving.draining:
            self._tell(leaving.acknowledge(now_s))
        self._plan(now_s)
        self._wake(now_s)
        return self._out

    def knows(self, job_id: JobId) -> bool:
        """Whether the job is alive, or has ended but is not released yet: its id can't be submitted again."""
        return job_id in self.jobs

    def ready(self) -> bool:
        """Whether a worker has joined and the KV manager has been sent Jobs."""
        return self.linked

    def check(self) -> None:
        """Raises AssertionError if an invariant does not hold. O(jobs), for tests."""
        invariants.check(self)

    def state_key(self) -> tuple[object, ...]:
        """Everything that determines what the machine will do, as a hashable value; equal for states that differ only
        in counters and in the values of ranks.
        """
        return invariants.state_key(self)

    def levels(self, swapped_out: Container[JobId] = ()) -> tuple[LevelStatus, ...]:
        """Jobs by level; `swapped_out` holds those in host memory, as reported by the KV manager. O(jobs)."""
        return level_statuses(self, swapped_out)

    def _take(self, event: Event, now_s: float) -> None:
        match event:
            case IterationResult():
                self._finish(event, now_s)
            case PlansGivenBack(epoch, first):
                if epoch == self.epoch and self.linked:
                    self._tell(self.recalls.given_back(first, now_s))
            case FromKv():
                if event.epoch == self.epoch and self.linked:
                    self._from_kv(event.message, now_s)
            case Submit():
                self._submit(event, now_s)
            case Withdraw(job_id):
                if (left := withdraw(self, job_id, now_s)) is not None:
                    self._to_kv(left[0])
                    self._out.append(left[1])
            case Hold(job_ids):
                hold(self, job_ids)
            case TakeIn(moving):
                self._to_kv(take_in(self, moving, self._next_stay(), now_s))
            case Cancel():
                job = self.jobs.get(event.job_id)
                if job is not None and job.state is not CLOSING:
                    self._end(job, event.reason, now_s)
            case WorkerJoined():
                self._join(event, now_s)
            case WorkerLost():
                if event.epoch == self.epoch:
                    self._void("worker lost", now_s)
            case KvConnected():
                self.kv_connected = True
                self._link(now_s)
            case KvLost():
                self.kv_connected = False
                if self.linked:
                    self._drop_worker("the KV manager was lost, and with it the block tables of this epoch", now_s)

    def _submit(self, event: Submit, now_s: float) -> None:
        """Admit a job, or reject it with the reason."""
        assert event.job_id not in self.jobs, f"job {event.job_id} is alive: the driver must join it"
        if (refusal := self.admission.refusal(event)) is not None:
            self.counters.reject(refusal.kind.value)
            self._out.append(refusal)
            return
        stay = self._next_stay()
        number = stay if event.arrival_number is None else event.arrival_number
        nowhere = Rank(0, 0.0, number)
        tokens = event.prompt_tokens
        arrived_s = now_s if event.arrived_s is None else event.arrived_s
        job = Job(
            event.job_id, number, stay, tokens, event.max_tokens, arrived_s, event.deadline_s, nowhere, nowhere, tokens,
            tokens, event.client_number, event.is_guided,
        )  # fmt: skip
        job.waiting_since_s = arrived_s
        job.place = job.rank = self.policy.join(job)
        self.jobs[event.job_id] = job
        self.ranking.add(job)
        self.promotion.watch(job)
        self.iterations.backlog.enter(job)
        self.lending.arrived(job)
        self.admission.enter(tokens, event.max_tokens)
        if event.deadline_s is not None:
            self.deadlines.push(event.deadline_s, job)
        self.counters.jobs_admitted += 1
        self.counters.prompt_tokens += tokens
        self._to_kv(Arrive(ArrivedJob(job.job_id, tokens, job.most_tokens, job.stay_number)))

    def _next_stay(self) -> int:
        """The number of the next stay of a job here (rule 28)."""
        self._arrivals += 1
        return self._arrivals - 1

    def _finish(self, result: IterationResult, now_s: float) -> None:
        """An iteration ended; results of an earlier epoch are dropped (rule 19)."""
        if result.epoch != self.epoch or not self.linked:
            return
        outcome = self.iterations.finish(result, now_s, self._results)
        self._stepped += 1
        self._to_kv(Finished(result.plan_number, result.cut_job_ids))
        self._out.extend(outcome.emits)
        for job, reason in outcome.ended:
            self._end(job, reason, now_s)

    def _from_kv(self, message: Resident | Grown | ReclaimRequest, now_s: float) -> None:
        """Apply residency and growth at once, and answer reclaims once the order of this turn is known. The message may
        have crossed the end of the job, and be about an earlier job with its id (rule 28).
        """
        job = self.jobs.get(message.job_id)
        if job is None or job.state is CLOSING or job.stay_number != message.stay_number:
            return
        match message:
            case Grown():
                self.residency.grown(job, message)
            case Resident():
                self.residency.resident(job, message, now_s)
                self.recalls.has_news = True
            case ReclaimRequest():
                self.leaving.ask(message)

    def _join(self, event: WorkerJoined, now_s: float) -> None:
        """Rule 23: a new epoch of the worker voids the previous one."""
        if event.epoch <= self.newest_epoch:
            return
        self._void("a newer worker joined", now_s)
        self.epoch = self.newest_epoch = event.epoch
        self.counters.worker_joins += 1
        self.batch.calibrate(event.profile, event.device_pool_tokens)
        self.policy.calibrate(event.profile, event.max_model_len, event.stage_count)
        self.iterations.calibrate(event.profile, event.stage_count)
        self.lending.calibrate(event.profile, event.device_pool_tokens)
        self.admission.set_limits(event.max_model_len, event.device_pool_tokens)
        jobs = self.jobs.values()
        self.iterations.backlog.calibrate(event.profile, event.device_pool_tokens, event.stage_count, jobs)
        last_level = len(self.policy.quanta_s) - 1
        for job in list(jobs):
            if not self.admission.fits_pool(job.prompt_tokens, job.max_tokens):
                self._end(job, EndReason.ABORT, now_s)
            elif 0 <= last_level < job.place.level:
                self.ranking.place(job, Rank(last_level, job.place.key, job.arrival_number))
            else:
                self.residency.changed(job)
        self._link(now_s)

    def _link(self, now_s: float) -> None:
        """Once both the worker and the KV manager are connected, send the latter all jobs."""
        if self.linked or not self.kv_connected or self.epoch == NO_WORKER:
            return
        self.linked = True
        self.leaving.void(now_s)
        self.ranking.take_changes()
        self._to_kv(first_message(self))

    def _void(self, reason: str, now_s: float) -> None:
        """Drop all plans and closing jobs; all other jobs are OUT with nothing valid (rule 23)."""
        self.iterations.void()
        self.leaving.void(now_s)
        for job in self.jobs.values():
            self.ranking.set_ready(job, False)
            if job.state is not OUT:
                job.move(OUT, now_s, reason)
            self.residency.void(job)
        self.epoch = NO_WORKER
        self.linked = False

    def _fault(self, error: ProtocolError, now_s: float) -> None:
        """Handle a peer's breach of the protocol; called from the `except` block."""
        if self._strict:
            raise error
        self._drop_worker(str(error), now_s)

    def _drop_worker(self, reason: str, now_s: float) -> None:
        self._out.append(DropWorker(self.epoch, reason))
        self._void(reason, now_s)

    def _expire(self, now_s: float) -> None:
        while (job := self.deadlines.pop_due(now_s)) is not None:
            if job.state not in (CLOSING, ENDED):
                self._end(job, EndReason.DEADLINE, now_s)

    def _promote(self, now_s: float) -> None:
        if self._stepped:
            self.idle_step_left = True
        elif not self._may_step_idle():
            return
        promoted = self.promotion.step(now_s)
        if promoted and not self._stepped:
            self.idle_step_left = False
        for job, place in promoted:
            self.recalls.has_news = job.promoted = True
            self.ranking.place(job, place)
            self.counters.promotions += 1

    def _plan(self, now_s: float) -> None:
        if not self.linked:
            return
        iterations = self.iterations
        if (first := self.recalls.due()) is not None:
            self._out.append(RecallPlans(self.epoch, first))
        while iterations.may_plan(now_s):
            flight = iterations.make(now_s)
            if flight is None:
                return
            self._out.append(SendPlan(self.epoch, flight.plan_number, flight.entries, flight.cut_after_s))
            self._to_kv(Planned(flight.plan_number, flight.entries))

    def _may_step_idle(self) -> bool:
        return self.linked and not self.iterations.unfinished and self.idle_step_left

    def _wake(self, now_s: float) -> None:
        """Request a Tick for the next deadline, or for the next promotion if no iteration will end before it."""
        next_s = self.deadlines.next_s()
        if self._may_step_idle():
            promotion_s = self.promotion.next_s()
            if next_s is None or (promotion_s is not None and promotion_s < next_s):
                next_s = promotion_s
        if (wake := self._alarm.set(next_s, now_s)) is not None:
            self._out.append(wake)

    def _end(self, job: Job, reason: EndReason, now_s: float) -> None:
        """The job is not planned any more; it is released once no plan names it."""
        job.move(CLOSING, now_s, reason.value)
        self.policy.leave(job, reason)
        self.iterations.backlog.leave(job, reason)
        self.lending.ended(job)
        self.ranking.remove(job)
        self.iterations.running.pop(job.job_id, None)
        self.admission.leave(job.prompt_tokens, job.max_tokens, now_s)
        self.leaving.ended(job)
        self.recalls.has_news = True
        self.counters.jobs_finished += 1
        self.counters.ended[reason] += 1
        planned_s = now_s if job.first_planned_s is None else job.first_planned_s
        token_s = now_s if job.first_token_s is None else job.first_token_s
        times_s = (planned_s - job.arrived_s, token_s - planned_s, now_s - token_s)
        self._out.append(End(job.job_id, reason, job.preemptions, *times_s))

    def _tell(self, messages: Iterable[SchedulerToKv]) -> None:
        for message in messages:
            self._to_kv(message)

    def _to_kv(self, message: SchedulerToKv) -> None:
        if self.linked:
            self._out.append(ToKv(self.epoch, message))
