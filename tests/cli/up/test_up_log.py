"""The one log of `fastserve up`."""

import json

import pytest

from services.cli.up.service_process import reason_of
from services.cli.up.up_log import UpLog

LINE = (
    '{"time": "2026-01-31T12:00:00.123Z", "level": "error", "service": "worker", '
    '"message": "no \\u20ac", "job_id": "j/0"}'
)


def test_as_text_every_line_is_under_the_name_of_its_process(capsys: pytest.CaptureFixture[str]) -> None:
    log = UpLog()
    log.say("stopping")
    log.pass_on("worker-1", ["ready", LINE])
    assert capsys.readouterr().err.splitlines() == ["[up] stopping", "[worker-1] ready", f"[worker-1] {LINE}"]


def test_as_json_every_line_is_an_object_with_the_name_of_its_process(capsys: pytest.CaptureFixture[str]) -> None:
    log = UpLog("json")
    log.say("stopping")
    log.pass_on("worker-1", [LINE, "Segmentation fault", "{broken"])
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["service"] for line in lines] == ["up", "worker-1", "worker-1", "worker-1"]
    assert [line["message"] for line in lines] == ["stopping", "no €", "Segmentation fault", "{broken"]
    assert [line["level"] for line in lines] == ["info", "error", "warning", "warning"]
    assert (lines[1]["time"], lines[1]["job_id"]) == ("2026-01-31T12:00:00.123Z", "j/0")
    assert all(line["time"].endswith("Z") for line in lines)


def test_why_a_service_ended_is_the_message_of_its_last_line() -> None:
    assert reason_of("worker-1", LINE, 1) == "no €"
    assert reason_of("worker", "fastserve worker: no model", 1) == "no model"
