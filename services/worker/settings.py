"""Settings of the worker."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from services.runtime.model_files import MOST_NAME_CHARACTERS, served_name
from services.runtime.settings import Address, Settings

MOST_BATCH = 4096


class EngineSettings(BaseModel):
    """The engine: model, device, pools. Nothing of a service: no logs, no metrics, no file that says it is ready."""

    model_config = Settings.model_config

    model: Path = Field(description="model folder in Hugging Face layout (safetensors)")
    device: Literal["cpu", "cuda"] = Field("cpu", description="where the model runs")
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="type of weights and KV; off: bfloat16, or float16 for a folder of that type on cuda"
    )
    threads: int | None = Field(None, ge=1, le=1024, description="compute threads on the CPU; off: one per core")
    block_size: int = Field(16, ge=1, le=1024, description="tokens in a KV block")
    kv_device_tokens: int | None = Field(
        None, ge=1, description="tokens of the device pool; off: 32768, or what memory allows"
    )
    kv_host_tokens: int | None = Field(
        None, ge=1, description="tokens of the host pool; off: 4 times the device pool's, or what memory allows"
    )
    max_model_len: int | None = Field(
        None, ge=1, description="most tokens of prompt and output together; off: the model's context"
    )
    max_batch: int = Field(16, ge=1, le=MOST_BATCH, description="largest batch that the cost model is measured for")


class KeptEngineSettings(EngineSettings):
    """An engine whose measured cost model is kept for the next start."""

    state_dir: Path | None = Field(
        None, description="folder where the measured cost model is kept; off: fastserve in the user's cache"
    )

    @property
    def profile_folder(self) -> Path:
        """Where measured cost models are kept."""
        return self.state_dir or Path.home() / ".cache" / "fastserve"


class WorkerSettings(KeptEngineSettings, Settings):
    """The worker: runs the model, and the copies of KV between device and host, as it is told."""

    scheduler: Address = Field(description="HOST:PORT of the scheduler")
    kv_manager: Address = Field(description="HOST:PORT of the KV manager")
    served_model_name: str | None = Field(
        None,
        min_length=1,
        max_length=MOST_NAME_CHARACTERS,
        description="name of the model in the metrics; off: the folder's name",
    )
    health_listen: Address = Field("127.0.0.1:0", description="HOST:PORT of health and reflection; port 0: a free one")

    @property
    def model_name(self) -> str:
        """The model's name for clients."""
        return served_name(self.model, self.served_model_name)


class ProfileSettings(EngineSettings):
    """Measures the cost model of a model on this machine."""

    out: Path = Field(description="JSON file to write: the profile, and where its numbers come from")
