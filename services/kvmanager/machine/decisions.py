"""Which jobs get blocks, which give them up, and what is moved ahead of need. Runs once at the end of every turn.

The jobs that would run now are the `max_batch` best ones: the window. A turn decides four things.

1. The window, best job first (PROTOCOL 12). A demand that fits in the free blocks is served. It may use the idle
reserve, which exists for jobs that would run now. The first demand that does not fit, but would if all jobs below it
gave way, blocks all jobs below: none of them is served before it, otherwise small jobs would starve a large one. The
blocked demands claim blocks in turn, and each asks for jobs strictly below it until its claim is covered (PROTOCOL
13). A demand that would not fit even if all jobs below gave way claims nothing.
2. Growth ahead. While half of the pool is free, jobs of the window grow before they run short, and together.
3. Room ahead (proactive). If the free and leaving blocks fall short of the reserve, jobs outside the window are asked
for, largest ENST first, unless the host has no room for them: a reserve is not worth losing a job's KV.
4. Blocks ahead. Jobs just behind the window get their blocks before they enter it, smallest ENST first, as long as
more than the reserve and one arrival's blocks stay free, so that the answer to 3 does not change. A job that would
be the next victim stays where it is, unless there is plenty of room.

A job that was just brought in is not asked for before it has run an iteration; otherwise two jobs could push each
other out forever without making a token. This protection ends when several plans have been made without the job, or
when no plan is under way, since otherwise nothing would ever end it.

Where jobs run to completion (`Ledger.displaces` is false: FCFS), a job that waits takes no blocks from one that has
them, and no reserve is kept for arrivals, which never run before the jobs that are there. The growth of the resident
jobs of the window comes first; it takes blocks from the job that was admitted last. Then the waiting jobs of the window
are admitted in order while they fit. This is what vLLM does.

A decision walks two windows and a bounded number of victims, however many jobs are queued.
"""

from math import ceil

from services.domain.protocol import GROWTH_TOKENS
from services.kvmanager.machine import moves
from services.kvmanager.machine.enst import enst_s
from services.kvmanager.machine.kv_job import DEVICE, HELD, HOST, WAITING, KvJob
from services.kvmanager.machine.ledger import Ledger
from services.kvmanager.policies.kv_config import KvConfig
from services.kvmanager.policies.kv_policy import ReserveFacts

VICTIM_SCAN = 64
"""The most jobs examined for one demand."""

AHEAD_SCAN = 32
"""The most jobs examined to make room ahead."""

AHEAD_ASKS = 4
"""The most jobs asked for ahead in one turn: room ahead is never urgent."""

FEW_PLANS, USUAL_PLANS = 2, 4
"""Under way where none are made ahead: plans that name a job, and plans together, unless a pipeline is longer."""

PROMOTED_SCAN = 4
"""The most HOST jobs, longest wait first, that are examined for an upload ahead of their promotion."""


def decide(ledger: Ledger, knobs: KvConfig, now_s: float) -> None:
    """Take all decisions that are due, and append their commands to the ledger."""
    policy = knobs.policy
    burst = ledger.order.jobs_through(knobs.burst_levels) if ledger.quanta_s else 0
    facts = ReserveFacts(ledger.device.count, ledger.arrival_blocks, burst)
    reserve = policy.reserve_blocks(facts) if ledger.displaces else 0
    window = ledger.order.slice(0, ledger.max_batch)
    claimed = _serve_window(ledger, window, knobs, reserve)
    if not claimed:
        _grow_ahead(ledger, window, knobs, reserve)
    if reserve:
        _make_room_ahead(ledger, knobs, reserve + claimed, now_s)
    if not claimed:
        _serve_ahead(ledger, knobs, reserve, now_s)


def blocks_wanted(ledger: Ledger, job: KvJob, knobs: KvConfig) -> int:
    """The number of blocks that the job needs to run its next iteration, or will soon need (growth, PROTOCOL 16). 0 if
    it needs none or is moving.
    """
    state = job.state
    if state is HOST:
        tokens = job.finished + 1
        return ledger.blocks_for(tokens if tokens > job.known else job.known)
    if state is DEVICE:
        return 1 if runs_short(job, knobs) and job.assign is None and job.table_tokens < job.most else 0
    if state is WAITING:
        return ledger.blocks_for(knobs.policy.tokens_at_once(job.known, job.most))
    return 0


def runs_short(job: KvJob, knobs: KvConfig) -> bool:
    """Whether no more than L of its capacity are unplanned (PROTOCOL 16). Each plan that is made ahead uses up the
    capacity one iteration earlier.
    """
    return job.table_tokens - job.planned <= knobs.lookahead_tokens + max(0, job.plans - FEW_PLANS)


# --- 1. the window ---------------------------------------------------------------------------------------------------


def _serve_window(ledger: Ledger, window: list[KvJob], knobs: KvConfig, reserve: int) -> int:
    """Serve demands by rank, and reclaim blocks for the blocked ones. Returns the number of blocks that those claim."""
    claimed = 0
    held_blocks = counted_jobs = 0
    if not ledger.displaces:
        window = sorted(window, key=lambda job: job.state is not DEVICE)
    for place, job in enumerate(window):
        if not runs_short(job, knobs):
            continue  # most jobs need nothing in most turns: skip them early
        wanted = blocks_wanted(ledger, job, knobs)
        if wanted == 0 or wanted > ledger.device.count:
            continue
        if not claimed and wanted <= ledger.device.free_count:
            _give(ledger, job, wanted, knobs, reserve)
        elif not knobs.policy.reclaims or not (ledger.displaces or job.state is DEVICE):
            claimed += wanted
        else:
            # The blocks of this job and those above it. These no longer change, so they are counted once.
            for above in window[counted_jobs : place + 1]:
                if above.state in HELD:
                    held_blocks += len(above.device)
            counted_jobs = place + 1
            most = ledger.device.count - held_blocks
            if claimed + wanted <= most:
                claimed += wanted
                _reclaim(ledger, job, claimed - ledger.device.free_count - ledger.leaving_blocks, knobs)
            if claimed >= most:
                break  # no job below can claim another block, and none is free
    return claimed


def _give(ledger: Ledger, job: KvJob, wanted: int, knobs: KvConfig, reserve: int) -> None:
    """Serve a demand that fits. While the pool has room, give more than was asked for: this saves messages, and no job
    has to sit out because it lacks a block.
    """
    most = ledger.blocks_for(job.most) - len(job.device)
    if job.state is DEVICE:
        roomy = min(max(wanted, knobs.grant_blocks), most)
    else:
        roomy = min(wanted + ledger.blocks_for(knobs.lookahead_tokens), max(most, wanted))
    if ledger.device.free_count - roomy >= reserve + ledger.max_batch:
        wanted = roomy
    if job.state is HOST:
        moves.upload(ledger, job, wanted)
    else:
        moves.assign(ledger, job, wanted)


def _reclaim(ledger: Ledger, beneficiary: KvJob, short: int, knobs: KvConfig) -> None:
    """Ask for jobs strictly below the beneficiary until `short` more blocks are leaving: first jobs that are in no
    plan, then the others, each lowest first.
    """
    assert beneficiary.rank is not None
    if short <= 0:
        return
    below = ledger.on_device.below(beneficiary.rank, VICTIM_SCAN)
    for is_planned in (False, True):
        for job in below:
            if (job.plans > 0) is not is_planned or (job.brought_in and _protected(ledger, job, knobs)):
                continue
            short -= len(job.device)
            moves.ask(ledger, job, beneficiary)
            if short <= 0:
                return


def _protected(ledger: Ledger, job: KvJob, knobs: KvConfig) -> bool:
    """Whether a job that was brought in is still protected. Where jobs run to completion, one that has computed nothing
    loses nothing.
    """
    loses = ledger.displaces or job.finished > 0
    return loses and job.passed_over < protected_plans(ledger, knobs) and bool(ledger.plans)


def protected_plans(ledger: Ledger, knobs: KvConfig) -> int:
    """So many plans without it protect a job that was brought in. Those made ahead were made before the scheduler heard
    of it.
    """
    return knobs.protected_plans + max(0, len(ledger.plans) - USUAL_PLANS)


# --- 2. growth ahead -------------------------------------------------------------------------------------------------


def _grow_ahead(ledger: Ledger, window: list[KvJob], knobs: KvConfig, reserve: int) -> None:
    """Grow jobs of the window once one of them has no more than GROWTH_TOKENS left: that one, and those that will be
    there soon. The messages that one growth takes then carry that of the whole batch. Only while half of the pool is
    free, and a grant for each job of a batch: blocks given early to one would be missed by others later.
    """
    plenty = max(reserve + ledger.max_batch * knobs.grant_blocks, ledger.device.count // 2)
    if knobs.grant_blocks == 1 or ledger.device.free_count < plenty:
        return
    early = min(GROWTH_TOKENS, ledger.block_size)
    soon = early + ledger.block_size * (knobs.grant_blocks // 2)
    growing: list[KvJob] = []
    is_due = False
    for job in window:
        if job.state is DEVICE and job.assign is None and job.table_tokens < job.most:
            left = job.table_tokens - job.planned - max(0, job.plans - FEW_PLANS)
            if left <= soon:
                growing.append(job)
                is_due = is_due or left <= early
    if is_due:
        for job in growing:
            moves.assign(ledger, job, min(knobs.grant_blocks, ledger.blocks_for(job.most) - len(job.device)))


# --- 3. room ahead ---------------------------------------------------------------------------------------------------


def _make_room_ahead(ledger: Ledger, knobs: KvConfig, wanted: int, now_s: float) -> None:
    """Ask for jobs outside the window, largest ENST first, until `wanted` blocks are free or leaving."""
    short = wanted - ledger.device.free_count - ledger.leaving_blocks
    edge = ledger.order.last_of_window(ledger.max_batch)
    if short <= 0 or edge is None:
        return
    outside = [
        job
        for job in ledger.on_device.below(edge, AHEAD_SCAN)
        if not (job.brought_in and _protected(ledger, job, knobs))
    ]
    host_room = ledger.host.free_count
    for job in _by_enst(ledger, outside, now_s, largest_first=True)[:AHEAD_ASKS]:
        host_room -= ledger.blocks_for(job.planned)
        if short <= 0 or host_room < 0:
            return
        short -= len(job.device)
        moves.ask(ledger, job, None)


def _by_enst(ledger: Ledger, jobs: list[KvJob], now_s: float, *, largest_first: bool) -> list[KvJob]:
    """The jobs sorted by ENST; jobs that tie keep their order."""
    if len(jobs) < 2:
        return jobs
    execute_s, limit_s = ledger.execute_s(), ledger.starvation_limit_s
    ensts_s = [
        enst_s(rank.level, execute_s, 0.0 if job.plans else now_s - job.waiting_since_s, limit_s)
        for job in jobs
        if (rank := job.rank) is not None  # all of them are ranked
    ]
    return [jobs[at] for at in sorted(range(len(jobs)), key=ensts_s.__getitem__, reverse=largest_first)]


# --- 4. blocks ahead -------------------------------------------------------------------------------------------------


def _serve_ahead(ledger: Ledger, knobs: KvConfig, reserve: int, now_s: float) -> None:
    """Give blocks to jobs behind the window, smallest ENST first, as long as the reserve and one arrival's blocks stay
    free.
    """
    policy = knobs.policy
    keep = reserve + ceil(ledger.arrival_blocks) if policy.reclaims else 0
    if ledger.device.free_count <= keep:
        return
    behind = ledger.order.slice(ledger.max_batch, 2 * ledger.max_batch)
    wanting = {
        job: wanted for job in behind if runs_short(job, knobs) and (wanted := blocks_wanted(ledger, job, knobs)) > 0
    }
    if policy.uploads_ahead:
        execute_s, limit_s = ledger.execute_s(), ledger.starvation_limit_s
        for since_s, rank, job in ledger.host_by_wait[:PROMOTED_SCAN]:
            executed_first_s = enst_s(rank.level, execute_s, 0.0, None)
            if job not in wanting and enst_s(rank.level, execute_s, now_s - since_s, limit_s) < executed_first_s:
                # The job will run because of its promotion, before its turn comes.
                wanting[job] = blocks_wanted(ledger, job, knobs)
    if not wanting or min(wanting.values()) > ledger.device.free_count - keep:
        return  # whichever came first, it would not fit
    jobs = list(wanting)
    for job in _by_enst(ledger, jobs, now_s, largest_first=False) if policy.uploads_ahead else jobs:
        wanted = wanting[job]
        if wanted > ledger.device.count or (job.state is HOST and not policy.uploads_ahead):
            continue
        left = ledger.device.free_count - wanted
        if left < keep or (job.state is HOST and left < keep + wanted and _next_victim(ledger, job)):
            return
        _give(ledger, job, wanted, knobs, reserve)


def _next_victim(ledger: Ledger, job: KvJob) -> bool:
    """Whether the job would rank below all jobs on the device."""
    lowest = ledger.on_device.lowest()
    assert job.rank is not None
    return lowest is None or lowest.rank is None or job.rank > lowest.rank
