"""Work spread over processes: each task is pure, so neither their number nor their order changes an answer.

Processes are spawned, never forked. They ignore Ctrl-C, since the parent ends them, and are killed when the parent
dies, however it dies. A task reports its progress as a number in shared memory, which the parent reads a few times a
second.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from services.runtime.command_line import CommandError
from services.runtime.process import die_with_parent

LOOK_PERIOD_S = 0.2

Task = TypeVar("Task")
Answer = TypeVar("Answer")
OnProgress = Callable[[Sequence[int]], None]
"""Called with a number for each task: how much of it is done."""

_done: Any = None
"""In a process of the pool: the shared numbers."""


def _begin(parent_id: int, done: Any) -> None:
    global _done
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent_id)
    _done = done


def _work(work: Callable[[Task, Callable[[int], None]], Answer], number: int, task: Task) -> Answer:
    def report(done: int) -> None:
        _done[number] = done

    return work(task, report)


def over_processes(
    work: Callable[[Task, Callable[[int], None]], Answer],
    tasks: Sequence[Task],
    processes: int,
    on_progress: OnProgress,
) -> list[Answer]:
    """The answers of `work(task, report)` in the order of the tasks; a task calls `report(n)` to say how far
    it is. With one process or one task, all run in this process.

    Raises what a task raised, and CommandError if a process was killed.
    """
    if processes == 1 or len(tasks) <= 1:
        return _here(work, tasks, on_progress)
    context = multiprocessing.get_context("spawn")
    done = context.RawArray("q", len(tasks))
    before = {child.pid for child in multiprocessing.active_children()}
    pool = ProcessPoolExecutor(min(processes, len(tasks)), context, _begin, (os.getpid(), done))
    try:
        futures = _submitted(pool, work, tasks)
        _watch(futures, done, on_progress)
        answers = [future.result() for future in futures]
    except BaseException as error:
        # Neither queued nor running tasks are worth waiting for.
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            if child.pid not in before:
                child.terminate()
                child.join()
        if isinstance(error, BrokenProcessPool):
            raise CommandError("a process of the simulation was killed, maybe because memory ran out") from error
        raise
    pool.shutdown()
    return answers


def _submitted(
    pool: ProcessPoolExecutor, work: Callable[[Task, Callable[[int], None]], Answer], tasks: Sequence[Task]
) -> list[Future[Answer]]:
    """Submits the tasks, which starts the processes. These inherit a blocked SIGINT until they ignore it."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return [pool.submit(_work, work, number, task) for number, task in enumerate(tasks)]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _watch(futures: Sequence[Future[Answer]], done: Any, on_progress: OnProgress) -> None:
    """Waits until all have ended; raises the error of the first that fails."""
    waiting: set[Future[Answer]] = set(futures)
    while waiting:
        ended, waiting = wait(waiting, LOOK_PERIOD_S, FIRST_EXCEPTION)
        on_progress(list(done))
        for future in ended:
            future.result()


def _here(
    work: Callable[[Task, Callable[[int], None]], Answer], tasks: Sequence[Task], on_progress: OnProgress
) -> list[Answer]:
    done = [0] * len(tasks)
    due_s = 0.0

    def reporter_of(number: int) -> Callable[[int], None]:
        def report(count: int) -> None:
            nonlocal due_s
            done[number] = count
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + LOOK_PERIOD_S
                on_progress(done)

        return report

    answers = [work(task, reporter_of(number)) for number, task in enumerate(tasks)]
    on_progress(done)
    return answers
