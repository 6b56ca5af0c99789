"""The clients: what they received and when, and the peak KV usage of all jobs."""

from array import array
from collections.abc import Callable, Sequence

from services.domain.ids import JobId
from services.scheduler.machine.scheduler_events import Emit, End, Reject
from services.simulator.outcome import JobOutcome
from services.simulator.server_setup import SimulatedJob


class _Client:
    __slots__ = ("end", "job", "refusal", "token_times_s")

    def __init__(self, job: SimulatedJob) -> None:
        self.job = job
        self.token_times_s: array[float] = array("d")
        self.end: End | None = None
        self.refusal: str | None = None


class SimulatedClients:
    """The clients of all jobs. `hop_s` is the delay of a message to or from the scheduler. `on_progress` is called with
    the number of jobs that have ended.
    """

    def __init__(self, jobs: Sequence[SimulatedJob], hop_s: float, on_progress: Callable[[int], None] | None) -> None:
        self._clients = {JobId(job.job_id): _Client(job) for job in jobs}
        self._hop_s = hop_s
        self._on_progress = on_progress
        self.ended_count = 0

    @property
    def left_count(self) -> int:
        """Jobs that have not ended."""
        return len(self._clients) - self.ended_count

    def emitted(self, emits: Sequence[Emit], now_s: float) -> None:
        """The scheduler emitted tokens, which arrive `hop_s` later."""
        clients, heard_s = self._clients, now_s + self._hop_s
        for emit in emits:
            clients[emit.job_id].token_times_s.append(heard_s)

    def ended(self, end: End) -> None:
        self._clients[end.job_id].end = end
        self._count()

    def refused(self, refusal: Reject) -> None:
        field = f"{refusal.field}: " if refusal.field else ""
        self._clients[refusal.job_id].refusal = field + refusal.message
        self._count()

    def _count(self) -> None:
        self.ended_count += 1
        if self._on_progress is not None:
            self._on_progress(self.ended_count)

    def outcome(self, job_id: JobId, executing_s: float, uploading_s: float) -> JobOutcome:
        """The outcome of a job that ended or was refused."""
        client = self._clients[job_id]
        given = client.job
        if client.refusal is not None:
            return JobOutcome(
                job_id, given.arrival_s, given.prompt_tokens, client.token_times_s, "", error=client.refusal
            )
        end = client.end
        assert end is not None, f"{job_id} has not ended"
        return JobOutcome(
            job_id=job_id,
            arrival_s=given.arrival_s,
            prompt_tokens=given.prompt_tokens,
            token_times_s=client.token_times_s,
            finish_reason=end.reason.value,
            preemptions=end.preemptions,
            queue_s=end.queue_s + self._hop_s,
            executing_s=executing_s,
            uploading_s=uploading_s,
        )


class KvGauge:
    """The blocks in use in all groups' pools, and their peak."""

    def __init__(self, groups: int) -> None:
        self._device = [0] * groups
        self._both = [0] * groups
        self.peak_device_blocks = 0
        self.peak_blocks = 0

    def set(self, group: int, device_blocks: int, host_blocks: int) -> None:
        """Set the blocks in use in a group's pools."""
        self._device[group] = device_blocks
        self._both[group] = device_blocks + host_blocks
        self.peak_device_blocks = max(self.peak_device_blocks, sum(self._device))
        self.peak_blocks = max(self.peak_blocks, sum(self._both))
