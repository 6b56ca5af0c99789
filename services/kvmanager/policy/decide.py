"""Who gets blocks, who is asked for them, and what is moved ahead of need. Runs once at the end of every turn.

The jobs that would run now are the `max_batch` best ones: the window. A turn goes through three questions.

1. The window, best job first (PROTOCOL 12). A demand that fits the free blocks is served, the idle reserve included:
   it is there for jobs that would run now. The first one that does not fit, but would if everything below it gave
   way, blocks everybody below: nobody is served past it, or small jobs would starve a large one. The blocked demands
   claim blocks in turn, and each asks for as many jobs strictly below it as its claim still lacks (13). A demand that
   not even everything below would cover claims nothing.
2. Room ahead (proactive). If the free blocks and those on their way fall short of the reserve, jobs outside the
   window are asked for, largest ENST first, unless the host has no room for them: a reserve is not worth anybody's
   KV.
3. Blocks ahead. Jobs just behind the window get theirs before they are in it, smallest ENST first, while more than
   the reserve and one arrival's worth stays free, so that the answer to 2 does not change by it. A job that would be
   the next victim is left where it is, unless room abounds.

A job just brought in is not asked for before it ran an iteration: otherwise two jobs could push each other out for
ever without a token. That protection ends when plans go by without the job, or when none is under way, since then
nothing else would ever end it.

The cost of a decision is that of walking two windows and a bounded number of victims, however many jobs are queued.
"""

from math import ceil

from services.kvmanager.policy import moves
from services.kvmanager.policy.enst import enst_s, execute_s_by_level
from services.kvmanager.policy.job import HELD, JobState, KvJob
from services.kvmanager.policy.ledger import Ledger
from services.kvmanager.policy.policies import KvKnobs, ReserveFacts

VICTIM_SCAN = 64
"""Most jobs looked at for one demand."""

AHEAD_SCAN = 32
"""Most jobs looked at to make room ahead."""

AHEAD_ASKS = 4
"""Most jobs asked for ahead in one turn: room ahead is never urgent."""

PROMOTED_SCAN = 4
"""Longest waiting jobs on the host that are looked at for an upload ahead of their promotion."""


def decide(ledger: Ledger, knobs: KvKnobs, now_s: float) -> None:
    """Take all decisions that the state calls for; their commands are in the ledger."""
    policy = knobs.policy
    burst = ledger.order.jobs_through(knobs.burst_levels) if ledger.quanta_s else 0
    reserve = policy.reserve_blocks(ReserveFacts(ledger.device.count, ledger.arrival_blocks, burst))
    claimed = _serve_window(ledger, knobs, reserve)
    if reserve:
        _make_room_ahead(ledger, knobs, reserve + claimed, now_s)
    if not claimed:
        _serve_ahead(ledger, knobs, reserve, now_s)


def blocks_wanted(ledger: Ledger, job: KvJob, knobs: KvKnobs) -> int:
    """Blocks without which the job cannot run its next iteration, or soon could not (growth, PROTOCOL 16). 0: it
    lacks nothing, or is moving.
    """
    state = job.state
    if state is JobState.DEVICE:
        held = len(job.device)
        short = held * ledger.block_size - job.planned <= knobs.lookahead_tokens
        return 1 if short and job.assign is None and held < ledger.blocks_for(job.most) else 0
    if state is JobState.WAITING:
        return ledger.blocks_for(knobs.policy.tokens_at_once(job.known, job.most))
    if state is JobState.HOST:
        return ledger.blocks_for(max(job.known, job.finished + 1))
    return 0


# --- 1. the window ---------------------------------------------------------------------------------------------------


def _serve_window(ledger: Ledger, knobs: KvKnobs, reserve: int) -> int:
    """Serve by rank and reclaim for what is left. Returns the blocks that blocked demands claim."""
    claimed = 0
    held_above = 0
    block_size, lookahead_tokens = ledger.block_size, knobs.lookahead_tokens
    for job in ledger.order.slice(0, ledger.max_batch):
        if job.state is JobState.DEVICE and len(job.device) * block_size - job.planned > lookahead_tokens:
            held_above += len(job.device)  # most jobs of most turns want nothing, and are asked no further
            continue
        wanted = blocks_wanted(ledger, job, knobs)
        if 0 < wanted <= ledger.device.count:
            if not claimed and wanted <= ledger.device.free_count:
                _give(ledger, job, wanted, knobs, reserve)
            else:
                below = ledger.held_blocks - held_above - _held(job)
                coming = ledger.device.free_count + ledger.leaving_blocks
                if not knobs.policy.reclaims:
                    claimed += wanted
                elif claimed + wanted <= coming + below:
                    claimed += wanted
                    _reclaim(ledger, job, claimed - coming, knobs)
        held_above += _held(job)
    return claimed


def _held(job: KvJob) -> int:
    return len(job.device) if job.state in HELD else 0


def _give(ledger: Ledger, job: KvJob, wanted: int, knobs: KvKnobs, reserve: int) -> None:
    """Serve a demand that fits. While the pool is slack give more: fewer messages, and nobody has to sit out for want
    of a block.
    """
    most = ledger.blocks_for(job.most) - len(job.device)
    if job.state is JobState.DEVICE:
        roomy = min(max(wanted, knobs.grant_blocks), most)
    else:
        roomy = min(wanted + ledger.blocks_for(knobs.lookahead_tokens), max(most, wanted))
    if ledger.device.free_count - roomy >= reserve + ledger.max_batch:
        wanted = roomy
    if job.state is JobState.HOST:
        moves.upload(ledger, job, wanted)
    else:
        moves.assign(ledger, job, wanted)


def _reclaim(ledger: Ledger, beneficiary: KvJob, short: int, knobs: KvKnobs) -> None:
    """Ask for jobs strictly below the beneficiary until `short` more blocks are leaving: lowest first, those in no
    plan before the others.
    """
    assert beneficiary.rank is not None
    if short <= 0:
        return
    below = [job for job in ledger.on_device.below(beneficiary.rank, VICTIM_SCAN) if not _protected(ledger, job, knobs)]
    for job in [*(job for job in below if not job.plans), *(job for job in below if job.plans)]:
        if short <= 0:
            return
        short -= len(job.device)
        moves.ask(ledger, job, beneficiary)


def _protected(ledger: Ledger, job: KvJob, knobs: KvKnobs) -> bool:
    return job.brought_in and job.passed_over < knobs.protected_plans and bool(ledger.plans)


# --- 2. room ahead ---------------------------------------------------------------------------------------------------


def _make_room_ahead(ledger: Ledger, knobs: KvKnobs, wanted: int, now_s: float) -> None:
    """Ask for jobs outside the window, largest ENST first, until `wanted` blocks are free or leaving."""
    short = wanted - ledger.device.free_count - ledger.leaving_blocks
    edge = ledger.order.last_of_window(ledger.max_batch)
    if short <= 0 or edge is None:
        return
    execute_s = execute_s_by_level(ledger.order.level_counts, ledger.quanta_s, ledger.max_batch)
    outside = [job for job in ledger.on_device.below(edge, AHEAD_SCAN) if not _protected(ledger, job, knobs)]
    outside.sort(key=lambda job: _enst_s(ledger, job, execute_s, now_s), reverse=True)
    host_room = ledger.host.free_count
    for job in outside[:AHEAD_ASKS]:
        host_room -= ledger.blocks_for(job.planned)
        if short <= 0 or host_room < 0:
            return
        short -= len(job.device)
        moves.ask(ledger, job, None)


def _enst_s(ledger: Ledger, job: KvJob, execute_s: list[float], now_s: float) -> float:
    assert job.rank is not None
    waited_s = 0.0 if job.plans else now_s - job.waiting_since_s
    return enst_s(job.rank.level, execute_s, waited_s, ledger.starvation_limit_s)


# --- 3. blocks ahead -------------------------------------------------------------------------------------------------


def _serve_ahead(ledger: Ledger, knobs: KvKnobs, reserve: int, now_s: float) -> None:
    """Give blocks to jobs behind the window, smallest ENST first, as long as that leaves the reserve and an arrival's
    worth.
    """
    policy = knobs.policy
    keep = reserve + ceil(ledger.arrival_blocks) if policy.reclaims else 0
    if ledger.device.free_count <= keep:
        return
    behind = ledger.order.slice(ledger.max_batch, 2 * ledger.max_batch)
    if policy.uploads_ahead:
        execute_s = execute_s_by_level(ledger.order.level_counts, ledger.quanta_s, ledger.max_batch)
        longest_waiting = [job for _, _, job in ledger.host_by_wait[:PROMOTED_SCAN]]
        behind.extend(
            job for job in longest_waiting if job not in behind and _promoted_first(ledger, job, execute_s, now_s)
        )
    wanting = [(job, wanted) for job in behind if (wanted := blocks_wanted(ledger, job, knobs)) > 0]
    if policy.uploads_ahead and len(wanting) > 1:
        wanting.sort(key=lambda item: _enst_s(ledger, item[0], execute_s, now_s))
    for job, wanted in wanting:
        if wanted > ledger.device.count or (job.state is JobState.HOST and not policy.uploads_ahead):
            continue
        left = ledger.device.free_count - wanted
        if left < keep or (job.state is JobState.HOST and left < keep + wanted and _next_victim(ledger, job)):
            return
        _give(ledger, job, wanted, knobs, reserve)


def _promoted_first(ledger: Ledger, job: KvJob, execute_s: list[float], now_s: float) -> bool:
    """Whether its promotion, not its turn, is what makes the job run next."""
    assert job.rank is not None
    return _enst_s(ledger, job, execute_s, now_s) < enst_s(job.rank.level, execute_s, 0.0, None)


def _next_victim(ledger: Ledger, job: KvJob) -> bool:
    """Whether the job would rank below everybody on the device."""
    lowest = ledger.on_device.lowest()
    assert job.rank is not None
    return lowest is None or lowest.rank is None or job.rank > lowest.rank
