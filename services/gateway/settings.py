"""The gateway's settings."""

from pathlib import Path

from pydantic import Field

from services.runtime.model_files import MOST_NAME_CHARACTERS, served_name
from services.runtime.settings import Address, Settings


class GatewaySettings(Settings):
    """The gateway: validates and tokenizes requests, streams tokens and text, forwards to the scheduler."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on, IPv4 or IPv6")
    grpc_port: int = Field(50051, ge=0, le=65535, description="port of the public gRPC services; 0: any free port")
    scheduler: Address = Field(description="HOST:PORT of the scheduler")
    model: Path = Field(description="model folder; the gateway reads its config and tokenizer")
    served_model_name: str | None = Field(
        None,
        min_length=1,
        max_length=MOST_NAME_CHARACTERS,
        description="name by which clients know the model; off: the folder's name",
    )
    max_open_requests: int = Field(32_768, ge=1, le=1_000_000, description="maximum number of requests open at a time")
    drain_limit: float = Field(
        30.0,
        ge=0,
        le=3600,
        description="seconds that open streams are given to end after SIGTERM; the others can be resumed elsewhere",
    )
    resubmit_limit: float = Field(
        60.0,
        ge=0,
        le=3600,
        description="seconds that open streams wait for the next scheduler when theirs is lost; then they end",
    )
    vllm_metrics: bool = Field(
        False,
        description="also export vllm:num_requests_running, vllm:num_requests_waiting and vllm:kv_cache_usage_perc, "
        "for endpoint pickers of the Gateway API Inference Extension",
    )

    @property
    def model_name(self) -> str:
        """The name by which clients know the model."""
        return served_name(self.model, self.served_model_name)
