"""The knobs that all KV policies share, and the policy that `--kv-policy` names."""

from dataclasses import dataclass

from services.kvmanager.policies.defer import Defer
from services.kvmanager.policies.kv_policy import KvPolicy
from services.kvmanager.policies.on_demand import OnDemand
from services.kvmanager.policies.proactive import Proactive

KV_POLICY_NAMES = ("proactive", "reactive", "recompute", "defer")


@dataclass(frozen=True, slots=True)
class KvConfig:
    """Limits that all policies share.

    lookahead_tokens: L of PROTOCOL rule 16, a job grows when no more than these tokens of its capacity are unplanned.
    grant_blocks: most blocks of one growth while the pool is slack. protected_plans: plans that a job just brought in
    may be passed over before it may be taken from the device again.
    """

    policy: KvPolicy
    burst_levels: int = 2
    lookahead_tokens: int = 4
    grant_blocks: int = 4
    protected_plans: int = 4


def kv_policy_named(name: str, idle_slots: int = 4, largest_share: float = 0.25) -> KvPolicy:
    """The policy that `--kv-policy` names; the name was validated by the settings."""
    if name == "defer":
        return Defer()
    if name == "proactive":
        return Proactive(idle_slots, largest_share)
    return OnDemand(name, keeps_kv=name == "reactive")
