"""A job as the scheduler knows it: counts of tokens, never their values.

Token counts of a job, each at most the next:
- `finished_tokens`: positions whose KV cache exists, as far as results have come back;
- `planned_tokens`: the same once every plan under way has run; the next plan entry starts here;
- `expected_tokens`: tokens that will be known then. An entry that reaches it samples the next token and raises it by
  one. `known_tokens` (prompt and output that came back) is `expected_tokens` less the samples under way. So the next
  entry of a job is always planned_tokens -> expected_tokens: all of a prompt, a rest of it, or one position of a
  decode, speculative or not (PROTOCOL rule 2).

What the states mean: docs/protocol.md, States. The table of legal moves below is the whole of what may happen to a job;
any other move raises ProtocolError with the job's story, because a peer (or this code) broke the protocol.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from services.domain.errors import ProtocolError
from services.domain.ids import JobId
from services.domain.protocol import Rank


class JobState(Enum):
    """Where a job stands between scheduler and KV manager."""

    OUT = "out"
    """Not to be planned: its KV is not on the device, or the KV manager has not said so."""
    RESIDENT = "resident"
    """May be planned up to its capacity."""
    DRAINING = "draining"
    """Its blocks were asked for: no new plan names it, consent follows when the plans under way are done."""
    CLOSING = "closing"
    """Ended; a plan under way may still write into its blocks."""
    ENDED = "ended"
    """Released; forgotten."""

    # Members are singletons. Enum's own hash is a call of Python code, and states are looked up in sets all the time.
    __hash__ = object.__hash__


# The members under names of their own. To look one up on its Enum is a call of Python code, and takes longer than all
# else of most questions about a state.
OUT, RESIDENT, DRAINING, CLOSING, ENDED = JobState

LEGAL_MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.OUT: frozenset({JobState.RESIDENT, JobState.CLOSING}),
    JobState.RESIDENT: frozenset({JobState.DRAINING, JobState.CLOSING, JobState.OUT}),
    JobState.DRAINING: frozenset({JobState.OUT, JobState.CLOSING}),
    JobState.CLOSING: frozenset({JobState.ENDED}),
    JobState.ENDED: frozenset(),
}

HISTORY_MOVES = 12


class Move(NamedTuple):
    """One line of a job's story."""

    time_s: float
    state: JobState
    reason: str


@dataclass(slots=True, eq=False)
class Job:
    """One job. `place` is where the policy wants it, `rank` where it stands (they differ while PROTOCOL rule 6 holds it
    on top).
    """

    job_id: JobId
    arrival_number: int
    prompt_tokens: int
    max_tokens: int
    arrived_s: float
    deadline_s: float | None
    rank: Rank
    place: Rank
    known_tokens: int
    expected_tokens: int
    planned_tokens: int = 0
    finished_tokens: int = 0
    capacity_tokens: int = 0
    in_flight: int = 0
    state: JobState = JobState.OUT
    is_ready: bool = False
    cut_plan: int | None = None
    """The plan under way that may cut its prefill: what comes after can't be planned before its result."""
    service_s: float = 0.0
    """Service received at the present level; the policy's."""
    waiting_since_s: float = 0.0
    starvation_timer: bool = False
    promoted: bool = False
    """It was, and has made no token since: its next iteration is guaranteed, all chunks of it (PAPER 2, step 3)."""
    last_plan: int = -1
    preemptions: int = 0
    first_planned_s: float | None = None
    first_token_s: float | None = None
    history: list[Move] = field(default_factory=list)

    @property
    def output_tokens(self) -> int:
        """Output tokens that came back."""
        return self.known_tokens - self.prompt_tokens

    @property
    def most_tokens(self) -> int:
        """Most tokens its KV may come to hold: the last output token's is never written."""
        return self.prompt_tokens + self.max_tokens - 1

    def move(self, state: JobState, now_s: float, reason: str) -> None:
        """Change state by the table. Raises ProtocolError for a move that is not in it."""
        if state not in LEGAL_MOVES[self.state]:
            raise self.broken(f"{self.state.value} -> {state.value} ({reason})")
        self.state = state
        if len(self.history) == HISTORY_MOVES:
            del self.history[0]
        self.history.append(Move(now_s, state, reason))

    def broken(self, what: str) -> ProtocolError:
        """The error to raise when something happened to this job that must not."""
        story = "; ".join(f"{move.time_s:.6f} {move.state.value} ({move.reason})" for move in self.history)
        return ProtocolError(
            f"job {self.job_id}: {what}. Tokens finished {self.finished_tokens}, planned {self.planned_tokens}, "
            f"expected {self.expected_tokens}, capacity {self.capacity_tokens}; plans under way {self.in_flight}. "
            f"Story: {story}"
        )
