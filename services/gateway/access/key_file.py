"""The file of API keys: JSON, with the SHA-256 of each key and never the key itself.

    {"keys": [{"name": "alice", "sha256": "9f86...", "created": "2026-01-31", "requests_per_minute": 60}]}

A key is 256 random bits. Nobody can try that many, so the fast hash is enough: a slow one (bcrypt, argon2) protects
what people think up, and would cost every request milliseconds. For the same reason there is no salt.

The file is small and read whole. It is replaced in one step, so a reader finds the old one or the new one.
"""

import fcntl
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.domain.errors import InvalidFieldError
from services.gateway.access.rate_limits import KeyLimits

MOST_KEYS = 100_000
MOST_FILE_BYTES = 32 * 1024 * 1024
KEY_BYTES = 32
KEY_PREFIX = "fs-"
"""By which people, and programs that look for secrets in files, know a key."""
NEW_FILE_MODE = 0o600

Rate = Annotated[int, Field(ge=1, le=1_000_000_000)]
KeyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]


class KeyRecord(BaseModel):
    """A key of the file. An absent limit is none."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: KeyName
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    created: str | None = None
    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    max_concurrent: Rate | None = None

    @property
    def limits(self) -> KeyLimits:
        """What it may use."""
        return KeyLimits(self.requests_per_minute, self.tokens_per_minute, self.max_concurrent)


class _KeyDocument(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    keys: Annotated[list[KeyRecord], Field(max_length=MOST_KEYS)]


def new_key() -> str:
    """A key that nobody has."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def digest_of(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def new_record(name: str, key: str, limits: KeyLimits, today: date) -> KeyRecord:
    """The record of a new key. Raises InvalidFieldError for a name or limit that no key may have."""
    try:
        return KeyRecord(
            name=name,
            sha256=digest_of(key).hex(),
            created=today.isoformat(),
            requests_per_minute=limits.requests_per_minute,
            tokens_per_minute=limits.tokens_per_minute,
            max_concurrent=limits.max_concurrent,
        )
    except ValidationError as error:
        raise _refusal("key", error) from None


def _refusal(where: str, error: ValidationError) -> InvalidFieldError:
    """The first problem, without the value: that may be a key which somebody took for its hash."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).lstrip(".")
    return InvalidFieldError(where, f"{path}: {first['msg']}" if path else first["msg"])


def read_keys(path: Path) -> tuple[KeyRecord, ...]:
    """The file's keys. Raises InvalidFieldError with the reason in one line."""
    place = f"API keys in {path}"
    try:
        with path.open("rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidFieldError(place, f"can't be read: {error.strerror}") from None
    if len(data) > MOST_FILE_BYTES:
        raise InvalidFieldError(place, f"the file must be at most {MOST_FILE_BYTES} bytes long")
    try:
        records = tuple(_KeyDocument.model_validate_json(data).keys)
    except ValidationError as error:
        raise _refusal(place, error) from None
    _check_different(place, [record.name for record in records], "name")
    _check_different(place, [record.sha256 for record in records], "sha256")
    return records


def _check_different(place: str, values: Sequence[str], field: str) -> None:
    seen: dict[str, int] = {}
    for number, value in enumerate(values):
        if (first := seen.setdefault(value, number)) != number:
            raise InvalidFieldError(place, f"keys[{number}].{field}: is that of keys[{first}] too")


def change_keys(path: Path, change: Callable[[tuple[KeyRecord, ...]], Sequence[KeyRecord]]) -> None:
    """Replaces the file by what `change` makes of its keys; a file that is not there has none. Two that change it at a
    time wait for each other.

    Raises InvalidFieldError if the file can't be read or written, or would have a name twice.
    """
    place = f"API keys in {path}"
    try:
        with _locked(path):
            records = list(change(read_keys(path) if path.exists() else ()))
            _check_different(place, [record.name for record in records], "name")
            if len(records) > MOST_KEYS:
                raise InvalidFieldError(place, f"there can be at most {MOST_KEYS}")
            _replace(path, _KeyDocument(keys=records).model_dump_json(indent=1, exclude_none=True) + "\n")
    except OSError as error:
        raise InvalidFieldError(place, f"can't be written: {error.strerror}") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _replace(path: Path, text: str) -> None:
    mode = path.stat().st_mode & 0o777 if path.exists() else NEW_FILE_MODE
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
