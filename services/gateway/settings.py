"""The gateway's settings."""

from pathlib import Path

from pydantic import Field, model_validator

from services.runtime.model_files import MOST_NAME_CHARACTERS, served_name
from services.runtime.settings import Address
from services.runtime.tls.tls_files import TlsFiles
from services.runtime.tls.tls_settings import ServedTlsSettings, check_complete


class GatewaySettings(ServedTlsSettings):
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
    stream_interval: int = Field(
        1,
        ge=1,
        le=1024,
        description="tokens of a choice that a streaming client gets at a time, after its first; more take less of the "
        "processor time of gateway and client",
    )
    vllm_metrics: bool = Field(
        False,
        description="also export vllm:num_requests_running, vllm:num_requests_waiting and vllm:kv_cache_usage_perc, "
        "for endpoint pickers of the Gateway API Inference Extension",
    )
    public_tls_cert: Path | None = Field(
        None,
        description="PEM file: the certificate that clients see, over gRPC and REST; off: --tls-cert, if that is given",
    )
    public_tls_key: Path | None = Field(None, description="PEM file: the key of --public-tls-cert")
    api_keys_file: Path | None = Field(
        None, description="file of hashed API keys, one of which a client needs (fastserve keys); off: nobody needs one"
    )

    @model_validator(mode="after")
    def _check_public_tls(self) -> "GatewaySettings":
        check_complete({"--public-tls-cert": self.public_tls_cert, "--public-tls-key": self.public_tls_key})
        return self

    @property
    def public_tls(self) -> TlsFiles | None:
        """The files for clients, who need no certificate; None: without TLS."""
        if self.public_tls_cert is not None and self.public_tls_key is not None:
            return TlsFiles(self.public_tls_cert, self.public_tls_key, flags="--public-tls")
        return None if self.tls is None else TlsFiles(self.tls.cert, self.tls.key)

    @property
    def model_name(self) -> str:
        """The name by which clients know the model."""
        return served_name(self.model, self.served_model_name)
