"""Settings of `fastserve up`: its own, and those of the services it starts.

A setting of a service is also one of `up`, with the same name and limits, checked here so that an invalid one is
refused at once. It is passed on to every service that has it, but only if it was given (flag, FASTSERVE_*, the file's
[up] table); otherwise the service's own table and default apply. `up` itself decides the addresses between services.
"""

import tomllib
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo

from services.domain.errors import InvalidFieldError
from services.gateway.settings import GatewaySettings
from services.kvmanager.settings import KvManagerSettings
from services.runtime.model_files import MOST_NAME_CHARACTERS
from services.runtime.settings import ENVIRONMENT_PREFIX, Settings, SettingsT, flag_of, load
from services.runtime.tls.tls_settings import TlsSettings
from services.scheduler.settings import SchedulerSettings
from services.worker.settings import WorkerSettings

SERVICES: dict[str, type[Settings]] = {
    "gateway": GatewaySettings,
    "scheduler": SchedulerSettings,
    "kvmanager": KvManagerSettings,
    "worker": WorkerSettings,
}

_LINKS = frozenset(
    {
        "listen",
        "scheduler",
        "kv_manager",
        "health_listen",
        "ready_file",
        "die_with_parent",
        "group",
        "workers_here",
        "rank",
        "leader",
        "probe_listen",
    }
)
"""Settings of services that `up` decides itself."""
_SOME_ADDRESS = "127.0.0.1:0"


class UpOnlySettings(TlsSettings):
    """Runs every service on this machine, each as its own process. Accepts the flags of all services."""

    model: Path | None = Field(None, description="model folder in Hugging Face layout; off: the bundled model")
    served_model_name: str | None = Field(
        None,
        min_length=1,
        max_length=MOST_NAME_CHARACTERS,
        description="name of the model for clients; off: the folder's name",
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="port of the gateway's /metrics; 0: any free port")
    http_port: int = Field(8080, ge=0, le=65535, description="port of the REST front; 0: any free port")
    targets_file: Path | None = Field(
        None,
        description="file to write as JSON when all services are ready, with the addresses of every /metrics, as "
        "file_sd_configs of Prometheus read it",
    )
    state_dir: Path | None = Field(
        None,
        description="folder for ready files and the measured cost model; off: a temporary one, and ~/.cache/fastserve",
    )


def _as_flag(field: FieldInfo) -> tuple[Any, Any]:
    """A service's field as one of `up`: one that the service requires may be absent here."""
    if field.is_required():
        return (field.annotation | None, Field(None, description=field.description))  # type: ignore[operator]
    return (field.annotation, field)


def _shared_fields() -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for settings in SERVICES.values():
        for name, field in settings.model_fields.items():
            if name not in _LINKS and name not in UpOnlySettings.model_fields:
                fields.setdefault(name, _as_flag(field))
    return fields


UpSettings: type[UpOnlySettings] = create_model(
    "UpSettings", __base__=UpOnlySettings, __doc__=UpOnlySettings.__doc__, **_shared_fields()
)


def _text(value: object) -> str:
    if value is None:
        return "off"
    return str(value.value) if isinstance(value, Enum) else str(value)


def _passes(name: str, service: str) -> bool:
    if name in _LINKS or name not in SERVICES[service].model_fields:
        return False
    return name != "metrics_port" or service == "gateway"


def passed_on(settings: BaseModel, service: str) -> list[str]:
    """The flags given to `up` that belong to a service."""
    argv: list[str] = []
    for name in type(settings).model_fields:
        if name in settings.model_fields_set and _passes(name, service):
            value = getattr(settings, name)
            if isinstance(value, bool):
                argv.append(flag_of(name) if value else f"--no-{flag_of(name)[2:]}")
            else:
                argv += [flag_of(name), _text(value)]
    return argv


def resolved(
    settings_class: type[SettingsT], service: str, flags: Sequence[str], environ: Mapping[str, str]
) -> SettingsT:
    """The settings that a service will read from these flags, its own table and environment; with placeholders for the
    addresses of its peers.
    """
    links: list[str] = []
    for name, field in settings_class.model_fields.items():
        if name in _LINKS and field.is_required():
            links += [flag_of(name), _SOME_ADDRESS]
    return load(settings_class, service, [*flags, *links], environ)


def names(setting: str, service: str, environ: Mapping[str, str], config: Path | None) -> bool:
    """Whether the service's own table or environment has the setting."""
    if environ.get(f"{ENVIRONMENT_PREFIX}{service}_{setting}".upper()):
        return True
    if config is None:
        return False
    try:
        table = tomllib.loads(config.read_text(encoding="utf-8")).get(service, {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidFieldError("--config", f"can't read {config}: {error}") from error
    return isinstance(table, dict) and not table.keys().isdisjoint((setting, setting.replace("_", "-")))
