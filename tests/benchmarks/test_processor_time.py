"""Processor time by service is told from the compute by the names of threads."""

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks.processor_time import SERVICES, beside_compute_ms, ms_by_iteration
from benchmarks.throughput import CHOSEN, SAME_ORDER, goals, tables
from services.worker.engine.compute_thread import COMPUTE, ComputeThread

TASKS = Path("/proc/self/task")


def _own_name() -> str:
    return (TASKS / str(threading.get_native_id()) / "comm").read_text().strip()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are told apart by /proc")
def test_the_threads_that_compute_have_its_name_and_no_others() -> None:
    names: list[str] = []

    def begin_another() -> None:
        names.append(_own_name())
        another = threading.Thread(target=lambda: names.append(_own_name()))
        another.start()
        another.join()

    asyncio.run(ComputeThread().call(begin_another))
    assert names == [COMPUTE, COMPUTE]
    assert _own_name() != COMPUTE


def test_what_services_took_is_divided_by_iterations() -> None:
    before = {**dict.fromkeys(SERVICES, 1.0), COMPUTE: 2.0}
    after = {"gateway": 1.5, "scheduler": 1.25, "kvmanager": 1.0, "worker": 1.125, COMPUTE: 7.0}
    by_iteration = ms_by_iteration(before, after, 500)
    assert by_iteration == {"gateway": 1.0, "scheduler": 0.5, "kvmanager": 0.0, "worker": 0.25, COMPUTE: 10.0}
    assert beside_compute_ms(by_iteration) == 1.75


def _figures(iterations: int, gateway_ms: float) -> dict[str, Any]:
    return {
        "services_tokens_per_s": 900.0,
        "engine_tokens_per_s": 1000.0,
        "share_of_engine": 0.9,
        "plan_wait_share": 0.0,
        "processor_ms_by_iteration": {
            "gateway": gateway_ms,
            "scheduler": 0.5,
            "kvmanager": 0.25,
            "worker": 0.25,
            COMPUTE: 10.0,
        },
        "runs": [{"services": {"iterations": iterations}, "engine": {"iterations": 500}}],
    }


def test_the_summary_shows_them_beside_the_throughput_by_batch_and_policy() -> None:
    at_chosen = {**_figures(505, 4.0), "max_batch": 64}
    of_both_orders = {**_figures(520, 1.0), "max_batch": 16, SAME_ORDER: {**_figures(500, 2.0), "max_batch": 16}}
    models = {"S": {**of_both_orders, CHOSEN: at_chosen}, "M": _figures(510, 3.0)}
    throughput, processor = tables({"trace": "t", "dtype": "bfloat16", "max_batch": 16, "models": models})
    assert [(*row[:3], row[-2]) for row in throughput.rows] == [
        ("S", "16", "default", "1.040"),
        ("S", "16", "FCFS", "1.000"),
        ("S", "64", "default", "1.010"),
        ("M", "16", "default", "1.020"),
    ]
    assert list(zip(processor.heading, processor.rows[1], strict=True)) == [
        ("model", "S"),
        ("batch", "16"),
        ("policy", "FCFS"),
        ("gateway", "2.00"),
        ("scheduler", "0.50"),
        ("kvmanager", "0.25"),
        ("worker", "0.25"),
        ("together", "3.00"),
        ("compute, all threads", "10.0"),
    ]


def test_the_services_share_of_the_engine_is_asked_for_at_each_batch() -> None:
    at_chosen = {**_figures(505, 4.0), "max_batch": 64}
    measured = {"models": {"S": {**_figures(520, 1.0), CHOSEN: at_chosen}}}
    asked = [goal.text for goal in goals(measured) if "share of the engine" in goal.text]
    assert asked == ["S: share of the engine's throughput", "S, batch 64: share of the engine's throughput"]
