"""A job as the KV manager knows it, and the states of its KV cache.

WAITING --Assign--> ASSIGNING --Applied--> DEVICE --ReclaimRequest--> ASKED
ASKED --Refuse--> DEVICE
ASKED --Ack--> OFFLOADING --Done--> HOST, or WAITING if the KV is not kept
HOST --Upload--> UPLOADING --Done--> DEVICE
HOST --dropped to make room on the host--> WAITING

A job that ends is removed at once, unless a copy of its blocks is running: then it becomes a ZOMBIE, which holds just
the blocks of that copy until the copy is Done.

Token counts follow the plans: `planned` is the end of the last entry sent to the worker, `finished` the end of the last
entry whose result is back, hence the number of tokens with valid KV. Both are 0 for a job without KV; `known` is then
the number of tokens that its next prefill computes.
"""

from enum import Enum

from services.domain.errors import ProtocolError
from services.domain.ids import BlockId, CommandNumber, JobId
from services.domain.protocol import Rank

STORY_LENGTH = 12


class KvState(Enum):
    """Where a job's KV cache is or is moving to."""

    WAITING = "waiting"
    ASSIGNING = "assigning"
    DEVICE = "device"
    ASKED = "asked"
    OFFLOADING = "offloading"
    HOST = "host"
    UPLOADING = "uploading"
    ZOMBIE = "zombie"

    # Members are singletons. Enum's own hash runs Python code, and states are looked up in sets all the time.
    __hash__ = object.__hash__


# The members as module-level names. Looking one up on its Enum runs Python code, which takes longer than the rest of
# most checks of a state.
WAITING, ASSIGNING, DEVICE, ASKED, OFFLOADING, HOST, UPLOADING, ZOMBIE = KvState

LEGAL_MOVES: dict[KvState, frozenset[KvState]] = {
    KvState.WAITING: frozenset({KvState.ASSIGNING}),
    KvState.ASSIGNING: frozenset({KvState.DEVICE}),
    KvState.DEVICE: frozenset({KvState.ASKED, KvState.ZOMBIE}),
    KvState.ASKED: frozenset({KvState.DEVICE, KvState.OFFLOADING, KvState.WAITING, KvState.ZOMBIE}),
    KvState.OFFLOADING: frozenset({KvState.HOST, KvState.ZOMBIE}),
    KvState.HOST: frozenset({KvState.UPLOADING, KvState.WAITING}),
    KvState.UPLOADING: frozenset({KvState.DEVICE, KvState.ZOMBIE}),
    KvState.ZOMBIE: frozenset(),
}

HELD = frozenset({KvState.ASSIGNING, KvState.DEVICE, KvState.UPLOADING})
"""States whose device blocks stay until they are asked for."""

LEAVING = frozenset({KvState.ASKED, KvState.OFFLOADING, KvState.ZOMBIE})
"""States whose device blocks will become free."""

SWAPPED_OUT = frozenset({KvState.OFFLOADING, KvState.HOST})
"""States in which the KV cache is in host memory or on its way there."""


class CommandKind(Enum):
    """Commands that are pending until they are acknowledged."""

    ASSIGN = "assign"
    UPLOAD = "upload"
    OFFLOAD = "offload"


ASSIGN, UPLOAD, OFFLOAD = CommandKind


class PendingCommand:
    """A command under way: an Assign until it is Applied, a copy until it is Done."""

    __slots__ = ("job", "kind", "number")

    def __init__(self, number: CommandNumber, kind: CommandKind, job: "KvJob") -> None:
        self.number = number
        self.kind = kind
        self.job = job


class KvJob:
    """A job, owned by the ledger. Other code changes only its token counts."""

    __slots__ = (
        "announced_blocks",
        "assign",
        "brought_in",
        "copy",
        "device",
        "finished",
        "host",
        "job_id",
        "known",
        "most",
        "passed_over",
        "planned",
        "plans",
        "rank",
        "state",
        "stay_number",
        "story",
        "table_tokens",
        "waiting_since_s",
    )

    def __init__(self, job_id: JobId, known_tokens: int, most_tokens: int, stay_number: int, now_s: float) -> None:
        self.job_id = job_id
        self.stay_number = stay_number
        """As announced by the scheduler (rule 28)."""
        self.known = known_tokens
        """Tokens to compute if its KV has to be computed from the start."""
        self.most = most_tokens
        """The most tokens that its KV may hold."""
        self.state = KvState.WAITING
        self.rank: Rank | None = None
        self.planned = 0
        self.finished = 0
        self.plans = 0
        """Number of unfinished plans that name it."""
        self.device: list[BlockId] = []
        self.host: list[BlockId] = []
        self.table_tokens = 0
        """Tokens that a DEVICE job's blocks hold; 0 in every other state. Set by the ledger."""
        self.announced_blocks = 0
        """Blocks that were announced to the scheduler."""
        self.assign: PendingCommand | None = None
        """The Assign under way: first blocks or growth."""
        self.copy: PendingCommand | None = None
        """The offload or upload under way (rule 10: one at a time)."""
        self.brought_in = False
        """It recently received its blocks and has not run an iteration since."""
        self.passed_over = 0
        """Number of plans made without it since it was brought in."""
        self.waiting_since_s = now_s
        self.story: list[str] = ["arrived"]

    def __lt__(self, other: "KvJob") -> bool:
        """Never decides an order (arrival numbers differ); it keeps sorted lists total."""
        return self.job_id < other.job_id

    def __repr__(self) -> str:
        tokens = f"{self.finished}/{self.planned}/{self.most}"
        return f"{self.job_id} {self.state.value} {tokens} device {self.device} host {self.host}"

    def move(self, state: KvState) -> None:
        """Enter a state. An illegal move is a bug; its error contains the job's history."""
        assert state in LEGAL_MOVES[self.state], self.told(f"illegal move {self.state.value} -> {state.value}")
        self.state = state
        self.note(state.value)

    def note(self, what: str) -> None:
        """Add a line to the job's history."""
        if len(self.story) == STORY_LENGTH:
            del self.story[0]
        self.story.append(what)

    def told(self, what: str) -> str:
        """A message about the job, with its history appended."""
        return f"job {self.job_id}: {what} (history: {', '.join(self.story)}; {self!r})"

    def broken(self, what: str) -> ProtocolError:
        """The error to raise when a peer broke PROTOCOL for this job."""
        return ProtocolError(self.told(what))
