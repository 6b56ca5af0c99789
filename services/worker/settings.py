"""Settings of the worker."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from services.domain.ids import MOST_GROUPS
from services.runtime.model_files import MOST_NAME_CHARACTERS, served_name
from services.runtime.settings import Address, Settings
from services.runtime.tls.tls_settings import TlsSettings
from services.worker.parallel.layout import MOST_RANKS, Layout

MOST_BATCH = 4096


class EngineSettings(BaseModel):
    """The engine: model, device, pools; without the settings of a service such as logs and metrics."""

    model_config = Settings.model_config

    model: Path = Field(description="model folder in Hugging Face layout (safetensors)")
    device: Literal["cpu", "cuda"] = Field("cpu", description="where the model runs")
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="type of weights and KV; off: bfloat16, or float16 for a float16 checkpoint on cuda"
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="compute threads on the CPU; off: one per core, a short iteration leaves one to the services",
    )
    kernels: Literal["auto", "native", "torch"] = Field(
        "auto",
        description="what computes: native, the compiled decoder of CPUs; torch; auto: native where it can, on a GPU "
        "torch with kernels by Triton and recorded iterations",
    )
    weights: Literal["int8"] | None = Field(
        None,
        description="int8: weights rounded to 8 bits per output at load, for the compiled decoder; off: as --dtype",
    )
    workers_here: int = Field(
        1,
        ge=1,
        le=1024,
        description="worker processes here, ranks included; default threads and pools are divided by this",
    )
    block_size: int = Field(16, ge=1, le=1024, description="tokens in a KV block")
    kv_device_tokens: int | None = Field(
        None, ge=1, description="size of the device KV pool in tokens; off: 32768, or less if memory is short"
    )
    kv_host_tokens: int | None = Field(
        None,
        ge=1,
        description="size of the host KV pool in tokens; off: 4 times the device pool, or less if memory is short",
    )
    max_model_len: int | None = Field(
        None, ge=1, description="maximum tokens of prompt and output together; off: the model's context length"
    )
    max_batch: int | None = Field(
        None,
        ge=1,
        le=MOST_BATCH,
        description="largest batch for which the cost model is measured; off: 64 on a CPU, 256 on a GPU",
    )


class KeptEngineSettings(EngineSettings):
    """An engine whose measured cost model is kept for the next start."""

    state_dir: Path | None = Field(
        None, description="folder that keeps the measured cost model; off: ~/.cache/fastserve"
    )

    @property
    def profile_folder(self) -> Path:
        """Where measured cost models are kept."""
        return self.state_dir or Path.home() / ".cache" / "fastserve"


class WorkerSettings(KeptEngineSettings, TlsSettings):
    """The worker: runs the model and copies KV between device and host, as the scheduler and the KV manager command."""

    group: int = Field(
        0, ge=0, lt=MOST_GROUPS, description="number of the worker group, less than the scheduler's --groups"
    )
    scheduler: Address = Field(description="HOST:PORT of the scheduler")
    kv_manager: Address = Field(description="HOST:PORT of the KV manager")
    served_model_name: str | None = Field(
        None,
        min_length=1,
        max_length=MOST_NAME_CHARACTERS,
        description="name of the model in the metrics; off: the folder's name",
    )
    tp: int = Field(
        1, ge=1, le=MOST_RANKS, description="ranks that share every layer of the model (tensor parallelism)"
    )
    pp: int = Field(1, ge=1, le=MOST_RANKS, description="stages of neighbouring layers (pipeline parallelism)")
    rank: int | None = Field(
        None,
        ge=0,
        description="number of this rank: stage * tp + place in the stage; rank 0 leads and alone talks to the other "
        "services; off: RANK of torchrun, or from LWS_WORKER_INDEX of LeaderWorkerSet",
    )
    leader: Address | None = Field(
        None,
        description="HOST:PORT where rank 0 listens for the others; off: MASTER_ADDR and MASTER_PORT of torchrun, or "
        "LWS_LEADER_ADDRESS of LeaderWorkerSet",
    )
    pod_ranks: bool = Field(
        False,
        description="for Kubernetes: a pod is a stage, and this process starts its other ranks and ends with them; "
        "--rank and --leader are then known",
    )
    group_timeout: float = Field(
        3.0, gt=0, le=600, description="seconds without a sign of life after which a rank of a group counts as lost"
    )
    claim_limit: float = Field(
        30.0,
        ge=0,
        le=3600,
        description="seconds that another worker may have the group before this one gives up; more than it takes to "
        "notice that a worker is lost",
    )
    drain_limit: float = Field(
        20.0,
        ge=0,
        le=3600,
        description="seconds after SIGTERM in which jobs may end here or leave for other groups; what is left goes on "
        "there from its last token",
    )
    health_listen: Address = Field(
        "127.0.0.1:0", description="HOST:PORT of the health and reflection services, without TLS; port 0: any free port"
    )

    @property
    def model_name(self) -> str:
        """The model's name for clients."""
        return served_name(self.model, self.served_model_name)

    @property
    def layout(self) -> Layout:
        """The ranks of the group."""
        return Layout(self.tp, self.pp)


class ProfileSettings(EngineSettings):
    """Measures the cost model of a model on this machine."""

    out: Path = Field(description="JSON file to write: the profile and the source of its numbers")
