"""The systems that the demo runs, and what it says about them. Pure.

They are the same server with other policies: the same engine, batch and pools.
"""

from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from services.experiments.cases import PolicyPair
from services.scheduler.scheduler_config import PolicyName
from services.simulator.fcfs_capacity import FCFS_FORMS
from services.worker.engine.compute_environment import usable_cores

FCFS = tuple(PolicyPair(PolicyName.FCFS, form) for form in FCFS_FORMS)
"""The forms of FCFS; the best one counts."""
RESERVING = PolicyPair(PolicyName.FCFS, "defer")
AS_VLLM = PolicyPair(PolicyName.FCFS, "recompute")
PAPER = PolicyPair(PolicyName.SKIP_JOIN_MLFQ, "proactive")
OURS = PolicyPair(PolicyName.GITTINS, "proactive")
ALL_PAIRS = (*FCFS, PAPER, OURS)

MAX_BATCH = 16
DEVICE_TOKENS = 2560
HOST_TOKENS = 131_072

_FORMS = {
    "recompute": "drops its cache and computes it again later, as vLLM does",
    "proactive": "moves its cache to host memory and back",
    "defer": "does not come to that, because a job starts only when all the cache that it may ever need is reserved, "
    "as Orca did it",
}
OURS_LABEL = "FastServe"


@dataclass(frozen=True, slots=True)
class ShownSystem:
    """A row of the demo's tables. `name` is its folder below out/demo."""

    name: str
    label: str
    pair: PolicyPair
    text: str


def shown_forms(best: PolicyPair) -> tuple[PolicyPair, PolicyPair]:
    """The two forms of FCFS that are shown, if this one is the best: it, and the one that reserves; where that is the
    best itself, vLLM's.
    """
    return best, AS_VLLM if best == RESERVING else RESERVING


def shown_systems(best: PolicyPair, other: PolicyPair) -> tuple[ShownSystem, ...]:
    """What is compared: two forms of FCFS, the better one first, the papers' policy and ours."""
    return (
        ShownSystem(
            "fcfs",
            f"FCFS ({best.kv_policy})",
            best,
            "First come, first served: a job that has started runs to its end. Where the cache of the running jobs "
            f"outgrows the device, the last one {_FORMS[best.kv_policy]}. Of the three forms of FCFS this one is the "
            "best here, so the others are compared with it.",
        ),
        _other_fcfs(other),
        ShownSystem(
            "paper",
            "paper's MLFQ",
            PAPER,
            "What the FastServe paper describes (skip-join-mlfq): a job sinks from queue to queue as it runs, and the "
            "highest queue runs first. The cache of jobs that wait is moved to host memory ahead of need.",
        ),
        ShownSystem(
            "fastserve",
            OURS_LABEL,
            OURS,
            "The default of this server (gittins): who has the least left to do, by what it has learnt about lengths, "
            "goes ahead, but not far ahead of those that came earlier. Cache is moved as in the paper.",
        ),
    )


def _other_fcfs(form: PolicyPair) -> ShownSystem:
    if form == RESERVING:
        return ShownSystem(
            "reservation",
            "FCFS, reserving",
            form,
            "First come, first served with reservation, as Orca did it: a job starts only when all the cache that its "
            "prompt and its max_tokens can ever need is set aside. Nothing is moved or computed twice, but most of "
            "what is set aside lies idle.",
        )
    return ShownSystem(
        form.kv_policy,
        f"FCFS ({form.kv_policy})",
        form,
        "The same without reservation: where the cache of the running jobs outgrows the device, the last one "
        f"{_FORMS[form.kv_policy]}.",
    )


SHOWN_NAMES = frozenset(system.name for forms in permutations(FCFS, 2) for system in shown_systems(*forms))
"""The folders of all rows that a demo may show."""


def server_flags(pair: PolicyPair, model: Path, state_dir: Path) -> list[str]:
    """Flags of `fastserve up` for one of the servers of a model; they differ only in their policies and in where they
    keep state.

    One core is left to the three other services and to the client, which all work while the model does.
    """
    policies = ["--policy", pair.policy, "--kv-policy", pair.kv_policy]
    engine = ["--max-batch", str(MAX_BATCH), "--threads", str(max(1, usable_cores() - 1))]
    pools = ["--kv-device-tokens", str(DEVICE_TOKENS), "--kv-host-tokens", str(HOST_TOKENS)]
    return ["--model", str(model), *policies, *engine, *pools, "--state-dir", str(state_dir)]
