"""What the KV manager knows of a job, and the states that its KV cache goes through.

    WAITING --Assign--> ASSIGNING --Applied--> DEVICE --ReclaimRequest--> ASKED
    ASKED --Refuse--> DEVICE
    ASKED --Ack--> (EVICTING) --> OFFLOADING --Done--> HOST, or WAITING if nothing is kept
    HOST --Upload--> UPLOADING --Applied and Done--> DEVICE
    HOST --dropped for want of host blocks--> WAITING

A job that ends leaves at once, or, while a copy of its blocks runs, as a ZOMBIE that holds just the blocks of that
copy until it is Done. EVICTING is an acknowledged job whose upload still runs on a later pipeline stage; with one
stage nobody is ever EVICTING.

Token counts follow the plans: `planned` is the end of the last entry sent to the worker, `finished` that of the last
one whose result is back, hence the tokens whose KV is valid. Both are 0 for a job without KV; `known` then says how
many tokens its next prefill computes.
"""

from enum import Enum

from services.domain.errors import ProtocolError
from services.domain.ids import BlockId, CommandNumber, JobId
from services.domain.protocol import Rank

STORY_LENGTH = 12


class KvState(Enum):
    """Where a job's KV cache is, or is going."""

    WAITING = "waiting"
    ASSIGNING = "assigning"
    DEVICE = "device"
    ASKED = "asked"
    EVICTING = "evicting"
    OFFLOADING = "offloading"
    HOST = "host"
    UPLOADING = "uploading"
    ZOMBIE = "zombie"

    # Members are singletons. Enum's own hash is a call of Python code, and states are looked up in sets all the time.
    __hash__ = object.__hash__


# The members under names of their own. To look one up on its Enum is a call of Python code, and takes longer than all
# else of most questions about a state.
WAITING, ASSIGNING, DEVICE, ASKED, EVICTING, OFFLOADING, HOST, UPLOADING, ZOMBIE = KvState

LEGAL_MOVES: dict[KvState, frozenset[KvState]] = {
    KvState.WAITING: frozenset({KvState.ASSIGNING}),
    KvState.ASSIGNING: frozenset({KvState.DEVICE}),
    KvState.DEVICE: frozenset({KvState.ASKED, KvState.ZOMBIE}),
    KvState.ASKED: frozenset({KvState.DEVICE, KvState.EVICTING, KvState.OFFLOADING, KvState.WAITING, KvState.ZOMBIE}),
    KvState.EVICTING: frozenset({KvState.OFFLOADING, KvState.WAITING, KvState.ZOMBIE}),
    KvState.OFFLOADING: frozenset({KvState.HOST, KvState.ZOMBIE}),
    KvState.HOST: frozenset({KvState.UPLOADING, KvState.WAITING}),
    KvState.UPLOADING: frozenset({KvState.DEVICE, KvState.ZOMBIE}),
    KvState.ZOMBIE: frozenset(),
}

HELD = frozenset({KvState.ASSIGNING, KvState.DEVICE, KvState.UPLOADING})
"""States whose device blocks stay where they are until somebody asks for them."""

LEAVING = frozenset({KvState.ASKED, KvState.EVICTING, KvState.OFFLOADING, KvState.ZOMBIE})
"""States whose device blocks are on their way to being free."""

SWAPPED_OUT = frozenset({KvState.OFFLOADING, KvState.HOST})
"""States of a job whose KV cache is in host memory or on its way there."""


class CommandKind(Enum):
    """Commands whose acknowledgement somebody waits for."""

    ASSIGN = "assign"
    UPLOAD = "upload"
    OFFLOAD = "offload"


ASSIGN, UPLOAD, OFFLOAD = CommandKind


class PendingCommand:
    """A command under way. `applied` and `done` have a bit per stage that said so."""

    __slots__ = ("applied", "done", "job", "kind", "number")

    def __init__(self, number: CommandNumber, kind: CommandKind, job: "KvJob") -> None:
        self.number = number
        self.kind = kind
        self.job = job
        self.applied = 0
        self.done = 0


class KvJob:
    """One job. Its owner is the ledger; nothing else changes it but the token counts."""

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
        "story",
        "table_tokens",
        "waiting_since_s",
    )

    def __init__(self, job_id: JobId, known_tokens: int, most_tokens: int, now_s: float) -> None:
        self.job_id = job_id
        self.known = known_tokens
        """Tokens to compute when its KV has to be made from nothing."""
        self.most = most_tokens
        """The most that its KV may come to hold."""
        self.state = KvState.WAITING
        self.rank: Rank | None = None
        self.planned = 0
        self.finished = 0
        self.plans = 0
        """Unfinished plans that name it."""
        self.device: list[BlockId] = []
        self.host: list[BlockId] = []
        self.table_tokens = 0
        """Tokens that a DEVICE job's blocks hold; 0 in every other state. The ledger's."""
        self.announced_blocks = 0
        """Blocks that the scheduler knows of."""
        self.assign: PendingCommand | None = None
        """First blocks or growth under way."""
        self.copy: PendingCommand | None = None
        """Offload or upload under way at any stage (rule 10: one at a time)."""
        self.brought_in = False
        """Its blocks were given to it lately and it has not run one iteration since."""
        self.passed_over = 0
        """Plans made without it since it was brought in."""
        self.waiting_since_s = now_s
        self.story: list[str] = ["arrived"]

    def __lt__(self, other: "KvJob") -> bool:
        """Never decides an order (arrival numbers differ); it keeps sorted lists total."""
        return self.job_id < other.job_id

    def __repr__(self) -> str:
        tokens = f"{self.finished}/{self.planned}/{self.most}"
        return f"{self.job_id} {self.state.value} {tokens} device {self.device} host {self.host}"

    def move(self, state: KvState) -> None:
        """Enter a state. An illegal move is a bug and tells the job's story."""
        assert state in LEGAL_MOVES[self.state], self.told(f"{self.state.value} -> {state.value} is not legal")
        self.state = state
        self.note(state.value)

    def note(self, what: str) -> None:
        """Add to the story."""
        if len(self.story) == STORY_LENGTH:
            del self.story[0]
        self.story.append(what)

    def told(self, what: str) -> str:
        """A sentence with the story behind it."""
        return f"job {self.job_id}: {what} (story: {', '.join(self.story)}; {self!r})"

    def broken(self, what: str) -> ProtocolError:
        """The peer broke PROTOCOL about this job."""
        return ProtocolError(self.told(what))
