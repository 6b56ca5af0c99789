"""The real router before several groups: it gets every arrival first, and carries out its moves as the scheduler's
driver does. Groups can come and go meanwhile. One that is to go drains: it stays until its last job has ended or moved.
"""

from collections.abc import Callable, Sequence

from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.scheduler.machine import scheduler_events as scheduling
from services.scheduler.routing.router import Router
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.simulator.simulated_clients import KvGauge, SimulatedClients
from services.simulator.simulated_group import EPOCH, SimulatedGroup
from services.simulator.virtual_clock import VirtualClock


class SimulatedRouter:
    """Several groups, and the router before them. `on_gone` is called with a group that has drained."""

    def __init__(self, setup: ServerSetup, clock: VirtualClock, clients: SimulatedClients, gauge: KvGauge) -> None:
        self._setup = setup
        self._clock = clock
        self._clients = clients
        self._gauge = gauge
        self._hop_s = setup.hop_s
        self.groups: list[SimulatedGroup] = []
        """All there have been."""
        self.present: dict[int, SimulatedGroup] = {}
        """Those that serve or drain, by number."""
        self.router = Router(setup.scheduler, {})
        self.on_gone: Callable[[int], None] = lambda number: None
        self._draining: list[int] = []
        self._jobs: dict[JobId, SimulatedJob] = {}
        self._is_moving = False
        self.moves = 0
        """Jobs that changed their group."""
        for number in range(setup.groups):
            self.open_group(number)

    # --- groups ------------------------------------------------------------------------------------------------------

    def open_group(self, number: int) -> None:
        """A group begins to serve, with a worker that has just joined."""
        setup = self._setup
        group = SimulatedGroup(setup, number, self._clock, self._clients, self._gauge, self._heard)
        self.groups.append(group)
        self.present[number] = group
        self.router.add_group(number, group.scheduler)
        pool_tokens = setup.device_blocks * setup.block_size
        joined = scheduling.WorkerJoined(EPOCH, pool_tokens, setup.max_model_len, setup.cost, setup.stages)
        self.router.joined(number, joined)

    def drain_group(self, number: int, limit_s: float) -> None:
        """The group's worker is told to end, and has `limit_s` seconds for what is predicted to end in them."""
        self._draining.append(number)
        self.router.drain(number, limit_s, self._clock.now_s)
        self._look()

    def _look(self, _: object = None) -> None:
        """Look what draining groups hold, now and whenever the router asks for it."""
        self._settle()
        next_s = self.router.next_s()
        if next_s is not None:
            self._clock.post(max(next_s, self._clock.now_s), self._look, None)

    def _let_go(self) -> None:
        """Forget the groups that have drained. What their machines still hear concerns nobody else."""
        for number in list(self._draining):
            group = self.present[number]
            if group.scheduler.jobs or any(job.group == number for job in self.router.jobs.values()):
                continue
            self._draining.remove(number)
            del self.present[number]
            group.leave()
            self.router.remove_group(number)
            self.on_gone(number)

    # --- jobs --------------------------------------------------------------------------------------------------------

    def submit(self, job: SimulatedJob) -> None:
        """Schedule the job's arrival, and its cancellation if there is one."""
        self._jobs[JobId(job.job_id)] = job
        self._clock.post(job.arrival_s + self._hop_s, self._arrived, job)
        if job.cancel_s is not None:
            self._clock.post(job.cancel_s + self._hop_s, self._cancelled, JobId(job.job_id))

    def _arrived(self, job: SimulatedJob) -> None:
        submit = scheduling.Submit(
            JobId(job.job_id), job.prompt_tokens, job.most_output_tokens, client_number=job.client_number
        )
        routed = self.router.submit(submit, self._clock.now_s)
        assert routed is not None, "the groups are there from the start"
        if isinstance(routed, scheduling.Reject):
            self._clients.refused(routed)
            self._clock.progressed()
            return
        group = self.present[routed.group]
        group.worker.expect(job)
        group.take(routed.submit)

    def _cancelled(self, job_id: JobId) -> None:
        number = self.router.group_of(job_id)
        if number is not None:
            self.present[number].take(scheduling.Cancel(job_id, EndReason.CANCELLED))

    def _heard(self, group: int, events: Sequence[scheduling.Event], commands: Sequence[scheduling.Command]) -> None:
        """A group's scheduler took a turn."""
        self.router.heard(group, events, commands, self._clock.now_s)
        self._settle()

    def _settle(self) -> None:
        if not self._is_moving:
            self._is_moving = True
            self._move_jobs()
            self._is_moving = False
            self._let_go()

    def _move_jobs(self) -> None:
        for number, hold in self.router.holds(self._clock.now_s):
            self.present[number].turn((hold,))
        moves = self.router.moves()
        self.moves += len(moves)
        targets = {move.job_id: move.to_group for move in moves}
        for number in dict.fromkeys(move.from_group for move in moves):
            leaving = [scheduling.Withdraw(move.job_id) for move in moves if move.from_group == number]
            for moving in self.present[number].turn(leaving):
                group = self.present[targets[moving.job_id]]
                group.worker.expect(self._jobs[moving.job_id], moving.known_tokens)
                group.turn((scheduling.TakeIn(moving),))
