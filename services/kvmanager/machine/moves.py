"""All moves of a job's KV: the commands to the worker, the messages to the scheduler, and the effects of
acknowledgements.

Two rules shape this module. A capacity is announced once the worker has Applied the command, and after an Upload once
that is Done (PROTOCOL 8), so that a plan never waits for a command. A block named in a copy is free once the copy is
Done; any other block is free at once (PROTOCOL 9), because workers apply commands in order: the block's next table
begins after its last one has ended, while a copy may outlast both.
"""

from services.domain.errors import ProtocolError
from services.domain.ids import BlockId, CommandNumber
from services.domain.protocol import (
    Applied,
    Assign,
    BlockMove,
    Done,
    Grown,
    KvToScheduler,
    KvToWorker,
    Offload,
    ReclaimRequest,
    ReleaseBlocks,
    Resident,
    Upload,
)
from services.domain.records import records
from services.kvmanager.machine.kv_job import (
    ASKED,
    ASSIGN,
    ASSIGNING,
    DEVICE,
    HOST,
    OFFLOAD,
    OFFLOADING,
    UPLOAD,
    UPLOADING,
    WAITING,
    ZOMBIE,
    CommandKind,
    KvJob,
    PendingCommand,
)
from services.kvmanager.machine.kv_manager_events import ToScheduler, ToWorker
from services.kvmanager.machine.ledger import Ledger

HOST_DROP_LIMIT = 64
"""The most jobs dropped from the host pool for one offload."""


def _tell(ledger: Ledger, message: KvToScheduler) -> None:
    ledger.commands.append(ToScheduler(ledger.epoch, message))


def _command(ledger: Ledger, message: KvToWorker) -> None:
    ledger.commands.append(ToWorker(ledger.epoch, message))
    ledger.next_command = CommandNumber(ledger.next_command + 1)


def _pend(ledger: Ledger, kind: CommandKind, job: KvJob) -> PendingCommand:
    command = PendingCommand(ledger.next_command, kind, job)
    ledger.pending[command.number] = command
    return command


def _block_moves(device: list[BlockId], host: list[BlockId]) -> tuple[BlockMove, ...]:
    return tuple(records(BlockMove, zip(range(len(host)), device, host, strict=False)))


# --- commands of a decision ------------------------------------------------------------------------------------------


def assign(ledger: Ledger, job: KvJob, blocks: int) -> None:
    """Give a WAITING job its first blocks, or a DEVICE job more blocks."""
    if job.state is WAITING:
        ledger.enter(job, ASSIGNING)
        _protect(ledger, job)
    assert job.assign is None, job.told("is already growing")
    given = ledger.take_device(job, blocks)
    job.assign = _pend(ledger, ASSIGN, job)
    _command(ledger, Assign(job.assign.number, job.job_id, given))


def upload(ledger: Ledger, job: KvJob, blocks: int) -> None:
    """Bring a HOST job to the device, into a table of `blocks` blocks."""
    ledger.enter(job, UPLOADING)
    _protect(ledger, job)
    ledger.take_device(job, blocks)
    job.copy = _pend(ledger, UPLOAD, job)
    moves = _block_moves(job.device, job.host)
    _command(ledger, Upload(job.copy.number, job.job_id, tuple(job.device), moves, job.finished))


def ask(ledger: Ledger, job: KvJob, beneficiary: KvJob | None) -> None:
    """Ask the scheduler for a DEVICE job's blocks."""
    ledger.enter(job, ASKED)
    _tell(ledger, ReclaimRequest(job.job_id, None if beneficiary is None else beneficiary.job_id, job.stay_number))


def _protect(ledger: Ledger, job: KvJob) -> None:
    job.brought_in = True
    job.passed_over = 0
    ledger.brought_in[job.job_id] = job


def unprotect(ledger: Ledger, job: KvJob) -> None:
    """The job has run, or has no blocks to protect any more."""
    job.brought_in = False
    del ledger.brought_in[job.job_id]


# --- answers of the scheduler ----------------------------------------------------------------------------------------


def acknowledged(ledger: Ledger, job: KvJob, keeps_kv: bool) -> None:
    """No unfinished plan names the ASKED job any more: its blocks may be taken (PROTOCOL 15)."""
    if job.state is not ASKED:
        raise job.broken("the scheduler acknowledged a reclaim of this job that was never requested")
    if job.plans:
        raise job.broken(f"the scheduler acknowledged a reclaim of this job while {job.plans} unfinished plans name it")
    assert job.copy is None, job.told("is resident while a copy of it is under way")
    _forget_growth(ledger, job)
    _evict(ledger, job, keeps_kv)


def refused(ledger: Ledger, job: KvJob) -> None:
    """The ASKED job stays. Growth that was applied in the meantime is announced now (PROTOCOL 14), and the job is
    protected from being asked for again at once.
    """
    if job.state is not ASKED:
        raise job.broken("the scheduler refused a reclaim of this job that was never requested")
    ledger.enter(job, DEVICE)
    _protect(ledger, job)
    if job.assign is None and job.announced_blocks < len(job.device):
        _announce_growth(ledger, job)


def _forget_growth(ledger: Ledger, job: KvJob) -> None:
    """Growth under way is void: its acknowledgements will match no command."""
    if job.assign is not None:
        del ledger.pending[job.assign.number]
        job.assign = None


def _evict(ledger: Ledger, job: KvJob, keeps_kv: bool) -> None:
    """Offload the job's KV, or drop it if it can't be kept."""
    if job.brought_in:
        unprotect(ledger, job)
    wanted = ledger.blocks_for(job.finished)
    if not keeps_kv or wanted == 0 or not _make_host_room(ledger, job, wanted):
        drop(ledger, job)
        return
    ledger.enter(job, OFFLOADING)
    ledger.free_device(job, keep=wanted)
    job.host = ledger.host.allocate(wanted)
    job.announced_blocks = 0
    job.copy = _pend(ledger, OFFLOAD, job)
    moves = _block_moves(job.device, job.host)
    _command(ledger, Offload(job.copy.number, job.job_id, moves, job.finished))


def _make_host_room(ledger: Ledger, victim: KvJob, wanted: int) -> bool:
    """Drop the lowest HOST jobs below the victim until its blocks fit; drop nothing if even that is not enough."""
    assert victim.rank is not None
    dropped: list[KvJob] = []
    room = ledger.host.free_count
    for job in [] if room >= wanted else ledger.on_host.below(victim.rank, HOST_DROP_LIMIT):
        dropped.append(job)
        room += len(job.host)
        if room >= wanted:
            break
    if room < wanted:
        return False
    for job in dropped:
        drop(ledger, job)
    return True


def drop(ledger: Ledger, job: KvJob) -> None:
    """Discard a job's KV, wherever it is; it is recomputed later."""
    assert job.copy is None, job.told("is dropped while a copy of it is running")
    ledger.enter(job, WAITING)
    ledger.free_device(job, keep=0)
    ledger.free_host(job)
    job.known = max(job.known, job.finished + 1)
    job.planned = job.finished = job.announced_blocks = 0
    _command(ledger, ReleaseBlocks(ledger.next_command, job.job_id))


def release(ledger: Ledger, job: KvJob) -> None:
    """The job ended. Blocks in a copy stay with the ZOMBIE until the copy is Done (PROTOCOL 9)."""
    if job.plans:
        raise job.broken(f"the scheduler released this job while {job.plans} unfinished plans name it")
    _forget_growth(ledger, job)
    known_to_worker = job.state is not WAITING
    if job.copy is None:
        ledger.remove(job)
        ledger.device.free(job.device)
        ledger.free_host(job)
    else:
        ledger.enter(job, ZOMBIE)
        ledger.remove(job)
        ledger.free_device(job, keep=len(job.host))
        ledger.zombies[job.copy.number] = job
    if known_to_worker:
        _command(ledger, ReleaseBlocks(ledger.next_command, job.job_id))


# --- acknowledgements of the worker ----------------------------------------------------------------------------------


def worker_said(ledger: Ledger, message: Applied | Done) -> None:
    """Match an acknowledgement by its command number (PROTOCOL 8); it has no effect if its command is not pending."""
    if message.command_number >= ledger.next_command:
        raise ProtocolError(f"the worker acknowledged command {message.command_number}, which was never issued")
    command = ledger.pending.get(message.command_number)
    if command is None:
        return
    kind = command.kind
    if isinstance(message, Applied):
        if kind is ASSIGN:
            _assigned(ledger, command)
    elif kind is UPLOAD:
        _uploaded(ledger, command)
    elif kind is OFFLOAD:
        _offloaded(ledger, command)


def _assigned(ledger: Ledger, command: PendingCommand) -> None:
    job = command.job
    del ledger.pending[command.number]
    job.assign = None
    if job.state is ASSIGNING:
        _become_resident(ledger, job)
    elif job.state is DEVICE:
        _announce_growth(ledger, job)


def _uploaded(ledger: Ledger, command: PendingCommand) -> None:
    job = command.job
    del ledger.pending[command.number]
    job.copy = None
    ledger.free_host(job)
    if job.state is ZOMBIE:
        _bury(ledger, command)
    else:
        _become_resident(ledger, job)


def _offloaded(ledger: Ledger, command: PendingCommand) -> None:
    job = command.job
    del ledger.pending[command.number]
    job.copy = None
    if job.state is ZOMBIE:
        ledger.free_host(job)
        _bury(ledger, command)
    else:
        ledger.free_device(job, keep=0)
        ledger.enter(job, HOST)


def _bury(ledger: Ledger, command: PendingCommand) -> None:
    job = ledger.zombies.pop(command.number)
    ledger.free_device(job, keep=0)


def _become_resident(ledger: Ledger, job: KvJob) -> None:
    ledger.enter(job, DEVICE)
    job.planned = job.finished
    job.announced_blocks = len(job.device)
    _tell(ledger, Resident(job.job_id, job.announced_blocks * ledger.block_size, job.finished, job.stay_number))


def _announce_growth(ledger: Ledger, job: KvJob) -> None:
    job.announced_blocks = len(job.device)
    _tell(ledger, Grown(job.job_id, job.announced_blocks * ledger.block_size, job.stay_number))
