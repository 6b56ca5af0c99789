"""The progress bar of a replay, on stderr: a live bar on a terminal, a line now and then elsewhere. Cheap: it redraws
twice a second.
"""

import asyncio
import sys
from collections.abc import Awaitable
from contextlib import suppress

from services.loadgen.trace_run import TraceRun

BAR_PERIOD_S = 0.5
LINE_PERIOD_S = 10.0


def describe(replay: TraceRun, elapsed_s: float) -> str:
    """Where a replay stands, in a few words."""
    under_way = replay.started - replay.ended
    rate = replay.output_tokens / elapsed_s if elapsed_s > 0 else 0.0
    failed = f", {replay.failed} failed" if replay.failed else ""
    return f"{under_way} under way, {rate:.0f} tokens/s{failed}"


async def _draw_bar(title: str, replay: TraceRun) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, expand=True) as bar:
        task = bar.add_task(title, total=len(replay.records), state="")
        try:
            while True:
                bar.update(
                    task, completed=replay.ended, state=describe(replay, bar.tasks[0].elapsed or 0.0), refresh=True
                )
                await asyncio.sleep(BAR_PERIOD_S)
        finally:
            bar.update(task, completed=replay.ended, state=describe(replay, bar.tasks[0].elapsed or 0.0), refresh=True)


async def _print_lines(title: str, replay: TraceRun) -> None:
    loop = asyncio.get_running_loop()
    start_s = loop.time()

    def line() -> None:
        state = describe(replay, loop.time() - start_s)
        print(f"{title}: {replay.ended}/{len(replay.records)} jobs, {state}", file=sys.stderr, flush=True)

    try:
        while True:
            await asyncio.sleep(LINE_PERIOD_S)
            line()
    finally:
        if replay.started:
            line()


async def with_progress(title: str, replay: TraceRun, work: Awaitable[TraceRun]) -> TraceRun:
    """Await a replay while showing how it goes."""
    show = _draw_bar if sys.stderr.isatty() else _print_lines
    shown = asyncio.create_task(show(title, replay))
    try:
        return await work
    finally:
        shown.cancel()
        with suppress(asyncio.CancelledError):
            await shown
