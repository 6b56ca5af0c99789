"""The real router before several groups: it gets every arrival first, and carries out its moves as the scheduler's
driver does.
"""

from collections.abc import Sequence

from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.scheduler.machine import scheduler_events as scheduling
from services.scheduler.routing.router import Router
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.simulator.simulated_clients import KvGauge, SimulatedClients
from services.simulator.simulated_group import EPOCH, SimulatedGroup
from services.simulator.virtual_clock import VirtualClock


class SimulatedRouter:
    """Several groups, and the router before them."""

    def __init__(self, setup: ServerSetup, clock: VirtualClock, clients: SimulatedClients, gauge: KvGauge) -> None:
        self._clock = clock
        self._clients = clients
        self._hop_s = setup.hop_s
        self.groups = [
            SimulatedGroup(setup, number, clock, clients, gauge, self._heard) for number in range(setup.groups)
        ]
        machines = {group.number: group.scheduler for group in self.groups}
        self.router = Router(setup.scheduler, machines)
        self._jobs: dict[JobId, SimulatedJob] = {}
        self._is_moving = False
        self.moves = 0
        """Jobs that changed their group."""
        pool_tokens = setup.device_blocks * setup.block_size
        joined = scheduling.WorkerJoined(EPOCH, pool_tokens, setup.max_model_len, setup.cost, setup.stages)
        for group in self.groups:
            self.router.joined(group.number, joined)

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
        group = self.groups[routed.group]
        group.worker.expect(job)
        group.take(routed.submit)

    def _cancelled(self, job_id: JobId) -> None:
        number = self.router.group_of(job_id)
        if number is not None:
            self.groups[number].take(scheduling.Cancel(job_id, EndReason.CANCELLED))

    def _heard(self, group: int, events: Sequence[scheduling.Event], commands: Sequence[scheduling.Command]) -> None:
        """A group's scheduler took a turn."""
        self.router.heard(group, events, commands, self._clock.now_s)
        if not self._is_moving:
            self._is_moving = True
            self._move_jobs()
            self._is_moving = False

    def _move_jobs(self) -> None:
        moves = self.router.moves()
        self.moves += len(moves)
        targets = {move.job_id: move.to_group for move in moves}
        for number in dict.fromkeys(move.from_group for move in moves):
            leaving = [scheduling.Withdraw(move.job_id) for move in moves if move.from_group == number]
            for moving in self.groups[number].turn(leaving):
                group = self.groups[targets[moving.job_id]]
                group.worker.expect(self._jobs[moving.job_id], moving.known_tokens)
                group.turn((scheduling.TakeIn(moving),))
