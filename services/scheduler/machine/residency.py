"""What the KV manager says of a job's KV, and what follows from it: the capacity up to which the job may be planned
(PROTOCOL rule 5), its place, and the room that started jobs hold on the device.
"""

from services.domain.protocol import Grown, Resident
from services.scheduler.job import OUT, RESIDENT, Job
from services.scheduler.machine.iterations import Iterations
from services.scheduler.machine.lending import Lending
from services.scheduler.machine.ranking import Ranking
from services.scheduler.machine.scheduler_counters import SchedulerCounters
from services.scheduler.policies.scheduling_policy import SchedulingPolicy


class Residency:
    """Applies residency and growth."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        ranking: Ranking,
        iterations: Iterations,
        lending: Lending,
        counters: SchedulerCounters,
    ) -> None:
        self._policy = policy
        self._ranking = ranking
        self._iterations = iterations
        self._lending = lending
        self._counters = counters
        self._given_up: list[Job] = []

    def resident(self, job: Job, message: Resident, now_s: float) -> None:
        """The job's KV is on the device."""
        valid = min(message.valid_tokens, job.finished_tokens)
        job.move(RESIDENT, now_s, f"capacity {message.capacity_tokens}, valid {message.valid_tokens}")
        self._counters.recomputed_tokens += job.finished_tokens - valid
        job.capacity_tokens = message.capacity_tokens
        job.finished_tokens = job.planned_tokens = valid
        self._lending.held(job, job.capacity_tokens)
        self.changed(job)
        self._iterations.refresh(job)

    def grown(self, job: Job, message: Grown) -> None:
        """The job has more room; ignored unless it is resident (rule 5)."""
        if job.state is RESIDENT and message.capacity_tokens > job.capacity_tokens:
            job.capacity_tokens = message.capacity_tokens
            self._lending.held(job, job.capacity_tokens)
            self._iterations.refresh(job)

    def given_up(self, job: Job) -> None:
        """The job was consented to lose the device. Its place changes with the next turn: the order of this one has
        been sent.
        """
        self._lending.held(job, 0)
        self._given_up.append(job)

    def settle(self) -> None:
        """The jobs that lost the device in the last turn take their new places."""
        for job in self._given_up:
            if job.state is OUT:
                self.changed(job)
        self._given_up.clear()

    def changed(self, job: Job) -> None:
        """Ask the policy for the job's place again."""
        place = self._policy.residency_changed(job)
        if place is not None:
            self._ranking.place(job, place)

    def void(self, job: Job) -> None:
        """The worker is gone, and the job's KV with it."""
        job.in_flight = job.planned_tokens = job.capacity_tokens = 0
        job.expected_tokens = job.known_tokens
        job.cut_plan = None
        job.is_held = False
        self._lending.held(job, 0)

    def state_key(self) -> tuple[object, ...]:
        """The jobs whose places will change."""
        return tuple(job.job_id for job in self._given_up)
