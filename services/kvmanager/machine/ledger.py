"""The ledger: jobs, pools, and the sorted lists and sums that keep decisions short.

The ledger is created when the scheduler sends its jobs (Jobs) and opened when the worker of the same epoch has
reported its pools. It knows no policy and sends nothing. `moves` changes it, one whole move at a time, so
that `check` holds between any two moves.

Every block is in one of three sums: free; held (ASSIGNING, DEVICE, UPLOADING); or leaving (ASKED, OFFLOADING,
ZOMBIE), which become free without a further request.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable

from services.domain.errors import ProtocolError
from services.domain.ids import BlockId, CommandNumber, Epoch, JobId, PlanNumber
from services.domain.protocol import PlanEntry, Rank
from services.domain.ranked import Ranked
from services.kvmanager.machine.block_pool import BlockPool
from services.kvmanager.machine.enst import execute_s_by_level
from services.kvmanager.machine.job_order import JobOrder
from services.kvmanager.machine.kv_job import (
    ASKED,
    DEVICE,
    HELD,
    HOST,
    LEAVING,
    OFFLOADING,
    SWAPPED_OUT,
    UPLOADING,
    WAITING,
    ZOMBIE,
    KvJob,
    KvState,
    PendingCommand,
)
from services.kvmanager.machine.kv_manager_events import Command

ARRIVAL_WEIGHT = 1 / 16
"""Weight of the newest arrival in the moving average of first iterations."""


class Ledger:
    """The state of one worker epoch."""

    def __init__(
        self,
        epoch: Epoch,
        max_batch: int,
        quanta_s: tuple[float, ...],
        starvation_limit_s: float | None,
        *,
        displaces: bool = True,
    ) -> None:
        self.epoch = epoch
        self.displaces = displaces
        """Whether a waiting job may take blocks from a job below it, as under every policy that preempts."""
        self.max_batch = max_batch
        self.quanta_s = quanta_s
        self.starvation_limit_s = starvation_limit_s
        self.is_open = False
        self.block_size = 1
        self.device = BlockPool(0)
        self.host = BlockPool(0)
        self.jobs: dict[JobId, KvJob] = {}
        self.zombies: dict[CommandNumber, KvJob] = {}
        self.order = JobOrder()
        self.on_device = Ranked[KvJob]()
        """DEVICE jobs, whose blocks may be asked for."""
        self.on_host = Ranked[KvJob]()
        """HOST jobs, which may be uploaded or dropped."""
        self.host_by_wait: list[tuple[float, Rank, KvJob]] = []
        """HOST jobs, longest wait first: the order of their promotions."""
        self.brought_in: dict[JobId, KvJob] = {}
        self.plans: dict[PlanNumber, tuple[PlanEntry, ...]] = {}
        self.pending: dict[CommandNumber, PendingCommand] = {}
        self.held_blocks = 0
        self.leaving_blocks = 0
        self.next_command = CommandNumber(1)
        self.arrival_tokens: float | None = None
        self.arrival_blocks = 1.0
        """Average number of blocks of a recent arrival's first iteration; 1 before any arrival."""
        self.swap_changes: dict[JobId, bool] = {}
        """Jobs that moved to the host (True) or left it (False) since `take_swaps` was last called."""
        self.commands: list[Command] = []
        """The commands of this turn."""
        self._execute_counts: list[int] = []
        self._execute_s: list[float] | None = None

    def open(self, block_size: int, device_blocks: int, host_blocks: int) -> None:
        """Begin with empty tables and pools of these sizes."""
        self.block_size = block_size
        self.device = BlockPool(device_blocks)
        self.host = BlockPool(host_blocks)
        self.is_open = True
        self._count_arrival()

    # --- questions ---------------------------------------------------------------------------------------------------

    def blocks_for(self, tokens: int) -> int:
        """The number of blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def execute_s(self) -> list[float]:
        """T_execute by level (see enst.py). Cached until the number of jobs on some level changes."""
        if self._execute_s is None or self.order.level_counts != self._execute_counts:
            self._execute_counts = self.order.level_counts.copy()
            self._execute_s = execute_s_by_level(self._execute_counts, self.quanta_s, self.max_batch)
        return self._execute_s

    # --- jobs --------------------------------------------------------------------------------------------------------

    def add(self, job: KvJob) -> None:
        """A job arrived. No decision concerns it until it has a rank."""
        if job.job_id in self.jobs:
            raise ProtocolError(f"job {job.job_id} arrived twice")
        self.jobs[job.job_id] = job
        before = job.known if self.arrival_tokens is None else self.arrival_tokens
        self.arrival_tokens = before + (job.known - before) * ARRIVAL_WEIGHT
        self._count_arrival()

    def _count_arrival(self) -> None:
        self.arrival_blocks = max(1.0, (self.arrival_tokens or 0.0) / self.block_size)

    def rank(self, job: KvJob, rank: Rank, now_s: float) -> None:
        """Move a job to its rank. Rising to the highest level is a promotion, which restarts the job's waiting time
        (PAPER 2).
        """
        if job.rank is None:
            job.rank = rank
            self.order.add(job)
            return
        self.order.move(job, rank)
        if job.state is DEVICE:
            self.on_device.move(job, rank)
        elif job.state is HOST:
            self.on_host.move(job, rank)
            self._leave_wait_list(job)
        if rank.level == 0 and job.rank.level > 0:
            job.waiting_since_s = now_s
        job.rank = rank
        if job.state is HOST:
            self._join_wait_list(job)

    def enter(self, job: KvJob, state: KvState) -> None:
        """Move a job to a state, and update the sums and lists that depend on it."""
        was_out = job.state in SWAPPED_OUT
        self._leave_lists(job)
        job.move(state)
        if was_out != (state in SWAPPED_OUT):
            self.swap_changes[job.job_id] = not was_out
        if state in HELD:
            self.held_blocks += len(job.device)
        elif state in LEAVING:
            self.leaving_blocks += len(job.device)
        if state is DEVICE:
            job.table_tokens = len(job.device) * self.block_size
            self.on_device.add(job)
        elif state is HOST:
            self.on_host.add(job)
            self._join_wait_list(job)

    def remove(self, job: KvJob) -> None:
        """Forget a job; its blocks have been freed or stay with the ZOMBIE."""
        del self.jobs[job.job_id]
        self.brought_in.pop(job.job_id, None)
        if job.rank is not None:
            self.order.remove(job)
        if job.state in SWAPPED_OUT:
            self.swap_changes[job.job_id] = False
        if job.state is not ZOMBIE:
            self._leave_lists(job)

    def _leave_lists(self, job: KvJob) -> None:
        state = job.state
        if state in HELD:
            self.held_blocks -= len(job.device)
        elif state in LEAVING:
            self.leaving_blocks -= len(job.device)
        if state is DEVICE:
            job.table_tokens = 0
            self.on_device.remove(job)
        elif state is HOST:
            self.on_host.remove(job)
            self._leave_wait_list(job)

    def _join_wait_list(self, job: KvJob) -> None:
        assert job.rank is not None
        insort(self.host_by_wait, (job.waiting_since_s, job.rank, job))

    def _leave_wait_list(self, job: KvJob) -> None:
        assert job.rank is not None
        at = bisect_left(self.host_by_wait, (job.waiting_since_s, job.rank, job))
        assert self.host_by_wait[at][2] is job, job.told("is not at its place in the list by waiting time")
        del self.host_by_wait[at]

    # --- blocks ------------------------------------------------------------------------------------------------------

    def take_device(self, job: KvJob, count: int) -> tuple[BlockId, ...]:
        """Append free device blocks to a job's table."""
        blocks = self.device.allocate(count)
        job.device.extend(blocks)
        if job.state in HELD:
            self.held_blocks += count
        if job.state is DEVICE:
            job.table_tokens += count * self.block_size
        return tuple(blocks)

    def free_device(self, job: KvJob, keep: int) -> None:
        """Free a job's device blocks except the first `keep`."""
        freed = job.device[keep:]
        del job.device[keep:]
        if job.state in HELD:
            self.held_blocks -= len(freed)
        elif job.state in LEAVING:
            self.leaving_blocks -= len(freed)
        self.device.free(freed)

    def free_host(self, job: KvJob) -> None:
        self.host.free(job.host)
        job.host = []

    # --- invariants --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that free + used = total in both pools, that no block is in two tables, and that every list agrees
        with the jobs.
        """
        everybody = [*self.jobs.values(), *self.zombies.values()]
        self.device.check([block for job in everybody for block in job.device])
        self.host.check([block for job in everybody for block in job.host])
        assert self.held_blocks == sum(len(job.device) for job in everybody if job.state in HELD)
        assert self.leaving_blocks == sum(len(job.device) for job in everybody if job.state in LEAVING)
        assert self.held_blocks + self.leaving_blocks + self.device.free_count == self.device.count
        ranked = sorted(job for job in self.jobs.values() if job.rank is not None)
        assert sorted(self.order) == ranked, "the order must hold exactly the ranked jobs"
        assert sum(self.order.level_counts) == len(self.order)
        for jobs, state in ((self.on_device, DEVICE), (self.on_host, HOST)):
            assert sorted(jobs) == [job for job in ranked if job.state is state], (
                f"the list of {state.value} jobs is wrong"
            )
        assert sorted(job for _, _, job in self.host_by_wait) == sorted(self.on_host)
        for job in everybody:
            self._check_job(job)
        for number, entries in self.plans.items():
            for entry in entries:
                self._check_planned(number, entry)

    def _check_job(self, job: KvJob) -> None:
        holds_device = job.state in HELD or job.state in LEAVING
        table_blocks = len(job.device) if job.state is DEVICE else 0
        assert job.table_tokens == table_blocks * self.block_size, job.told("has a wrong table_tokens")
        assert holds_device or not job.device, job.told("has device blocks in a state without any")
        assert (job.copy is not None) or job.state not in (OFFLOADING, UPLOADING, ZOMBIE)
        if job.state in (DEVICE, ASKED):
            assert job.finished <= job.planned <= job.announced_blocks * self.block_size, job.told(
                "has inconsistent token counts"
            )
            assert job.announced_blocks <= len(job.device), job.told("was announced more blocks than it has")
        if job.state in (HOST, UPLOADING, OFFLOADING):
            assert len(job.host) == self.blocks_for(job.finished) > 0, job.told("has a host copy of the wrong length")
        if job.state is WAITING:
            assert not job.host, job.told("is waiting, but has host blocks")
            assert job.finished == 0, job.told("is waiting, but has valid tokens")
        for command in (job.assign, job.copy):
            assert command is None or self.pending.get(command.number) is command, job.told(
                "has a command that is not pending"
            )

    def _check_planned(self, number: PlanNumber, entry: PlanEntry) -> None:
        job = self.jobs.get(entry.job_id)
        assert job is not None, f"plan {number} names job {entry.job_id}, which is gone"
        resident = job.state in (DEVICE, ASKED)
        assert resident, job.told(f"plan {number} names this job, but it is not resident")

    def state_key(self, now_s: float) -> Hashable:
        """Everything that determines the future: times relative to now, command numbers relative to the next one, plans
        by their order.
        """
        next_command_number = self.next_command
        return (
            self.epoch,
            self.is_open,
            tuple(sorted((job.job_id, self._job_key(job, now_s)) for job in self.jobs.values())),
            tuple((number - next_command_number, self._job_key(job, now_s)) for number, job in self.zombies.items()),
            self.device.free_ids(),
            self.host.free_ids(),
            tuple(self.plans.values()),
            tuple(number - next_command_number for number in self.pending),
            self.arrival_tokens,
        )

    def _job_key(self, job: KvJob, now_s: float) -> tuple[object, ...]:
        limit_s = self.starvation_limit_s
        waited_s = 0.0 if limit_s is None else round(min(now_s - job.waiting_since_s, limit_s), 9)
        assign = 0 if job.assign is None else job.assign.number - self.next_command
        copy = 0 if job.copy is None else job.copy.number - self.next_command
        counts = (job.stay_number, job.known, job.most, job.planned, job.finished, job.plans, job.announced_blocks)
        blocks = (tuple(job.device), tuple(job.host))
        rank = job.rank or Rank(-1, 0.0, -1)
        return (job.state.value, rank, counts, blocks, assign, copy, job.brought_in, job.passed_over, waited_s)
