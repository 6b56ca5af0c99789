"""Which keys are valid: those of the file as it is now, shown in one way."""

import logging
from pathlib import Path

import pytest

from services.domain.errors import AdmissionFullError, InvalidFieldError, UnauthenticatedError
from services.gateway.access.key_ring import KeyRing
from services.gateway.access.rate_limits import KeyLimits
from tests.builders.api_keys import add_key, bearer, remove_key
from tests.builders.certificates import replace

NEEDED, MALFORMED, INVALID = "is required", "must be given once", "is not valid"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_a_key_of_the_file_is_valid_and_says_whose_it_is(path: Path) -> None:
    alice, bob = add_key(path, "alice"), add_key(path, "bob")
    keys = KeyRing(path)
    assert [keys.meter_of(bearer(key)).name for key in (alice, bob)] == ["alice", "bob"]
    assert keys.meter_of((("other", "x"), ("authorization", f"bearer  {alice} "))).name == "alice"


def test_anything_else_is_no_key(path: Path) -> None:
    key = add_key(path, "alice")
    keys = KeyRing(path)
    for metadata, reason in [
        ((), NEEDED),
        ((("x-api-key", key), ("authorization-bin", f"Bearer {key}"), ("user", "alice")), NEEDED),
        ((("authorization", key),), MALFORMED),
        ((("authorization", f"Basic {key}"),), MALFORMED),
        ((("authorization", "Bearer"),), MALFORMED),
        ((("authorization", "Bearer "),), MALFORMED),
        ((*bearer(key), *bearer(key)), MALFORMED),
        ((("authorization", f"Bearer {key}, Bearer {key}"),), MALFORMED),
        (bearer(key[:-1]), INVALID),
        (bearer(key + "x"), INVALID),
        (bearer("x" * 100_000), INVALID),
        (bearer("alice"), INVALID),
    ]:
        with pytest.raises(UnauthenticatedError, match=reason) as refused:
            keys.meter_of(metadata)
        assert key not in str(refused.value)


async def test_a_change_of_the_file_holds_and_what_was_used_stays_used(path: Path) -> None:
    alice = add_key(path, "alice", KeyLimits(requests_per_minute=1))
    keys = KeyRing(path, clock=lambda: 0.0)
    with keys.call(bearer(alice)):
        pass
    bob = add_key(path, "bob")
    await keys.look()
    assert keys.meter_of(bearer(bob)).name == "bob"
    with pytest.raises(AdmissionFullError), keys.call(bearer(alice)):
        pass
    remove_key(path, "alice")
    await keys.look()
    with pytest.raises(UnauthenticatedError, match=INVALID):
        keys.meter_of(bearer(alice))
    assert len(keys) == 1


async def test_a_bad_file_changes_nothing_and_is_told_in_one_line(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alice = add_key(path, "alice")
    keys = KeyRing(path)
    good = path.read_bytes()
    for bad in (b'{"keys": [', None):
        caplog.clear()
        if bad is None:
            path.unlink()
        else:
            replace(path, bad)
        for _ in range(3):
            await keys.look()
        assert keys.meter_of(bearer(alice)).name == "alice"
        (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert told.startswith(f"the API keys stay what they were: API keys in {path}: ")
        assert "\n" not in told
    replace(path, good)
    add_key(path, "bob")
    await keys.look()
    assert len(keys) == 2


def test_a_bad_file_at_the_start_is_refused(path: Path) -> None:
    with pytest.raises(InvalidFieldError, match="can't be read"):
        KeyRing(path)
