"""Real services that also write down what they come to know, for a test to read: `python -m tests.e2e.observed SERVICE
TRACE_FILE FLAG...`.

Nothing that the service does is changed: behind four methods of its drivers a line of JSON is written. Times are those
of the monotonic clock, which all processes of a machine share, so that lines of different processes can be compared.

    scheduler: {"at_s", "job", "reason"}    the job ended, by the turn of that time
               {"at_s", "iterations", "released": [job]}    the iterations whose results a turn took, and the jobs whose
               KV it gave back
    kvmanager: {"at_s", "blocks": {job: [device, host]}}    what jobs, and copies of ended ones, hold after a turn that
               changed it
    worker:    {"at_s", "plan"}    an iteration ended
               {"at_s", "blocks": {job: [device, host]}, "offloaded": [job]}    the tables of the jobs that a batch of
               commands named, after it, and those that it swapped out
"""

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

Blocks = dict[str, tuple[int, int]]
NONE = (0, 0)


class Trace:
    """A file of lines, each whole as soon as it is there."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, at_s: float, **what: Any) -> None:
        self._file.write(json.dumps({"at_s": at_s, **what}) + "\n")


def behind(owner: type, method: str, note: Callable[..., None]) -> None:
    """Has `note` called with the same arguments after every call of the method."""
    plain = getattr(owner, method)

    def noted(self: Any, *arguments: Any) -> Any:
        returned = plain(self, *arguments)
        note(self, *arguments)
        return returned

    setattr(owner, method, noted)


def observe_scheduler(trace: Trace) -> None:
    from services.domain.protocol import IterationResult, Release
    from services.scheduler.gateways import Gateways
    from services.scheduler.scheduler_link import SchedulerLink
    from services.scheduler.worker_group import WorkerGroup

    behind(Gateways, "end", lambda _, end, now_s, failure: trace.write(now_s, job=end.job_id, reason=end.reason.value))
    released: list[str] = []
    turn: list[tuple[float, int]] = []

    def note_released(_: Any, group: int, epoch: int, messages: Any, may_wait: Any) -> None:
        released.extend(message.job_id for message in messages if isinstance(message, Release))

    def note_decided(_: Any, events: Any, now_s: float) -> None:
        turn.append((now_s, sum(isinstance(event, IterationResult) for event in events)))

    def note_turn(_: Any) -> None:
        now_s, iterations = turn.pop()
        if iterations or released:
            trace.write(now_s, iterations=iterations, released=list(released))
        released.clear()

    behind(SchedulerLink, "send", note_released)
    behind(WorkerGroup, "decide", note_decided)
    behind(WorkerGroup, "end_turn", note_turn)


def observe_kvmanager(trace: Trace) -> None:
    from services.kvmanager.driver import KvManagerDriver

    known: Blocks = {}

    def note(driver: Any, _: Any) -> None:
        ledger = driver._groups[0]._machine._ledger
        jobs = () if ledger is None else (*ledger.jobs.values(), *ledger.zombies.values())
        held: Blocks = {job.job_id: (len(job.device), len(job.host)) for job in jobs}
        changed = {job: held.get(job, NONE) for job in (known | held) if held.get(job, NONE) != known.get(job, NONE)}
        known.clear()
        known.update(held)
        if changed:
            trace.write(time.monotonic(), blocks=changed)

    behind(KvManagerDriver, "_turn", note)


def observe_worker(trace: Trace) -> None:
    from services.domain.protocol import Offload
    from services.worker.driver import WorkerDriver

    def note_tables(driver: Any, commands: Any) -> None:
        ranks: Any = driver._ranks
        tables = getattr(ranks, "_worker", ranks)._engine._tables._jobs
        named: Blocks = {command.job_id: NONE for command in commands}
        for job in named.keys() & tables.keys():
            named[job] = (len(tables[job].device_blocks), len(tables[job].host_blocks))
        offloaded = [command.job_id for command in commands if isinstance(command, Offload)]
        trace.write(time.monotonic(), blocks=named, offloaded=offloaded)

    behind(WorkerDriver, "_take_commands", note_tables)

    def note_iterations(_: Any, results: Any) -> None:
        for result in results:
            trace.write(time.monotonic(), plan=result.result.plan_number)

    behind(WorkerDriver, "results_ready", note_iterations)


def lines_of(trace: Path) -> list[dict[str, Any]]:
    """What an observed service has written so far."""
    return [json.loads(line) for line in trace.read_text().splitlines(keepends=True) if line.endswith("\n")]


OBSERVERS = {"scheduler": observe_scheduler, "kvmanager": observe_kvmanager, "worker": observe_worker}


def main(service: str, trace_file: str, *flags: str) -> int:
    OBSERVERS[service](Trace(Path(trace_file)))
    status: int = import_module(f"services.{service}.__main__").main(list(flags))
    return status


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
