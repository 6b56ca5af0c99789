"""What the leader of a group and its other ranks tell each other, as values. All name the worker's epoch.

Activations and sums of the model do not go this way (see process_groups.py).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from services.domain.errors import PeerMismatchError
from services.domain.guide import Guide
from services.domain.ids import CommandNumber, Epoch, JobId, PlanNumber
from services.domain.iteration import WorkerCounters
from services.domain.prompt_logprobs import ScoredPrompt
from services.domain.protocol import KvToWorker
from services.worker.step import Step, StepOutcome

SHOWN_FINGERPRINT = 12
"""Characters of a fingerprint in a message."""

# --- leader -> rank --------------------------------------------------------------------------------------------------


class Begin(NamedTuple):
    """Forget everything, meet the other ranks in a rendezvous of this epoch's name, and say Ready.

    `store_port`: where the leader's host serves the rendezvous; `wait_limit_s`: the longest wait for another rank
    within an iteration. `measures`: the ranks measure the model instead of serving it; Ready means that they have.
    """

    epoch: Epoch
    store_port: int
    wait_limit_s: float
    measures: bool = False


class Relayed(NamedTuple):
    """A command of the KV manager."""

    epoch: Epoch
    command: KvToWorker


class Run(NamedTuple):
    """A plan with the leader's decisions."""

    epoch: Epoch
    step: Step


class PrepareGuide(NamedTuple):
    """To the rank that samples: a job is about to start after `output`; make its guide's state beside the steps."""

    epoch: Epoch
    job_id: JobId
    guide: Guide
    output: tuple[int, ...]


ToRank = Begin | Relayed | Run | PrepareGuide

# --- rank -> leader --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """What is known of a rank before it loads its share. `model` is its folder's name, for messages."""

    rank: int
    tp: int
    pp: int
    model_fingerprint: str
    dtype: str
    block_size: int
    model: str = field(kw_only=True)

    def check_fits(self, leader: "RankIdentity") -> None:
        """Raises PeerMismatchError, naming both values, unless this is another rank of the leader's group."""
        if not 0 < self.rank < leader.pp * leader.tp:
            raise PeerMismatchError("rank", f"is {self.rank}, of {leader.pp * leader.tp} with rank 0 the leader")
        if self.model_fingerprint != leader.model_fingerprint:
            raise PeerMismatchError(
                "model", f"is {self._shown_model} on rank {self.rank}, but the leader has {leader._shown_model}"
            )
        self._check_same(leader, "tp", "pp", "dtype", "block_size")

    @property
    def _shown_model(self) -> str:
        return f"{self.model!r} (fingerprint {self.model_fingerprint[:SHOWN_FINGERPRINT]})"

    def _check_same(self, leader: "RankIdentity", *fields: str) -> None:
        for name in fields:
            theirs, ours = getattr(self, name), getattr(leader, name)
            if theirs != ours:
                raise PeerMismatchError(name, f"is {theirs!r} on rank {self.rank}, but the leader has {ours!r}")


@dataclass(frozen=True, slots=True)
class RankFacts(RankIdentity):
    """What a rank reports when it connects. All but its number and its pools must be the same on every rank.
    `first_layers` are those of the stages. `kernels` and `weights`: what computes, and how weights are kept; ranks that
    differ in them would round differently, and a rank that is replaced would change the group's tokens.
    """

    max_model_len: int
    first_layers: tuple[int, ...]
    device_blocks: int
    host_blocks: int
    block_bytes: int
    kernels: str = field(kw_only=True)
    weights: str = field(kw_only=True)

    def check_joins(self, leader: "RankFacts") -> None:
        """Raises PeerMismatchError, naming both values, unless this rank can work in the leader's group."""
        self.check_fits(leader)
        self._check_same(leader, "max_model_len", "first_layers", "kernels", "weights")
        for name in ("device_blocks", "host_blocks"):
            if getattr(self, name) < 1:
                raise PeerMismatchError(name, f"is 0 on rank {self.rank}, but must be at least 1")


class Ready(NamedTuple):
    """The rank has forgotten what was before, none of its copies runs, and it has met all others."""

    epoch: Epoch


class Copied(NamedTuple):
    """The copies of a command have ended on this rank."""

    epoch: Epoch
    command_number: CommandNumber


@dataclass(frozen=True, slots=True)
class Ran:
    """This rank's part of a plan has ended. `counters` are its own since the epoch began. The outcome is without log
    probabilities of prompts: see Scored.
    """

    epoch: Epoch
    plan_number: PlanNumber
    outcome: StepOutcome
    counters: WorkerCounters


class Failed(NamedTuple):
    """The rank can't go on in this epoch: it lost a peer, or waited for one too long, or was told nonsense."""

    epoch: Epoch
    reason: str


class Prepared(NamedTuple):
    """A job's guide is ready, or can't be: the job may start."""

    epoch: Epoch
    job_id: JobId


class Scored(NamedTuple):
    """Log probabilities of a prompt, from the rank that samples: of the plan that it runs, before its Ran."""

    epoch: Epoch
    prompt: ScoredPrompt


FromRank = Ready | Copied | Ran | Failed | Prepared | Scored
