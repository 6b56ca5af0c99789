"""Settings of a simulated server: those of the scheduler and of the KV manager under their own names and limits, and
those that hardware and worker decide in a real server.
"""

from dataclasses import replace
from typing import Any

from pydantic import BaseModel, Field, create_model

from services.domain.copying import LinkSpeed
from services.domain.errors import InvalidFieldError
from services.kvmanager.settings import KvManagerSettings
from services.runtime.profile_file import Profile
from services.runtime.settings import Settings, resolve
from services.scheduler.policies.batch_limit import BatchLimit
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from services.scheduler.settings import SchedulerSettings
from services.simulator.server_setup import ServerSetup

_SCHEDULER = (
    "policy",
    "max_batch_tokens",
    "prefill_chunk",
    "quantum_ratio",
    "starvation_limit",
    "promotions_per_step",
    "silence_limit",
    "first_token_limit",
    "per_token_limit",
    "first_token_share",
    "length_predictor",
    "charge",
    "max_queued_jobs",
    "max_queued_tokens",
    "block_size",
)
_KV_MANAGER = tuple(
    name
    for name in KvManagerSettings.model_fields
    if name.startswith("kv_") and name not in SchedulerSettings.model_fields
)
_NO_ADDRESS = "127.0.0.1:0"
MOST_POOL_TOKENS = 1_000_000_000


class SimulatedServerSettings(BaseModel):
    """A server on a virtual clock, driven by the policies that serve."""

    model_config = Settings.model_config

    groups: int = Field(1, ge=1, le=1024, description="worker groups, each a copy of the model")
    max_batch: int | None = Field(
        SchedulerConfig().max_batch,
        ge=1,
        le=4096,
        description="maximum number of jobs in an iteration; off: as a server chooses by the profile",
    )
    pp: int | None = Field(None, ge=1, le=15, description="pipeline stages of a group; off: the profile's")
    plans_in_flight: int | None = Field(
        None, ge=1, le=16, description="iterations planned ahead, including the running ones; off: stages + 1"
    )
    kv_device_tokens: int | None = Field(
        None, ge=1, le=MOST_POOL_TOKENS, description="size of a group's device KV pool in tokens; off: the profile's"
    )
    kv_host_tokens: int | None = Field(
        None, ge=0, le=MOST_POOL_TOKENS, description="size of a group's host KV pool in tokens; off: the profile's"
    )
    max_model_len: int | None = Field(
        None, ge=2, description="maximum tokens of prompt and output together; off: the profile's"
    )
    hop: float = Field(0.0003, ge=0, le=10, description="delay of a message between two services, in seconds")
    slowdown: float = Field(
        1.0, gt=0, le=1000, description="factor by which an iteration takes longer in service than in the profile"
    )


def _fields() -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for settings, names in ((SchedulerSettings, _SCHEDULER), (KvManagerSettings, _KV_MANAGER)):
        for name in names:
            field = settings.model_fields[name]
            fields[name] = (field.annotation, field)
    return fields


SimulateSettings: type[SimulatedServerSettings] = create_model(
    "SimulateSettings", __base__=SimulatedServerSettings, __doc__=SimulatedServerSettings.__doc__, **_fields()
)
FLAGS: tuple[str, ...] = tuple(SimulateSettings.model_fields)
"""The settings that are flags of `fastserve simulate`."""


def _known(value: int | None, given: int | None, field: str, profile: Profile) -> int:
    """`given`, or else the profile's `value`. Raises InvalidFieldError if neither is there."""
    if given is not None:
        return given
    if value is None:
        raise InvalidFieldError("--profile", f"{profile.name or 'the profile'} has no {field}")
    return value


def _scheduler(settings: SimulatedServerSettings, stages: int) -> SchedulerSettings:
    values = {name: getattr(settings, name) for name in _SCHEDULER}
    plans = stages + 1 if settings.plans_in_flight is None else settings.plans_in_flight
    links = {"kv_manager": _NO_ADDRESS, "model": "simulated"}
    batches = {"max_batch": settings.max_batch, "plans_in_flight": plans}
    return resolve(SchedulerSettings, "scheduler", {**values, **batches, **links}, {})


def server_setup(settings: SimulatedServerSettings, profile: Profile) -> ServerSetup:
    """The server that the simulator takes. Raises InvalidFieldError for settings that contradict each other, and for a
    profile that lacks a field.
    """
    if profile.link is None:
        raise InvalidFieldError("--profile", f"{profile.name or 'the profile'} has no link")
    stages = profile.stages if settings.pp is None else settings.pp
    scheduler = _scheduler(settings, stages)
    kv_manager = resolve(KvManagerSettings, "kvmanager", {name: getattr(settings, name) for name in _KV_MANAGER}, {})
    # The same GPUs cut another way: each stage has its share of the links.
    link = LinkSpeed(profile.link.bytes_per_s * profile.stages / stages, profile.link.latency_s, profile.link.duplex)
    device_tokens = _known(profile.device_kv_tokens, settings.kv_device_tokens, "device_kv_tokens", profile)
    batch = BatchLimit(scheduler.config)
    batch.calibrate(profile.cost, device_tokens)
    return ServerSetup(
        scheduler=replace(scheduler.config, max_batch=batch.jobs, chooses_batch=False),
        kv=kv_manager.knobs,
        cost=profile.cost,
        kv_bytes_per_token=_known(profile.kv_bytes_per_token, None, "kv_bytes_per_token", profile),
        device_tokens=device_tokens,
        host_tokens=_known(profile.host_kv_tokens, settings.kv_host_tokens, "host_kv_tokens", profile),
        max_model_len=_known(profile.max_model_len, settings.max_model_len, "max_model_len", profile),
        link=link,
        block_size=scheduler.block_size,
        stages=stages,
        groups=settings.groups,
        hop_s=settings.hop,
        slowdown=settings.slowdown,
        # Shares are measured for one layout; another one is taken to be even.
        pipeline=profile.pipeline if stages == profile.stages else None,
    )


def shown(settings: SimulatedServerSettings) -> dict[str, object]:
    """The server's settings as `result.json` shows them."""
    values = {name: getattr(settings, name) for name in FLAGS}
    return {name: str(value) if isinstance(value, str) else value for name, value in values.items()}


def default_policies(settings: SimulatedServerSettings) -> tuple[PolicyName, str]:
    """Policy and KV policy of the settings."""
    values = settings.model_dump()
    return PolicyName(values["policy"]), str(values["kv_policy"])


def changed(settings: SimulatedServerSettings, **values: object) -> SimulatedServerSettings:
    """The settings with some values changed, checked again. Raises InvalidFieldError."""
    return resolve(SimulateSettings, "simulate", {**settings.model_dump(), **values}, {})
