"""The file of keys: what is in it, what is refused, and that it never holds or tells a key."""

import json
import stat
import threading
from datetime import date
from pathlib import Path

import pytest

from services.domain.errors import InvalidFieldError
from services.gateway.access.key_file import change_keys, digest_of, new_key, new_record, read_keys
from services.gateway.access.rate_limits import KeyLimits

DAY = date(2026, 1, 31)
KEY = "fs-this-is-a-key-that-nobody-may-see"


def test_a_key_has_256_random_bits() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("fs-") and len(key) == len("fs-") + 43 for key in keys)


def test_the_file_holds_hashes_and_limits_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    record = new_record("alice", KEY, KeyLimits(60, 10_000, 4), DAY)
    change_keys(path, lambda records: (*records, record))
    (written,) = json.loads(path.read_text())["keys"]
    assert written == {
        "name": "alice",
        "sha256": digest_of(KEY).hex(),
        "created": "2026-01-31",
        "requests_per_minute": 60,
        "tokens_per_minute": 10_000,
        "max_concurrent": 4,
    }
    assert KEY not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_keys(path) == (record,)


def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"keys": []}')
    path.chmod(0o640)
    change_keys(path, lambda records: records)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_changes_at_the_same_time_are_all_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    def add(number: int) -> None:
        record = new_record(f"key-{number}", new_key(), KeyLimits(), DAY)
        change_keys(path, lambda records: (*records, record))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {record.name for record in read_keys(path)} == {f"key-{number}" for number in range(8)}


GOOD = {"name": "alice", "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ("Invalid JSON", "line 1")),
        ("[]", ("should be an object",)),
        ("{}", ("keys: Field required",)),
        (json.dumps({"keys": [{**GOOD, "sha256": KEY}]}), ("keys[0].sha256: ",)),
        (json.dumps({"keys": [GOOD, {**GOOD, "name": KEY * 3}]}), ("keys[1].name: ",)),
        (json.dumps({"keys": [{**GOOD, "requests_per_minute": 0}]}), ("keys[0].requests_per_minute: ", "1")),
        (json.dumps({"keys": [{**GOOD, "tokens_per_minute": "9"}]}), ("keys[0].tokens_per_minute: ", "integer")),
        (json.dumps({"keys": [{**GOOD, "rate": 1}]}), ("keys[0].rate: ",)),
        (json.dumps({"keys": [GOOD, {**GOOD, "name": "bob"}]}), ("keys[1].sha256: is that of keys[0] too",)),
        (json.dumps({"keys": [GOOD, {**GOOD, "sha256": "1" * 64}]}), ("keys[1].name: is that of keys[0] too",)),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_names_the_place_and_quotes_nothing(
    content: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(InvalidFieldError) as refused:
        read_keys(path)
    told = str(refused.value)
    assert told.startswith(f"API keys in {path}: ")
    assert all(word in told for word in words), told
    assert "\n" not in told
    assert KEY not in told


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidFieldError, match=r"nowhere\.json: can't be read: No such file"):
        read_keys(tmp_path / "nowhere.json")
