"""Messages as sentences, and stories as text."""

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from services.domain.protocol import (
    Ack,
    Applied,
    Arrive,
    Assign,
    BlockMove,
    Done,
    Finished,
    Grown,
    IterationResult,
    Jobs,
    Offload,
    Order,
    OrderChange,
    PlanEntry,
    Planned,
    ReclaimRequest,
    Refuse,
    Release,
    ReleaseBlocks,
    Resident,
    Upload,
    WorkerPools,
)
from services.scheduler.machine.scheduler_events import Cancel, Emit, End, Reject, SendPlan, Submit, WorkerJoined
from tests.golden.story_server import Said, StorySetup

WIDTH = 100


@dataclass(frozen=True, slots=True)
class Note:
    """A note before the first message for which `when` holds, after the previous note."""

    text: str
    when: Callable[[Said], bool]


@dataclass(frozen=True, slots=True)
class Story:
    """A setup, what happens in it, and why it matters."""

    name: str
    title: str
    about: str
    setup: StorySetup
    notes: tuple[Note, ...]


def first(kind: type, job: str | None = None) -> Callable[[Said], bool]:
    """The first message of this kind, about this job."""
    return lambda said: isinstance(said.message, kind) and (job is None or getattr(said.message, "job_id", None) == job)


def plan_of(job: str, from_token: int) -> Callable[[Said], bool]:
    """A plan for the worker in which the job continues from this token."""
    return lambda said: (
        isinstance(said.message, SendPlan) and any(entry[:2] == (job, from_token) for entry in said.message.entries)
    )


def copied(command: int) -> Callable[[Said], bool]:
    """The end of this command's copies."""
    return lambda said: isinstance(said.message, Done) and said.message.command_number == command


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def _listed(parts: Iterable[object]) -> str:
    *most, last = [str(part) for part in parts]
    return f"{', '.join(most)} and {last}" if most else last


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _blocks(blocks: Iterable[int]) -> str:
    listed = list(blocks)
    return f"block{'' if len(listed) == 1 else 's'} {_listed(listed)}"


def _part(entry: PlanEntry) -> str:
    if entry.to_token - entry.from_token == 1:
        return f"{entry.job_id} computes token {entry.from_token}"
    return f"{entry.job_id} computes tokens {entry.from_token} to {entry.to_token - 1}"


def _place(change: OrderChange) -> str:
    return f"{change.job_id} on level {change.rank.level} (key {change.rank.key:g})"


def _moves(moves: tuple[BlockMove, ...]) -> str:
    pairs = _listed(f"{move.device_block}/{move.host_block}" for move in moves)
    return f"device/host block{'' if len(moves) == 1 else 's'} {pairs}"


def _jobs(message: Jobs) -> str:
    known = _listed(job.job_id for job in message.jobs) if message.jobs else "none"
    levels = ", ".join(_ms(quantum_s) for quantum_s in message.quanta_s)
    return f"epoch {message.epoch} begins; jobs: {known}; quanta of the levels: {levels}"


def _cut(jobs: tuple[str, ...]) -> str:
    return f", the prefill of {_listed(jobs)} was cut" if jobs else ""


def _result(message: IterationResult) -> str:
    made = [f"a token of {token.job_id}{', its last' if token.end_of_sequence else ''}" for token in message.tokens]
    tokens = _listed(made) if made else "no token"
    return f"plan {message.plan_number} took {_ms(message.duration_s)}: {tokens}{_cut(message.cut_job_ids)}"


def _reclaim(message: ReclaimRequest) -> str:
    purpose = "to make room ahead" if message.beneficiary_id is None else f"for {message.beneficiary_id}"
    return f"may the blocks of {message.job_id} be taken {purpose}?"


WORDS: Mapping[type, Callable[[Any], str]] = {
    Submit: lambda m: f"{m.job_id}: prompt of {_tokens(m.prompt_tokens)}, at most {_tokens(m.max_tokens)} of output",
    Cancel: lambda m: f"nobody wants more of {m.job_id} ({m.reason.value})",
    WorkerJoined: lambda m: f"joins as epoch {m.epoch}, its pool holds {_tokens(m.device_pool_tokens)}",
    WorkerPools: lambda m: (
        f"epoch {m.epoch}: {m.device_block_count} device and {m.host_block_count} host blocks of {m.block_size} tokens"
    ),
    Jobs: _jobs,
    Arrive: lambda m: f"{m.job.job_id} arrives, {_tokens(m.job.known_tokens)} now, {m.job.most_tokens} at most",
    Order: lambda m: f"order: {_listed(_place(change) for change in m.changes)}",
    Planned: lambda m: f"plan {m.plan_number} was sent: {_listed(_part(entry) for entry in m.entries)}",
    Finished: lambda m: f"plan {m.plan_number} is finished{_cut(m.cut_job_ids)}",
    Ack: lambda m: f"yes, {m.job_id} is in no plan",
    Refuse: lambda m: f"no, {m.job_id} ranks higher now",
    Release: lambda m: f"{m.job_id} is over",
    Resident: lambda m: (
        f"{m.job_id} is on the device, room for {_tokens(m.capacity_tokens)}, {m.valid_tokens or 'none'} of them there"
    ),
    Grown: lambda m: f"{m.job_id} has room for {_tokens(m.capacity_tokens)}",
    ReclaimRequest: _reclaim,
    Assign: lambda m: f"command {m.command_number}: {_blocks(m.device_blocks)} to {m.job_id}",
    Offload: lambda m: (
        f"command {m.command_number}: {m.job_id} to the host, {_moves(m.moves)}, {_tokens(m.valid_tokens)}"
    ),
    Upload: lambda m: (
        f"command {m.command_number}: {m.job_id} to the device, {_moves(m.moves)}, {_tokens(m.valid_tokens)}, "
        f"table {_blocks(m.device_blocks)}"
    ),
    ReleaseBlocks: lambda m: f"command {m.command_number}: forget {m.job_id}",
    Applied: lambda m: f"command {m.command_number} applied",
    Done: lambda m: f"command {m.command_number} copied",
    SendPlan: lambda m: f"plan {m.plan_number}: {_listed(_part(entry) for entry in m.entries)}",
    IterationResult: _result,
    Emit: lambda m: f"token {m.token_number} of {m.job_id}",
    End: lambda m: (
        f"{m.job_id} ended ({m.reason.value}): preempted {_times(m.preemptions)}, {_ms(m.queue_s)} queued, "
        f"{_ms(m.prefill_s)} to its first token, {_ms(m.decode_s)} more to its last"
    ),
    Reject: lambda m: f"{m.job_id} is refused: {m.field} {m.message}",
}


def transcript(story: Story, said: Iterable[Said]) -> str:
    """The story as text. Raises AssertionError if a note matches no message."""
    setup = story.setup
    knobs = [
        f"policy {setup.scheduler.policy.value}",
        f"KV policy {setup.kv.policy.name}",
        f"{setup.device_blocks} device and {setup.host_blocks} host blocks of {setup.block_size} tokens",
        f"batch of {setup.scheduler.max_batch}",
        f"{setup.scheduler.plans_in_flight or 2} plans in flight",
        f"{_ms(setup.hop_s)} a message",
        f"{_ms(setup.copy_s)} to copy a block",
    ]
    lines = [story.title, "=" * len(story.title), "", *textwrap.wrap(" ".join(story.about.split()), WIDTH), ""]
    lines += textwrap.wrap(f"Setup: {', '.join(knobs)}.", WIDTH)
    lines += ["", f"{'ms':>8}  {'from':<9} -> {'to':<9}  message"]
    notes = list(story.notes)
    for one in said:
        if notes and notes[0].when(one):
            lines += ["", *(f"  # {line}" for line in textwrap.wrap(" ".join(notes.pop(0).text.split()), WIDTH - 4))]
        words = WORDS[type(one.message)](one.message)
        lines.append(f"{one.time_s * 1000:8.1f}  {one.sender:<9} -> {one.receiver:<9}  {words}")
    assert not notes, f"nothing happened for: {notes[0].text}"
    return "\n".join(lines) + "\n"
