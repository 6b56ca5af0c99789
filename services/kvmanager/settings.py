"""The KV manager's settings."""

from typing import Literal

from pydantic import Field

from services.kvmanager.policies.kv_config import KvConfig, kv_policy_named
from services.runtime.model_files import MOST_NAME_CHARACTERS
from services.runtime.recording.recording_settings import RecordingSettings
from services.runtime.settings import Address
from services.runtime.tls.tls_settings import ServedTlsSettings


class KvManagerSettings(RecordingSettings, ServedTlsSettings):
    """The KV manager: decides where each job's KV cache is."""

    listen: Address = Field("127.0.0.1:0", description="HOST:PORT to listen on; port 0 picks a free port")
    served_model_name: str | None = Field(
        None,
        min_length=1,
        max_length=MOST_NAME_CHARACTERS,
        description="model name in the metrics; off: empty, because this service does not read a model folder",
    )
    kv_policy: Literal["proactive", "reactive", "recompute", "defer"] = Field(
        "proactive", description="what happens when the device pool is full"
    )
    kv_idle_slots: int = Field(
        4, ge=0, le=100_000, description="minimum number of arrivals that fit in the idle reserve (K)"
    )
    kv_burst_levels: int = Field(
        2, ge=0, le=64, description="number of highest queue levels whose jobs the idle reserve counts as arrivals (K')"
    )
    kv_reserve_share: float = Field(
        0.25, ge=0.0, le=0.9, description="maximum share of the device pool that the idle reserve may take"
    )
    kv_lookahead_tokens: int = Field(
        4, ge=0, le=4096, description="a job gets more blocks when it has at most this many tokens of capacity left"
    )
    kv_grant_blocks: int = Field(
        4, ge=1, le=256, description="maximum number of blocks that a growing job gets while the device pool has room"
    )

    @property
    def knobs(self) -> KvConfig:
        """The settings of the policy and the machine."""
        return KvConfig(
            policy=kv_policy_named(self.kv_policy, self.kv_idle_slots, self.kv_reserve_share),
            burst_levels=self.kv_burst_levels,
            lookahead_tokens=self.kv_lookahead_tokens,
            grant_blocks=self.kv_grant_blocks,
        )
