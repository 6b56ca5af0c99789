"""What the leader of a group and its other ranks tell each other, as values. All name the worker's epoch.

Activations and sums of the model do not go this way (see process_groups.py).
"""

from dataclasses import dataclass
from typing import NamedTuple

from services.domain.ids import CommandNumber, Epoch, PlanNumber
from services.domain.iteration import WorkerCounters
from services.domain.protocol import KvToWorker
from services.worker.step import Step, StepOutcome

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


ToRank = Begin | Relayed | Run

# --- rank -> leader --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What a rank reports when it connects. All but its number and its pools must be the same on every rank.
    `first_layers` are those of the stages.
    """

    rank: int
    tp: int
    pp: int
    model_fingerprint: str
    dtype: str
    block_size: int
    max_model_len: int
    first_layers: tuple[int, ...]
    device_blocks: int
    host_blocks: int
    block_bytes: int
    kernels: str
    weights: str


class Ready(NamedTuple):
    """The rank has forgotten what was before, none of its copies runs, and it has met all others."""

    epoch: Epoch


class Copied(NamedTuple):
    """The copies of a command have ended on this rank."""

    epoch: Epoch
    command_number: CommandNumber


@dataclass(frozen=True, slots=True)
class Ran:
    """This rank's part of a plan has ended. `counters` are its own since the epoch began."""

    epoch: Epoch
    plan_number: PlanNumber
    outcome: StepOutcome
    counters: WorkerCounters


class Failed(NamedTuple):
    """The rank can't go on in this epoch: it lost a peer, or waited for one too long, or was told nonsense."""

    epoch: Epoch
    reason: str


FromRank = Ready | Copied | Ran | Failed
