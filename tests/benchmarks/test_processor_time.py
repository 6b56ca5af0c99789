"""Processor time by service is told from the compute by the names of threads."""

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.processor_time import SERVICES, beside_compute_ms, ms_by_iteration
from benchmarks.throughput import tables
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


def test_the_summary_shows_them_beside_the_throughput() -> None:
    figures = {
        "services_tokens_per_s": 900.0,
        "engine_tokens_per_s": 1000.0,
        "share_of_engine": 0.9,
        "plan_wait_share": 0.0,
        "processor_ms_by_iteration": {
            "gateway": 1.0,
            "scheduler": 0.5,
            "kvmanager": 0.25,
            "worker": 0.25,
            COMPUTE: 10.0,
        },
    }
    measured = {"trace": "t", "dtype": "bfloat16", "max_batch": 16, "models": {"S": figures}}
    shown = tables(measured)[1]
    assert list(zip(shown.heading, shown.rows[0], strict=True)) == [
        ("model", "S"),
        ("gateway", "1.00"),
        ("scheduler", "0.50"),
        ("kvmanager", "0.25"),
        ("worker", "0.25"),
        ("together", "2.00"),
        ("compute, all threads", "10.0"),
    ]
