"""Files of API keys for a gateway under test."""

from datetime import date
from pathlib import Path

from services.gateway.access.key_file import change_keys, new_key, new_record
from services.gateway.access.rate_limits import KeyLimits


def add_key(path: Path, name: str, limits: KeyLimits | None = None) -> str:
    """Adds a key to the file, and returns it."""
    key = new_key()
    record = new_record(name, key, limits or KeyLimits(), date(2026, 1, 31))
    change_keys(path, lambda records: (*records, record))
    return key


def remove_key(path: Path, name: str) -> None:
    """Revokes a key."""
    change_keys(path, lambda records: [record for record in records if record.name != name])


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    """gRPC's metadata of a call with the key."""
    return (("authorization", f"Bearer {key}"),)
