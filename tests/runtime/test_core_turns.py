"""Threads that let others end their turn on a core: the class of each, as the system tells it."""

import errno
import os
import threading
from collections.abc import Callable

import pytest

from services.runtime.core_turns import wake_at_once, wake_patiently


def classes_of(*steps: Callable[[], None]) -> list[int]:
    """The class of a thread after each of the steps that it takes, and at last that of a thread which it begins."""
    found: list[int] = []

    def look() -> None:
        found.append(os.sched_getscheduler(0))

    def run() -> None:
        for step in steps:
            step()
            look()
        another = threading.Thread(target=look)
        another.start()
        another.join()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found


def run_when_idle() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def test_a_thread_that_wakes_patiently_passes_it_on_and_the_one_that_computes_undoes_it() -> None:
    assert classes_of(wake_patiently) == [os.SCHED_BATCH, os.SCHED_BATCH]
    assert classes_of(wake_patiently, wake_at_once) == [os.SCHED_BATCH, os.SCHED_OTHER, os.SCHED_OTHER]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER, "no other thread is changed"


def test_a_class_that_somebody_chose_stays() -> None:
    assert classes_of(run_when_idle, wake_patiently, wake_at_once) == [os.SCHED_IDLE] * 4


def test_where_the_change_is_forbidden_the_class_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    assert classes_of(wake_patiently, wake_at_once) == [os.SCHED_OTHER] * 3
