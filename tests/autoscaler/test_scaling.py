"""Whole groups, more at once, fewer after a quiet time; and the loop around it, before a made-up API server."""

import asyncio
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from services.autoscaler.__main__ import read_wanted
from services.autoscaler.driver import AutoscaleDriver, RivalError
from services.autoscaler.scaling import ScaleLimits, Scaling
from services.runtime.api_server_errors import ApiServerError


def scaling(least: int = 1, most: int = 4, quiet_s: float = 60.0, pods_per_group: int = 1) -> Scaling:
    return Scaling(ScaleLimits(least, most, quiet_s, pods_per_group))


def test_more_groups_come_at_once_and_as_many_as_are_wanted() -> None:
    assert scaling().replicas(3, 1, 0.0) == 3


def test_a_scale_that_is_right_is_left_alone() -> None:
    assert scaling().replicas(2, 2, 0.0) is None


def test_groups_leave_one_at_a_time_each_after_a_quiet_time() -> None:
    slow = scaling(quiet_s=60.0)
    asked = [(0.0, 4), (59.0, 4), (60.0, 4), (61.0, 3), (119.0, 3), (120.0, 3)]
    assert [slow.replicas(1, present, now_s) for now_s, present in asked] == [None, None, 3, None, None, 2]


def test_a_wish_for_more_begins_the_quiet_time_anew() -> None:
    slow = scaling(quiet_s=60.0)
    assert slow.replicas(1, 2, 0.0) is None
    assert slow.replicas(2, 2, 50.0) is None
    assert slow.replicas(1, 2, 70.0) is None
    assert slow.replicas(1, 2, 131.0) == 1


def test_nothing_is_changed_while_the_forecast_is_not_known() -> None:
    slow = scaling(quiet_s=60.0)
    assert slow.replicas(1, 2, 0.0) is None
    assert slow.replicas(None, 2, 30.0) is None
    # The quiet time has to be seen whole.
    assert slow.replicas(1, 2, 70.0) is None


def test_groups_stay_within_their_limits() -> None:
    assert scaling(most=4).replicas(9, 2, 0.0) == 4
    assert scaling(least=2).replicas(0, 1, 0.0) == 2
    assert scaling(least=0, quiet_s=0.0).replicas(0, 1, 0.0) is None
    none_left = scaling(least=0, quiet_s=0.0)
    none_left.replicas(0, 1, 0.0)
    assert none_left.replicas(0, 1, 1.0) == 0


def test_a_group_of_several_pods_comes_and_goes_whole() -> None:
    assert scaling(pods_per_group=2).replicas(3, 2, 0.0) == 6
    assert scaling(pods_per_group=2).replicas(2, 3, 0.0) == 4


class FakeScaledWorkers:
    """The workers' object that the driver meets."""

    def __init__(self, count: int, rivals: list[str] | None = None) -> None:
        self.count = count
        self.rivals = rivals or []
        self.forbidden = False

    async def others(self) -> list[str]:
        return self.rivals

    async def replicas(self) -> int:
        return self.count

    async def set_replicas(self, count: int) -> None:
        if self.forbidden:
            raise ApiServerError("the service account may not patch statefulsets/scale in namespace x: give it a Role")
        self.count = count


def driver(workers: FakeScaledWorkers, wanted: int | None) -> AutoscaleDriver:
    async def answer() -> int | None:
        return wanted

    return AutoscaleDriver(workers, answer, scaling(), period_s=0.01)


async def test_the_object_gets_what_the_forecast_asks() -> None:
    workers = FakeScaledWorkers(1)
    await driver(workers, 3).step()
    assert workers.count == 3


async def test_beside_another_autoscaler_it_does_not_begin() -> None:
    workers = FakeScaledWorkers(1, ["HorizontalPodAutoscaler own"])
    with pytest.raises(RivalError, match="HorizontalPodAutoscaler own scales the same object: delete one of the two"):
        await driver(workers, 3).check_alone()


async def test_what_is_forbidden_is_told_once_and_works_once_it_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    workers = FakeScaledWorkers(1)
    workers.forbidden = True
    running = driver(workers, 3)
    await running.step()
    await running.step()
    assert [record.getMessage() for record in caplog.records] == [
        "the service account may not patch statefulsets/scale in namespace x: give it a Role"
    ]
    workers.forbidden = False
    await running.step()
    assert workers.count == 3


class Metrics(BaseHTTPRequestHandler):
    """Answers every request with `text`."""

    text = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("text", "wanted"),
    [('fastserve:groups_wanted{model_name="m"} 3.0\n', 3), ("other 1\n", None), ("{", None)],
)
async def test_the_forecast_is_read_from_the_schedulers_metrics(text: str, wanted: int | None) -> None:
    server = HTTPServer(("127.0.0.1", 0), type("Saying", (Metrics,), {"text": text}))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        assert await asyncio.to_thread(read_wanted, url) == wanted
    finally:
        server.shutdown()
        server.server_close()


async def test_a_scheduler_that_is_not_there_wants_nothing_known() -> None:
    assert await asyncio.to_thread(read_wanted, "http://127.0.0.1:1/metrics") is None
