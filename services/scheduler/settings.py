"""The scheduler's settings."""

from pathlib import Path

from pydantic import Field, model_validator

from services.domain.ids import MOST_GROUPS
from services.runtime.model_files import MOST_NAME_CHARACTERS, served_name
from services.runtime.recording.recording_settings import RecordingSettings
from services.runtime.settings import Address
from services.runtime.tls.tls_settings import ServedTlsSettings
from services.scheduler.policies.group_demand import DemandLimits
from services.scheduler.scheduler_config import Charge, LengthPredictor, PolicyName, SchedulerConfig

MOST_QUEUED_JOBS = 50_000
"""When the KV manager reconnects, it is sent all jobs in one message. With ids of the greatest length this takes 15 MB,
a little less than the limit of a message (services.runtime.channel).
"""


class SchedulerSettings(RecordingSettings, ServedTlsSettings):
    """The scheduler: decides which jobs run in the next iteration."""

    listen: Address = Field("127.0.0.1:0", description="HOST:PORT to listen on; port 0 picks a free port")
    kv_manager: Address = Field(description="HOST:PORT of the KV manager")
    model: Path = Field(description="model folder; workers and gateways must serve the same model")
    served_model_name: str | None = Field(
        None,
        min_length=1,
        max_length=MOST_NAME_CHARACTERS,
        description="model name that clients see; off: the folder's name",
    )
    block_size: int = Field(
        16,
        ge=1,
        le=1024,
        description="tokens per KV block; a worker with a different block size is refused",
    )
    groups: int | None = Field(
        None,
        ge=1,
        le=MOST_GROUPS,
        description="most worker groups, each a copy of the model; workers take --group 0, 1, ...; off: as many as "
        "come; fastserve up starts so many (off: 1)",
    )
    policy: PolicyName = Field(PolicyName.GITTINS, description="scheduling policy: which jobs run next")
    max_batch: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="maximum number of jobs in an iteration; off: what is best by the worker's measured profile, at "
        "least 16",
    )
    max_batch_tokens: int = Field(
        2048,
        ge=1,
        le=1_000_000,
        description="maximum number of prefill and decode tokens in an iteration; a single prefill may exceed it",
    )
    prefill_chunk: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="maximum number of prompt tokens per job in an iteration; off: whole prompts",
    )
    plans_in_flight: int | None = Field(
        None,
        ge=1,
        le=16,
        description="iterations planned ahead, including the running ones; more make small models faster where "
        "processors are scarce, and let a job wait longer for its turn; off: one more than the worker has pipeline "
        "stages, and up to 16 short ones while nobody could join the batch (32 for a job that is alone), which are "
        "recalled when somebody can",
    )
    quantum_ratio: float = Field(
        2.0,
        ge=1.1,
        le=100,
        description="ratio of a level's quantum to that of the level above",
    )
    starvation_limit: float | None = Field(
        10.0, gt=0, le=86_400, description="seconds a job may wait before it is promoted; off: never promote"
    )
    silence_limit: float | None = Field(
        1.5,
        gt=0,
        le=86_400,
        description="seconds without a token that policy gittins tries to keep started jobs from, by lending them an "
        "iteration shortly before; off: never",
    )
    first_token_limit: float | None = Field(
        1.5,
        gt=0,
        le=86_400,
        description="seconds after which policy gittins lends a job that has not started its prefill; off: never",
    )
    per_token_limit: float | None = Field(
        0.1,
        gt=0,
        le=86_400,
        description="seconds in which policy gittins tries to have each later token of a job follow, on average, by "
        "lending it tokens; off: never",
    )
    first_token_share: float = Field(
        0.05,
        ge=0,
        le=1,
        description="share of the server's time that may be lent to keep jobs within the limits on first and later "
        "tokens where that delays others: more means more jobs within them and longer job completion times under load",
    )
    length_predictor: LengthPredictor = Field(
        LengthPredictor.OFF,
        description="how policy gittins foresees output lengths: from those of jobs of the same client and prompt "
        "length (off), or by a prediction from client, prompt length and max_tokens (online)",
    )
    promotions_per_step: int = Field(1, ge=1, le=1000, description="maximum number of promotions per iteration")
    charge: Charge = Field(
        Charge.WALL,
        description="what an iteration costs each of its jobs: the whole time (wall) or its share (marginal)",
    )
    max_queued_jobs: int = Field(
        20_000,
        ge=1,
        le=MOST_QUEUED_JOBS,
        description="maximum number of admitted jobs that have not ended",
    )
    max_queued_tokens: int = Field(
        16_000_000,
        ge=1,
        le=1_000_000_000,
        description="maximum number of tokens, prompt plus max_tokens, of all admitted jobs that have not ended",
    )
    drain_limit: float = Field(
        5.0,
        ge=0,
        le=3600,
        description="seconds after SIGTERM in which jobs may end; the gateways keep the others for the next scheduler",
    )

    lease: str | None = Field(
        None,
        min_length=1,
        max_length=253,
        description="name of the Lease by which the schedulers of a Kubernetes namespace choose a leader; the others "
        "are on standby; off: this one leads",
    )
    lease_duration: int = Field(
        4, ge=1, le=3600, description="seconds without a renewal after which another scheduler may take the Lease"
    )
    lease_retry: float = Field(
        0.5, ge=0.05, le=600, description="seconds between looks at the Lease; less than half of its duration"
    )
    leader_service: str | None = Field(
        None,
        min_length=1,
        max_length=63,
        description="Service without a selector whose EndpointSlice the leader writes; off: none follows the leader",
    )
    pod_name: str | None = Field(None, min_length=1, max_length=253, description="name of this pod, for the Lease")
    pod_ip: str | None = Field(None, min_length=1, max_length=45, description="address of this pod, for leader_service")
    backlog_target: float = Field(
        5.0, gt=0, le=86_400, description="seconds of work per worker group above which more groups are wanted"
    )
    scale_quiet: float = Field(
        60.0, ge=0, le=86_400, description="seconds in which fewer groups must have sufficed before fewer are wanted"
    )
    least_groups: int = Field(1, ge=0, le=1024, description="worker groups that are always wanted")
    most_groups: int = Field(16, ge=1, le=1024, description="worker groups that are wanted at most")

    @model_validator(mode="after")
    def _check(self) -> "SchedulerSettings":
        if self.max_batch_tokens < (self.max_batch or 1):
            raise ValueError("--max-batch-tokens must be at least --max-batch: each job needs one token")
        if self.lease_retry * 2 >= self.lease_duration:
            raise ValueError("--lease-retry must be less than half of --lease-duration")
        if self.lease is not None and self.pod_name is None:
            raise ValueError("--lease needs --pod-name")
        if self.leader_service is not None and (self.lease is None or self.pod_ip is None):
            raise ValueError("--leader-service needs --lease and --pod-ip")
        if self.most_groups < self.least_groups:
            raise ValueError("--most-groups must be at least --least-groups")
        return self

    @property
    def demand_limits(self) -> DemandLimits:
        """When more worker groups are wanted, and when fewer."""
        most = self.most_groups if self.groups is None else min(self.most_groups, self.groups)
        return DemandLimits(self.backlog_target, self.scale_quiet, min(self.least_groups, most), most)

    @property
    def model_name(self) -> str:
        """The model name that clients see."""
        return served_name(self.model, self.served_model_name)

    @property
    def config(self) -> SchedulerConfig:
        """The settings of the policy and the machine."""
        return SchedulerConfig(
            policy=self.policy,
            max_batch=self.max_batch or min(SchedulerConfig().max_batch, self.max_batch_tokens),
            chooses_batch=self.max_batch is None,
            max_batch_tokens=self.max_batch_tokens,
            prefill_chunk_tokens=self.prefill_chunk,
            plans_in_flight=self.plans_in_flight,
            quantum_ratio=self.quantum_ratio,
            starvation_limit_s=self.starvation_limit,
            promotions_per_step=self.promotions_per_step,
            silence_limit_s=self.silence_limit,
            first_token_limit_s=self.first_token_limit,
            per_token_limit_s=self.per_token_limit,
            first_token_share=self.first_token_share,
            length_predictor=self.length_predictor,
            charge=self.charge,
            max_queued_jobs=self.max_queued_jobs,
            max_queued_tokens=self.max_queued_tokens,
        )
