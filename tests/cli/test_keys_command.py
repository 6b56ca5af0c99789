"""`fastserve keys`: makes keys that it shows once, lists them without, and revokes them."""

import json
from pathlib import Path

import pytest

from services.cli.__main__ import main
from services.gateway.access.key_ring import KeyRing
from tests.builders.api_keys import bearer


def test_a_key_is_made_shown_once_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.json"
    file = ("--file", str(path))
    assert main(["keys", "make", "alice", *file, "--requests-per-minute", "60", "--max-concurrent", "4"]) == 0
    made = capsys.readouterr()
    key = made.out.strip()
    assert KeyRing(path).meter_of(bearer(key)).name == "alice"
    assert "shown this once" in made.err
    assert key not in made.err
    assert main(["keys", "make", "bob", *file]) == 0
    capsys.readouterr()

    assert main(["keys", "list", *file]) == 0
    table = capsys.readouterr().out
    assert [line.split()[0] for line in table.splitlines()] == ["name", "alice", "bob"]
    assert table.splitlines()[1].split()[2:] == ["60", "-", "4"]
    assert main(["keys", "list", *file, "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["name"], first["requests_per_minute"], first["tokens_per_minute"]) == ("alice", 60, None)
    assert "sha256" not in first

    assert main(["keys", "revoke", "alice", *file]) == 0
    assert "revoked alice" in capsys.readouterr().err
    assert main(["keys", "list", *file]) == 0
    assert "alice" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["make", "alice"], "has a key 'alice' already"),
        (["make", "a b"], "name: "),
        (["make", "bob", "--tokens-per-minute", "0"], "--tokens-per-minute"),
        (["revoke", "alice", "carol"], "has no key 'carol'"),
        (["steal", "alice"], "steal"),
    ],
)
def test_what_can_not_be_done_is_said_in_one_line_and_changes_nothing(
    argv: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    assert main(["keys", "make", "alice", "--file", str(path)]) == 0
    before = path.read_bytes()
    capsys.readouterr()
    assert main(["keys", *argv, "--file", str(path)]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert path.read_bytes() == before
