"""The knobs that all KV policies share, and the policy that `--kv-policy` names."""

from dataclasses import dataclass

from services.kvmanager.policies.defer import Defer
from services.kvmanager.policies.kv_policy import KvPolicy
from services.kvmanager.policies.on_demand import OnDemand
from services.kvmanager.policies.proactive import Proactive

KV_POLICY_NAMES = ("proactive", "reactive", "recompute", "defer")


@dataclass(frozen=True, slots=True)
class KvConfig:
    """The policy, and limits that all policies share.

    burst_levels: the K' highest levels, whose jobs the idle reserve counts as arrivals. lookahead_tokens: L of PROTOCOL
    rule 16, a job grows when at most this many tokens of its capacity are unplanned. grant_blocks: the most blocks of
    one growth while the pool has room. protected_plans: after this many plans without it, a job that was just brought
    in may be taken from the device again.
    """

    policy: KvPolicy
    burst_levels: int = 2
    lookahead_tokens: int = 4
    grant_blocks: int = 4
    protected_plans: int = 4


def kv_policy_named(name: str, idle_slots: int = 4, largest_share: float = 0.25) -> KvPolicy:
    """The policy that `--kv-policy` names; the settings have validated the name."""
    if name == "defer":
        return Defer()
    if name == "proactive":
        return Proactive(idle_slots, largest_share)
    return OnDemand(name, keeps_kv=name == "reactive")
