"""A job as the scheduler knows it: token counts, never token values.

Token counts of a job, each at most the next:
- `finished_tokens`: positions whose KV cache exists, according to the results received;
- `planned_tokens`: the same once every plan under way has run; the next plan entry starts here;
- `expected_tokens`: tokens that will be known then. An entry that reaches it samples the next token and raises it by
one. `known_tokens` (prompt plus received output) is `expected_tokens` less the samples under way. So the next entry
of a job is always planned_tokens -> expected_tokens: a whole prompt, the rest of one, or one position of a decode,
speculative or not (PROTOCOL rule 2).

The states are described in docs/protocol.md. The table of legal moves below is complete; any other move raises
ProtocolError with the job's history, because a peer (or this code) broke the protocol.
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
    """Can't be planned: its KV is not on the device, or the KV manager has not announced it."""
    RESIDENT = "resident"
    """May be planned up to its capacity."""
    DRAINING = "draining"
    """Its blocks were asked for: no new plan names it, and consent follows when the plans under way are done."""
    CLOSING = "closing"
    """Ended; a plan under way may still write into its blocks."""
    ENDED = "ended"
    """Released and forgotten."""

    # Members are singletons. Enum's own hash runs Python code, and states are looked up in sets all the time.
    __hash__ = object.__hash__


# The members as module-level names. Looking one up on its Enum runs Python code, which takes longer than the rest of
# most checks of a state.
OUT, RESIDENT, DRAINING, CLOSING, ENDED = JobState


class LoanKind(Enum):
    """What a job is lent iterations at the head of the order for."""

    SILENCE = "silence"
    FIRST_TOKEN = "first token"
    LATER_TOKENS = "later tokens"

    __hash__ = object.__hash__


LEGAL_MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.OUT: frozenset({JobState.RESIDENT, JobState.CLOSING}),
    JobState.RESIDENT: frozenset({JobState.DRAINING, JobState.CLOSING, JobState.OUT}),
    JobState.DRAINING: frozenset({JobState.OUT, JobState.CLOSING}),
    JobState.CLOSING: frozenset({JobState.ENDED}),
    JobState.ENDED: frozenset(),
}

HISTORY_MOVES = 12


class Move(NamedTuple):
    """One line of a job's history."""

    time_s: float
    state: JobState
    reason: str


@dataclass(slots=True, eq=False)
class Job:
    """`place` is where the policy wants the job, `rank` where it is (they differ while PROTOCOL rule 6 holds it on
    top). `stay_number` counts the arrivals at this machine (PROTOCOL rule 28).
    """

    job_id: JobId
    arrival_number: int
    stay_number: int
    prompt_tokens: int
    max_tokens: int
    arrived_s: float
    deadline_s: float | None
    rank: Rank
    place: Rank
    known_tokens: int
    expected_tokens: int
    client_number: int = 0
    """Stands for the client; 0: it gave no name."""
    is_guided: bool = False
    """Its first entry at a worker may be passed over, because its guide is not compiled yet."""
    planned_tokens: int = 0
    finished_tokens: int = 0
    capacity_tokens: int = 0
    in_flight: int = 0
    state: JobState = JobState.OUT
    is_ready: bool = False
    is_held: bool = False
    """It is to leave for another group, and is not planned until then."""
    cut_plan: int | None = None
    """The plan under way that may cut its prefill or pass it over; the job can't be planned again before its result."""
    service_s: float = 0.0
    """Service received at the present level, in seconds; owned by the policy."""
    length_class: int = 0
    """Which of the learnt length distributions is the job's. This and the next three are owned by the policy."""
    bucket: int = 0
    """The bucket of output lengths that the job has entered."""
    bucket_end: int = 0
    """Output tokens with which it enters the next one."""
    expected_s: float = 0.0
    """Expected seconds of the work that is left."""
    length_bucket: int = 0
    """The bucket of output lengths that it is counted in. This and the next two are owned by the backlog."""
    next_length_tokens: int = 0
    """Known tokens with which it is counted in the next one."""
    prefill_cost_s: float = 0.0
    """What its prefill will cost; 0 once it has made a token."""
    waiting_since_s: float = 0.0
    starvation_timer: bool = False
    promoted: bool = False
    """It was promoted and has made no token since: its next iteration is guaranteed, with all chunks (PAPER 2, step 3).
    """
    last_plan: int = -1
    preemptions: int = 0
    first_planned_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    lent_to_token: int | None = None
    """It is lent iterations at the head of the order, up to the one that computes this position; None: it is not."""
    loan_kind: LoanKind = LoanKind.SILENCE
    """Of its loan, or the last one."""
    held_tokens: int = 0
    """Its capacity, as counted by lending: 0 before it is first planned."""
    next_far_loan_s: float = 0.0
    """Before this time it is not lent anything while its KV is not on the device."""
    history: list[Move] = field(default_factory=list)

    @property
    def output_tokens(self) -> int:
        """Output tokens received."""
        return self.known_tokens - self.prompt_tokens

    @property
    def most_tokens(self) -> int:
        """The most tokens that its KV may hold: that of the last output token is never written."""
        return self.prompt_tokens + self.max_tokens - 1

    def move(self, state: JobState, now_s: float, reason: str) -> None:
        """Change the state. Raises ProtocolError for a move that is not in LEGAL_MOVES."""
        if state not in LEGAL_MOVES[self.state]:
            raise self.broken(f"illegal move {self.state.value} -> {state.value} ({reason})")
        self.state = state
        if len(self.history) == HISTORY_MOVES:
            del self.history[0]
        self.history.append(Move(now_s, state, reason))

    def broken(self, what: str) -> ProtocolError:
        """The error to raise when the protocol was broken for this job, with its history."""
        story = "; ".join(f"{move.time_s:.6f} {move.state.value} ({move.reason})" for move in self.history)
        return ProtocolError(
            f"job {self.job_id}: {what}. Tokens: finished {self.finished_tokens}, planned {self.planned_tokens}, "
            f"expected {self.expected_tokens}, capacity {self.capacity_tokens}. Plans under way: {self.in_flight}. "
            f"History: {story}"
        )
