"""A cost model as a JSON file: seconds of iterations, the hardware, and the source of the numbers. Measured profiles
and profiles derived from published figures have the same format. No torch here.

{"name": "opt-13b-a100-40gb", "description": "...",
 "prefill": [{"tokens": 16, "seconds": 0.004}, ...],
 "decode": [{"batch": 1, "context_tokens": 64, "seconds": 0.003}, ...],
 "mixed": [{"prefill_tokens": 64, "decode_batch": 4, "context_tokens": 256, "seconds": 0.006,
            "modelled_seconds": 0.0057}, ...],
 "kv_bytes_per_token": 819200, "device_kv_tokens": 12000, "host_kv_tokens": 600000,
 "link": {"bytes_per_s": 25e9, "latency_s": 1e-05, "duplex": true},
 "stages": 1, "tensor_parallel": 1, "max_model_len": 2048,
 "pipeline": {"prefill_shares": [0.51, 0.49], "decode_shares": [0.48, 0.52], "hand_over_s": 1e-4, "row_s": 1e-6},
 "source": {"model": "...", "device": "...", "dtype": "...", ...}}

Only `prefill`, `decode` and `source` are required: a file without the others is still a cost model. `mixed` holds
measured iterations of prefill and decode together beside what the cost model gives for them; it tells how far the model
can be trusted and changes nothing else. `pipeline` says how the seconds are shared out over several stages
(services/domain/pipeline.py); without it each has an equal share. Figures cover a whole group, all its GPUs together;
those of the link cover one of its stages.
"""

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from services.domain.copying import LinkSpeed
from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.errors import InvalidFieldError
from services.domain.mixed_cost import MixedCost, check_mixed
from services.domain.pipeline import Pipeline
from services.runtime.output_folder import make_writable

Source = Mapping[str, object]
"""Where the numbers come from: names and JSON values."""

MOST_FILE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Profile:
    """The content of a file. `kv_bytes_per_token`: keys and values of one token in all layers. The sizes of the pools
    are in tokens: the room that the hardware has beside the weights, or the sizes used in the measurement.
    """

    cost: CostProfile
    source: Source
    name: str = ""
    description: str = ""
    kv_bytes_per_token: int | None = None
    device_kv_tokens: int | None = None
    host_kv_tokens: int | None = None
    link: LinkSpeed | None = None
    stages: int = 1
    tensor_parallel: int = 1
    max_model_len: int | None = None
    mixed: tuple[MixedCost, ...] = ()
    pipeline: Pipeline | None = None

    def __post_init__(self) -> None:
        check_mixed(self.mixed)
        if self.pipeline is not None and self.pipeline.stages != self.stages:
            raise InvalidFieldError("pipeline", f"has {self.pipeline.stages} stages, but the profile {self.stages}")
        for field, least in _LEAST.items():
            value = getattr(self, field)
            if value is not None and value < least:
                raise InvalidFieldError(field, f"is {value}, but must be at least {least}")


_LEAST = {
    "kv_bytes_per_token": 1,
    "device_kv_tokens": 1,
    "host_kv_tokens": 0,
    "stages": 1,
    "tensor_parallel": 1,
    "max_model_len": 1,
}


def profile_text(profile: Profile) -> str:
    """The file's text; deterministic."""
    document: dict[str, object] = {
        "name": profile.name or None,
        "description": profile.description or None,
        "prefill": [point._asdict() for point in profile.cost.prefill],
        "decode": [point._asdict() for point in profile.cost.decode],
        "mixed": [point._asdict() for point in profile.mixed] or None,
        **{field: getattr(profile, field) for field in _LEAST},
        "link": None if profile.link is None else asdict(profile.link),
        "pipeline": None if profile.pipeline is None else asdict(profile.pipeline),
        "source": dict(profile.source),
    }
    return _rows({field: value for field, value in document.items() if value is not None}) + "\n"


def _rows(document: Mapping[str, object]) -> str:
    """JSON with one measured point per line, for readable files and diffs."""
    parts = []
    for field, value in document.items():
        if isinstance(value, list):
            points = ",\n  ".join(json.dumps(point) for point in value)
            parts.append(f' "{field}": [\n  {points}\n ]')
        else:
            text = json.dumps(value, indent=1, ensure_ascii=False)
            indented = text.replace("\n", "\n ")
            parts.append(f' "{field}": {indented}')
    return "{\n" + ",\n".join(parts) + "\n}"


def check_writable(file: Path) -> None:
    """Check that the file can be written, before a long measurement. Raises InvalidFieldError."""
    try:
        make_writable(file.parent)
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        raise InvalidFieldError("--out", f"can't write {file}: {error.strerror}") from None


def write_profile(file: Path, profile: Profile) -> None:
    """Writes the file atomically. Raises InvalidFieldError if it can't be written."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(profile_text(profile), encoding="utf-8")
        part.replace(file)
    except OSError as error:
        raise InvalidFieldError("profile", f"can't write {file}: {error.strerror}") from None


def read_profile(file: Path) -> Profile:
    """Reads a file. Raises InvalidFieldError if it is missing or not a profile."""
    try:
        if file.stat().st_size > MOST_FILE_BYTES:
            raise InvalidFieldError("profile", f"{file} is larger than {MOST_FILE_BYTES} bytes")
        return profile_of(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidFieldError("profile", f"can't read {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidFieldError("profile", f"{file} is not a valid profile: {error!r}") from None


def profile_of(document: Mapping[str, Any]) -> Profile:
    """The profile in a parsed file. Raises InvalidFieldError, and for a document that is not a profile also ValueError,
    KeyError, TypeError, AttributeError or OverflowError.
    """
    prefill = tuple(PrefillCost(int(p["tokens"]), float(p["seconds"])) for p in document["prefill"])
    decode = tuple(
        DecodeCost(int(p["batch"]), int(p["context_tokens"]), float(p["seconds"])) for p in document["decode"]
    )
    mixed = tuple(
        MixedCost(
            int(p["prefill_tokens"]),
            int(p["decode_batch"]),
            int(p["context_tokens"]),
            float(p["seconds"]),
            float(p["modelled_seconds"]),
        )
        for p in document.get("mixed", ())
    )
    link, pipeline = document.get("link"), document.get("pipeline")
    numbers = {field: int(value) for field in _LEAST if (value := document.get(field)) is not None}
    return Profile(
        cost=CostProfile(prefill, decode),
        source=dict(document["source"]),
        name=str(document.get("name", "")),
        description=str(document.get("description", "")),
        link=None if link is None else _parsed_link(link),
        mixed=mixed,
        pipeline=None if pipeline is None else _parsed_pipeline(pipeline),
        **numbers,
    )


def _parsed_link(link: Mapping[str, Any]) -> LinkSpeed:
    duplex = link.get("duplex", True)
    if not isinstance(duplex, bool):
        raise ValueError(f"link.duplex must be true or false, but is {duplex!r}")
    return LinkSpeed(float(link["bytes_per_s"]), float(link["latency_s"]), duplex)


def _parsed_pipeline(pipeline: Mapping[str, Any]) -> Pipeline:
    prefill, decode = (tuple(map(float, pipeline[kind])) for kind in ("prefill_shares", "decode_shares"))
    return Pipeline(prefill, decode, float(pipeline["hand_over_s"]), float(pipeline["row_s"]))
