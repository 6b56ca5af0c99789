"""The progress of a trace run, on stderr: a live bar on a terminal, elsewhere a line every ten seconds.

Cheap, because it shares its cores with the server: it redraws twice a second.
"""

import asyncio
import sys
from collections.abc import Awaitable
from contextlib import suppress

from services.loadgen.trace_run import TraceRun

BAR_PERIOD_S = 0.5
LINE_PERIOD_S = 10.0


def describe(trace_run: TraceRun, elapsed_s: float) -> str:
    """Where a trace run stands, in a few words."""
    under_way = trace_run.started - trace_run.ended
    rate = trace_run.output_tokens / elapsed_s if elapsed_s > 0 else 0.0
    failed = f", {trace_run.failed} failed" if trace_run.failed else ""
    return f"{under_way} under way, {rate:.0f} tokens/s{failed}"


async def _draw_bar(title: str, trace_run: TraceRun) -> None:
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
        task = bar.add_task(title, total=len(trace_run.records), state="")
        try:
            while True:
                bar.update(
                    task,
                    completed=trace_run.ended,
                    state=describe(trace_run, bar.tasks[0].elapsed or 0.0),
                    refresh=True,
                )
                await asyncio.sleep(BAR_PERIOD_S)
        finally:
            bar.update(
                task, completed=trace_run.ended, state=describe(trace_run, bar.tasks[0].elapsed or 0.0), refresh=True
            )


async def _print_lines(title: str, trace_run: TraceRun) -> None:
    loop = asyncio.get_running_loop()
    start_s = loop.time()

    def line() -> None:
        state = describe(trace_run, loop.time() - start_s)
        print(f"{title}: {trace_run.ended}/{len(trace_run.records)} jobs, {state}", file=sys.stderr, flush=True)

    try:
        while True:
            await asyncio.sleep(LINE_PERIOD_S)
            line()
    finally:
        if trace_run.started:
            line()


async def with_progress(title: str, trace_run: TraceRun, work: Awaitable[TraceRun]) -> TraceRun:
    """Awaits a trace run while showing its progress."""
    show = _draw_bar if sys.stderr.isatty() else _print_lines
    shown = asyncio.create_task(show(title, trace_run))
    try:
        return await work
    finally:
        shown.cancel()
        with suppress(asyncio.CancelledError):
            await shown
