"""Settings of the scheduler."""

from pathlib import Path

from pydantic import Field, model_validator

from services.runtime.model_files import MOST_NAME_CHARACTERS, served_name
from services.runtime.recording.recording_settings import RecordingSettings
from services.runtime.settings import Address
from services.scheduler.scheduler_config import Charge, PolicyName, SchedulerConfig

MOST_QUEUED_JOBS = 50_000
"""The KV manager is told of all jobs in one message when it comes back, which takes 15 MB where all ids are as long as
they may be: a little less than a message may have (services.runtime.channel).
"""


class SchedulerSettings(RecordingSettings):
    """The scheduler: decides who runs in the next iteration."""

    listen: Address = Field("127.0.0.1:0", description="HOST:PORT to listen on; port 0: a free one")
    kv_manager: Address = Field(description="HOST:PORT of the KV manager")
    model: Path = Field(description="model folder, by which workers and gateways are checked")
    served_model_name: str | None = Field(
        None,
        min_length=1,
        max_length=MOST_NAME_CHARACTERS,
        description="name of the model for clients; off: the folder's name",
    )
    block_size: int = Field(16, ge=1, le=1024, description="tokens in a KV block; a worker with another is refused")
    policy: PolicyName = Field(PolicyName.SKIP_JOIN_MLFQ, description="who runs next")
    max_batch: int = Field(16, ge=1, le=4096, description="most jobs of an iteration")
    max_batch_tokens: int = Field(
        2048,
        ge=1,
        le=1_000_000,
        description="most tokens of an iteration, prefill and decode; one prefill may exceed it",
    )
    prefill_chunk: int | None = Field(
        None, ge=1, le=1_000_000, description="most prompt tokens of a job in an iteration; off: whole prompts"
    )
    plans_in_flight: int = Field(
        2,
        ge=1,
        le=16,
        description="iterations planned ahead, the running one among them; the KV manager's --kv-lookahead-tokens "
        "should be at least two more, or jobs wait for blocks",
    )
    quantum_ratio: float = Field(2.0, ge=1.1, le=100, description="quantum of a level by that of the level above")
    starvation_limit: float | None = Field(
        10.0, gt=0, le=86_400, description="seconds of waiting after which a job is promoted; off: never"
    )
    promotions_per_step: int = Field(1, ge=1, le=1000, description="most promotions per iteration")
    charge: Charge = Field(Charge.WALL, description="what an iteration costs each of its jobs: all its time, or a part")
    max_queued_jobs: int = Field(20_000, ge=1, le=MOST_QUEUED_JOBS, description="most jobs admitted at a time")
    max_queued_tokens: int = Field(
        16_000_000,
        ge=1,
        le=1_000_000_000,
        description="most tokens, prompts and max_tokens, of jobs admitted at a time",
    )
    drain_limit: float = Field(
        5.0, ge=0, le=3600, description="seconds that jobs have to end after SIGTERM before they are aborted"
    )

    @model_validator(mode="after")
    def _check(self) -> "SchedulerSettings":
        if self.max_batch_tokens < self.max_batch:
            raise ValueError("--max-batch-tokens must be at least --max-batch, a token for each job")
        return self

    @property
    def model_name(self) -> str:
        """The model's name for clients."""
        return served_name(self.model, self.served_model_name)

    @property
    def config(self) -> SchedulerConfig:
        """The policy's part."""
        return SchedulerConfig(
            policy=self.policy,
            max_batch=self.max_batch,
            max_batch_tokens=self.max_batch_tokens,
            prefill_chunk_tokens=self.prefill_chunk,
            plans_in_flight=self.plans_in_flight,
            quantum_ratio=self.quantum_ratio,
            starvation_limit_s=self.starvation_limit,
            promotions_per_step=self.promotions_per_step,
            charge=self.charge,
            max_queued_jobs=self.max_queued_jobs,
            max_queued_tokens=self.max_queued_tokens,
        )
