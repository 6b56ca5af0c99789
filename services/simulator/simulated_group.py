"""One worker group: the real scheduler and the real KV manager, a model of the worker, and the links between them.

Nothing is decided here. The messages of a turn go to each of the other parts as one batch, `hop_s` later and in order,
as with the services' drivers and streams. A message to a machine and the event that it becomes there have the same
fields, (epoch, message). The group is never lost, so there is only one epoch, and both machines are strict: a part that
breaks the protocol ends the simulation with an error that has the job's history.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from services.domain.generation import EndReason
from services.domain.group_backlog import GroupBacklog
from services.domain.ids import Epoch, JobId
from services.domain.protocol import IterationResult, KvToWorker, WorkerPools, WorkerToKv
from services.domain.records import records
from services.domain.server_status import PoolUsage
from services.kvmanager.machine import kv_manager_events as kv
from services.kvmanager.machine.kv_manager import KvManager
from services.scheduler.machine import scheduler_events as scheduling
from services.scheduler.machine.scheduler import Scheduler
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.simulator.simulated_clients import KvGauge, SimulatedClients
from services.simulator.simulated_worker import SimulatedWorker
from services.simulator.virtual_clock import VirtualClock, VirtualInbox

EPOCH = Epoch(1)
TOLD_JOBS = 8
"""The most jobs described when the simulation is stuck."""


HearTurn = Callable[[int, Sequence[scheduling.Event], Sequence[scheduling.Command]], None]
"""Called after each turn of a group's scheduler: the group, what it was given, what it answered."""


class SimulatedGroup:
    """Scheduler, KV manager and worker of group `number`. `hear` is called after each turn of the scheduler."""

    def __init__(
        self,
        setup: ServerSetup,
        number: int,
        clock: VirtualClock,
        clients: SimulatedClients,
        gauge: KvGauge,
        hear: HearTurn | None = None,
    ) -> None:
        self.scheduler = Scheduler(setup.scheduler, strict=True)
        self.kv = KvManager(setup.kv)
        self.worker = SimulatedWorker(setup, EPOCH, self._post_result, self._post_answers)
        self._setup = setup
        self.number = number
        self._hear = hear
        self._clock = clock
        self._clients = clients
        self._gauge = gauge
        self._hop_s = setup.hop_s
        self._wake_s: float | None = None
        self._figures: PoolUsage | None = None
        self._scheduler_inbox = VirtualInbox(clock, self._scheduler_turn)
        self._kv_inbox = VirtualInbox(clock, self._kv_turn)
        self._open()

    def submit(self, job: SimulatedJob) -> None:
        """Schedule the job's arrival, and its cancellation if there is one."""
        job_id = JobId(job.job_id)
        self.worker.expect(job)
        arrival = scheduling.Submit(job_id, job.prompt_tokens, job.most_output_tokens, client_number=job.client_number)
        self._clock.post(job.arrival_s + self._hop_s, self._scheduler_inbox.put, (arrival,))
        if job.cancel_s is not None:
            cancel = scheduling.Cancel(job_id, EndReason.CANCELLED)
            self._clock.post(job.cancel_s + self._hop_s, self._scheduler_inbox.put, (cancel,))

    def take(self, event: scheduling.Event) -> None:
        """The scheduler hears this in its next turn."""
        self._scheduler_inbox.put((event,))

    def leave(self) -> None:
        """Its worker has drained: from now on nobody hears of its turns."""
        self._hear = None

    def foreseen(self) -> GroupBacklog:
        """What the scheduler expects of its jobs now."""
        predicted = self.scheduler.iterations.backlog.predicted()
        assert predicted is not None, "a worker has joined"
        return predicted

    def _open(self) -> None:
        """Connect all parts before anything else happens."""
        setup = self._setup
        pool_tokens = setup.device_blocks * setup.block_size
        joined = scheduling.WorkerJoined(EPOCH, pool_tokens, setup.max_model_len, setup.cost, setup.stages)
        self._scheduler_inbox.put((joined, scheduling.KvConnected()))
        pools = WorkerPools(EPOCH, setup.block_size, setup.device_blocks, setup.host_blocks)
        self._kv_inbox.put((kv.SchedulerConnected(), kv.FromWorker(EPOCH, pools)))

    # --- turns -------------------------------------------------------------------------------------------------------

    def _scheduler_turn(self, events: Sequence[scheduling.Event]) -> None:
        self.turn(events)

    def turn(self, events: Sequence[scheduling.Event]) -> list[scheduling.MovingJob]:
        """A turn of the scheduler. Returns the jobs that left the group."""
        clock, clients = self._clock, self._clients
        now_s = clock.now_s
        if self._wake_s is not None and self._wake_s <= now_s:
            self._wake_s = None
        to_kv: list[scheduling.ToKv] = []
        emits: list[scheduling.Emit] = []
        withdrawn: list[scheduling.MovingJob] = []
        commands = self.scheduler.handle(events, now_s)
        for command in commands:
            if isinstance(command, scheduling.Emit):
                emits.append(command)
            elif isinstance(command, scheduling.ToKv):
                to_kv.append(command)
            elif isinstance(command, scheduling.SendPlan):
                clock.post(now_s + self._hop_s, self._plan_arrived, command)
            elif isinstance(command, scheduling.End):
                clients.ended(command)
                clock.progressed()
            elif isinstance(command, scheduling.Reject):
                clients.refused(command)
                clock.progressed()
            elif isinstance(command, scheduling.WakeAt):
                self._wake_s = command.time_s
                clock.post(max(command.time_s, now_s), self._wake, command.time_s)
            elif isinstance(command, scheduling.Withdrawn):
                withdrawn.append(command.job)
            else:
                raise AssertionError(f"the scheduler dropped a worker that is never lost: {command}")
        if emits:
            clients.emitted(emits, now_s)
            clock.progressed()
        if to_kv:
            clock.post(now_s + self._hop_s, self._kv_inbox.put, records(kv.FromScheduler, to_kv))
        if self._hear is not None:
            self._hear(self.number, events, commands)
        return withdrawn

    def _wake(self, time_s: float) -> None:
        """Send a Tick, unless an earlier time has replaced this one."""
        if self._wake_s == time_s:
            self._wake_s = None
            self._scheduler_inbox.put((scheduling.Tick(),))

    def _kv_turn(self, events: list[kv.Event]) -> None:
        now_s = self._clock.now_s
        to_scheduler: list[kv.ToScheduler] = []
        to_worker: list[KvToWorker] = []
        for command in self.kv.handle(events, now_s):
            if isinstance(command, kv.ToWorker):
                to_worker.append(command.message)
            elif isinstance(command, kv.ToScheduler):
                to_scheduler.append(command)
            else:
                raise AssertionError(f"the KV manager ended a worker that is never lost: {command}")
        if to_worker:
            self._clock.post(now_s + self._hop_s, self._commands_arrived, to_worker)
        if to_scheduler:
            heard = records(scheduling.FromKv, to_scheduler)
            self._clock.post(now_s + self._hop_s, self._scheduler_inbox.put, heard)
        figures = self.kv.pool_usage()
        if figures is not None and figures != self._figures:
            self._figures = figures
            device, device_free, host, host_free = figures
            self._gauge.set(self.number, device - device_free, host - host_free)

    # --- the worker's links ------------------------------------------------------------------------------------------

    def _plan_arrived(self, plan: scheduling.SendPlan) -> None:
        self.worker.run(plan, self._clock.now_s)

    def _commands_arrived(self, commands: Sequence[KvToWorker]) -> None:
        self.worker.apply(commands, self._clock.now_s)

    def _post_result(self, at_s: float, result: IterationResult) -> None:
        self._clock.post(at_s + self._hop_s, self._scheduler_inbox.put, (result,))

    def _post_answers(self, at_s: float, answers: Sequence[WorkerToKv]) -> None:
        events = records(kv.FromWorker, [(EPOCH, answer) for answer in answers])
        self._clock.post(at_s + self._hop_s, self._kv_inbox.put, events)

    # --- the end -----------------------------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Raises AssertionError unless all jobs were released and all blocks freed."""
        figures = self.kv.pool_usage()
        assert figures is not None, "the worker's pools must be open to the end"
        assert not self.scheduler.jobs, f"jobs were not released: {list(self.scheduler.jobs)}"
        assert figures.device_blocks_free == figures.device_blocks_total, f"device blocks were not freed: {figures}"
        assert figures.host_blocks_free == figures.host_blocks_total, f"host blocks were not freed: {figures}"

    def story(self) -> str:
        """What each job is waiting for, for the error of a stuck simulation."""
        iterations, jobs = self.scheduler.iterations, self.scheduler.jobs
        plans = [flight.plan_number for flight in iterations.unfinished]
        lines = [f"group {self.number}: plans without a result {plans}, {self.kv.pool_usage()}, {self.kv.status()}"]
        for job in islice(sorted(jobs.values(), key=lambda job: job.rank), TOLD_JOBS):
            lines.append(
                f"  {job.job_id}: {job.state.value} at {tuple(job.rank)}, can be planned: {job.is_ready}; "
                f"tokens finished {job.finished_tokens}, planned {job.planned_tokens}, next to {job.expected_tokens}, "
                f"capacity {job.capacity_tokens}, prompt {job.prompt_tokens}, most {job.most_tokens}; KV manager: "
                f"{self.kv.state_of(job.job_id)}"
            )
        return "\n".join(lines if len(jobs) <= TOLD_JOBS else [*lines, f"  and {len(jobs) - TOLD_JOBS} more jobs"])
