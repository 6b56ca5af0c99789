"""A measured cost model as a JSON file: the points, and where the numbers come from. No torch here.

{"prefill": [{"tokens": 16, "seconds": 0.004}, ...],
 "decode": [{"batch": 1, "context_tokens": 64, "seconds": 0.003}, ...],
 "source": {"model": "...", "model_fingerprint": "...", "device": "...", "dtype": "...", "threads": 2, ...}}
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.errors import InvalidFieldError

Source = Mapping[str, str | int | float]


def write_profile(file: Path, profile: CostProfile, source: Source) -> None:
    """Writes the file so that a reader sees all of it or nothing. Raises InvalidFieldError where it can't be
    written.
    """
    document = {
        "prefill": [point._asdict() for point in profile.prefill],
        "decode": [point._asdict() for point in profile.decode],
        "source": dict(source),
    }
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        part.replace(file)
    except OSError as error:
        raise InvalidFieldError("profile", f"can't write {file}: {error.strerror}") from None


def read_profile(file: Path) -> tuple[CostProfile, dict[str, Any]]:
    """The profile and its source. Raises InvalidFieldError for a file that is missing or holds no profile."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        prefill = tuple(PrefillCost(int(p["tokens"]), float(p["seconds"])) for p in document["prefill"])
        decode = tuple(
            DecodeCost(int(p["batch"]), int(p["context_tokens"]), float(p["seconds"])) for p in document["decode"]
        )
        return CostProfile(prefill, decode), dict(document["source"])
    except OSError as error:
        raise InvalidFieldError("profile", f"can't read {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidFieldError("profile", f"{file} holds no profile: {error!r}") from None
