"""The two formats of a log."""

import asyncio
import json
import logging
import sys
from io import StringIO

import pytest

from services.runtime.logs import LogFormat, formatter_of, log_about


class Log:
    """A logger of its own, and what it wrote."""

    def __init__(self, log_format: LogFormat) -> None:
        self.text = StringIO()
        handler = logging.StreamHandler(self.text)
        handler.setFormatter(formatter_of("worker", log_format))
        self.logger = logging.Logger("tests.runtime.test_logs")
        self.logger.addHandler(handler)

    def lines(self) -> list[str]:
        return self.text.getvalue().splitlines()

    def objects(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.lines()]


@pytest.fixture
def human() -> Log:
    return Log("human")


@pytest.fixture
def as_json() -> Log:
    return Log("json")


def test_a_human_reads_time_level_service_text_and_what_it_is_about(human: Log) -> None:
    human.logger.warning("it is %s", "late", extra={"job_id": "r/0"})
    human.logger.info("ready")
    late, ready = human.lines()
    assert late.partition("Z ")[2] == "WARNING worker: it is late [job_id=r/0]"
    assert ready.partition("Z ")[2] == "INFO worker: ready"


def test_line_breaks_of_a_message_or_an_id_make_no_new_line(human: Log) -> None:
    human.logger.info("a\nb", extra={"request_id": "x\ry"})
    [line] = human.lines()
    assert line.endswith("worker: a\\nb [request_id=x\\ry]")


def test_json_has_the_same_as_fields_and_only_the_ids_that_are_known(as_json: Log) -> None:
    as_json.logger.warning("it is %s\n", "late", extra={"job_id": "r/0", "request_id": "r"})
    as_json.logger.info("ready")
    late, ready = as_json.objects()
    assert late.pop("time").endswith("Z")
    assert late == {
        "level": "warning",
        "service": "worker",
        "message": "it is late\n",
        "job_id": "r/0",
        "request_id": "r",
    }
    assert set(ready) == {"time", "level", "service", "message"}


def test_json_keeps_a_traceback_in_its_object(as_json: Log) -> None:
    try:
        raise KeyError("a bug")
    except KeyError:
        as_json.logger.error("failed", exc_info=sys.exc_info())
    [line] = as_json.objects()
    assert line["message"] == "failed"
    assert line["error"].splitlines()[-1] == "KeyError: 'a bug'"


async def test_what_a_task_is_about_is_beside_all_that_it_logs_and_nothing_of_others(as_json: Log) -> None:
    async def call(request_id: str) -> None:
        log_about(request_id=request_id)
        await asyncio.sleep(0)
        log_about(trace_id=f"trace of {request_id}")
        as_json.logger.info("failed")

    await asyncio.gather(call("a"), call("b"))
    as_json.logger.info("idle")
    *calls, idle = as_json.objects()
    assert [(one["request_id"], one["trace_id"]) for one in calls] == [("a", "trace of a"), ("b", "trace of b")]
    assert "request_id" not in idle


async def test_an_id_of_the_record_itself_goes_before_the_task_s(as_json: Log) -> None:
    log_about(request_id="first")
    as_json.logger.info("opened", extra={"request_id": "second"})
    assert as_json.objects()[0]["request_id"] == "second"
