"""Settings of the KV manager."""

from typing import Literal

from pydantic import Field

from services.kvmanager.policies.kv_config import KvConfig, kv_policy_named
from services.runtime.model_files import MOST_NAME_CHARACTERS
from services.runtime.recording.recording_settings import RecordingSettings
from services.runtime.settings import Address


class KvManagerSettings(RecordingSettings):
    """The KV manager: decides where each job's KV cache is."""

    listen: Address = Field("127.0.0.1:0", description="HOST:PORT to listen on; port 0: a free one")
    served_model_name: str | None = Field(
        None,
        min_length=1,
        max_length=MOST_NAME_CHARACTERS,
        description="name of the model in the metrics; off: none, as this service reads no model folder",
    )
    kv_policy: Literal["proactive", "reactive", "recompute", "defer"] = Field(
        "proactive", description="what happens when the device pool is full"
    )
    kv_idle_slots: int = Field(
        4, ge=0, le=100_000, description="arrivals whose first iteration the idle reserve holds at least (K)"
    )
    kv_burst_levels: int = Field(
        2, ge=0, le=64, description="levels of the queue whose jobs the idle reserve counts as arrivals (K')"
    )
    kv_reserve_share: float = Field(
        0.25, ge=0.0, le=0.9, description="most of the device pool that the idle reserve may take"
    )
    kv_lookahead_tokens: int = Field(
        4, ge=0, le=4096, description="a job grows when it has no more than these tokens of capacity left"
    )
    kv_grant_blocks: int = Field(
        4, ge=1, le=256, description="most blocks of one growth while the device pool has room"
    )

    @property
    def knobs(self) -> KvConfig:
        """The policy's part."""
        return KvConfig(
            policy=kv_policy_named(self.kv_policy, self.kv_idle_slots, self.kv_reserve_share),
            burst_levels=self.kv_burst_levels,
            lookahead_tokens=self.kv_lookahead_tokens,
            grant_blocks=self.kv_grant_blocks,
        )
