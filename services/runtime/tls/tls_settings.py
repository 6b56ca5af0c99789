"""Settings of services that talk to each other over TLS: one set of flags, the same for all of them."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, model_validator

from services.runtime.settings import Address, Settings
from services.runtime.tls.tls_files import TlsFiles


def check_complete(flags: Mapping[str, object]) -> None:
    """Raises ValueError if some of the flags are given, but not all."""
    missing = [flag for flag, value in flags.items() if value is None]
    if missing and len(missing) < len(flags):
        given = [flag for flag, value in flags.items() if value is not None]
        raise ValueError(f"{' and '.join(missing)} must be given too, because {' and '.join(given)} is")


class TlsSettings(Settings):
    """What a service shows its peers, and what they must show. All three files or none."""

    tls_cert: Path | None = Field(
        None, description="PEM file: this service's certificate, for mutual TLS between services; off: no TLS"
    )
    tls_key: Path | None = Field(None, description="PEM file: the key of --tls-cert")
    tls_ca: Path | None = Field(None, description="PEM file: the CA that the certificates of other services are from")
    tls_peer_name: str | None = Field(
        None,
        min_length=1,
        max_length=253,
        description="name that the certificates of other services must have; off: the host that is dialled, and any "
        "name of who dials",
    )

    @model_validator(mode="after")
    def _check_tls(self) -> "TlsSettings":
        check_complete({"--tls-cert": self.tls_cert, "--tls-key": self.tls_key, "--tls-ca": self.tls_ca})
        if self.tls_peer_name is not None and self.tls_cert is None:
            raise ValueError("--tls-cert, --tls-key and --tls-ca must be given too, because --tls-peer-name is")
        return self

    @property
    def tls(self) -> TlsFiles | None:
        """The files for links between services; None: without TLS."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_ca, self.tls_peer_name)


class ServedTlsSettings(TlsSettings):
    """A service that others dial."""

    probe_listen: Address | None = Field(
        None,
        description="HOST:PORT where grpc.health.v1 alone is served, without TLS, for Kubernetes' probes, which have "
        "none; port 0 picks a free port; off: nowhere",
    )
