"""`fastserve top`: queues, jobs and KV residency, live."""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from services.domain.server_status import (
    LONGEST_INTERVAL_S,
    MOST_LISTED_JOBS,
    SHORTEST_INTERVAL_S,
    GroupStatus,
    JobPhase,
    JobStatus,
    KvSite,
    ServerCounters,
    ServerStatus,
)
from services.loadgen.gateway_client import GatewayClient
from services.runtime.command_line import (
    ExitCode,
    ServerAccess,
    add_server,
    at_most,
    float_between,
    parser,
    positive_int,
    server_of,
)

_BAR_WIDTH = 32
_RUNNING, _WAITING, _SWAPPED = "green", "yellow", "magenta"
_PHASES = {JobPhase.RUNNING: _RUNNING, JobPhase.WAITING: _WAITING, JobPhase.SWAPPED_OUT: _SWAPPED}
_PLACES = {KvSite.DEVICE: "cyan", KvSite.HOST: "blue", KvSite.NONE: "dim"}


def _bytes(count: float) -> str:
    """A size with its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _jobs_bar(running: int, waiting: int, swapped_out: int, most: int) -> Text:
    """A bar of three colours, full at `most` jobs; every kind with at least one job is visible."""
    bar = Text()
    for count, colour in ((running, _RUNNING), (waiting, _WAITING), (swapped_out, _SWAPPED)):
        bar.append("█" * (max(1, round(count / most * _BAR_WIDTH)) if count else 0), colour)
    return bar


def _levels(group: GroupStatus) -> Table:
    table = Table(expand=True, box=None, pad_edge=False)
    table.add_column("level", justify="right")
    table.add_column("quantum", justify="right")
    table.add_column("running", justify="right", style=_RUNNING)
    table.add_column("waiting", justify="right", style=_WAITING)
    table.add_column("swapped", justify="right", style=_SWAPPED)
    table.add_column("", ratio=1)
    most = max([level.running + level.waiting + level.swapped_out for level in group.levels], default=0) or 1
    for level in group.levels:
        quantum = f"{level.quantum_s * 1000:.1f} ms" if level.quantum_s > 0 else "-"
        bar = _jobs_bar(level.running, level.waiting, level.swapped_out, most)
        table.add_row(str(level.level), quantum, str(level.running), str(level.waiting), str(level.swapped_out), bar)
    table.add_section()
    table.add_row("all", "", str(group.running), str(group.waiting), str(group.swapped_out), "", style="bold")
    return table


def _pools(group: GroupStatus) -> Table:
    table = Table.grid(padding=(0, 1))
    for name, total, free, colour in (
        ("device KV", group.pools.device_blocks_total, group.pools.device_blocks_free, "cyan"),
        ("host KV", group.pools.host_blocks_total, group.pools.host_blocks_free, "blue"),
    ):
        used, tokens = total - free, total * group.block_size
        bar = ProgressBar(
            total=max(total, 1), completed=used, width=_BAR_WIDTH, complete_style=colour, finished_style="red"
        )
        table.add_row(name, bar, f"{used}/{total} blocks", f"{used * group.block_size}/{tokens} tokens")
    return table


def _jobs(jobs: Sequence[JobStatus], left_out: int) -> Table:
    """One line a job, in the order in which they would run."""
    table = Table(box=None, pad_edge=False, caption=f"and {left_out} more" if left_out > 0 else None)
    for name in ("job", "group", "level", "prompt", "output"):
        table.add_column(name, justify="right")
    table.add_column("state")
    table.add_column("KV")
    for job in jobs:
        state = Text(job.phase.name.lower().replace("_", " "), _PHASES[job.phase])
        numbers = (job.alias, job.group, job.level, job.prompt_tokens, job.output_tokens)
        table.add_row(*(str(number) for number in numbers), state, Text(job.kv.name.lower(), _PLACES[job.kv]))
    return table


def _rates(new: ServerCounters, elapsed_s: float) -> str:
    if elapsed_s <= 0:
        return "tokens/s -"
    return "   ".join(
        (
            f"tokens/s {new.generation_tokens / elapsed_s:.0f} out, {new.prompt_tokens / elapsed_s:.0f} in",
            f"iterations/s {new.iterations / elapsed_s:.0f}",
            f"jobs/s {new.jobs_finished / elapsed_s:.1f}",
            f"preemptions/s {new.preemptions / elapsed_s:.1f}",
        )
    )


def _totals(counters: ServerCounters) -> str:
    return "   ".join(
        (
            f"preemptions {counters.preemptions}",
            f"promotions {counters.promotions}",
            f"demotions {counters.demotions}",
            f"offloaded {_bytes(counters.offloaded_bytes)}",
            f"uploaded {_bytes(counters.uploaded_bytes)}",
            f"recomputed {counters.recomputed_tokens} tokens",
            f"stall {counters.stall_s:.2f} s",
        )
    )


def frame(status: ServerStatus, before: ServerStatus | None = None, elapsed_s: float = 0.0) -> RenderableType:
    """One frame; rates are over the `elapsed_s` seconds since `before`."""
    counters = status.counters
    parts: list[RenderableType] = []
    for group in status.groups:
        title = Text(f"group {group.group} on {group.device or '?'}, up to {group.max_batch} jobs an iteration")
        if not group.ready:
            title.append(" (no worker)", "red")
        elif group.draining:
            title.append(" (draining: its worker is about to end)", "yellow")
        parts.append(Panel(Group(_levels(group), "", _pools(group)), title=title, title_align="left"))
    rates = _rates(status.counters_since(before, elapsed_s) if before else ServerCounters(), elapsed_s)
    jobs = f"jobs {counters.jobs_finished} finished of {counters.jobs_admitted} admitted"
    jobs += f", {status.admission_rejections} rejected"
    if status.unplaced_jobs:
        jobs += f", {status.unplaced_jobs} waiting for a worker group"
    if len(status.groups) > 1:
        jobs += f", {counters.moves} moves between groups"
    # Names are the server's: as Text, so that nothing in them is read as markup.
    head = Text(f"{status.model}   {status.policy} + {status.kv_policy or '?'}   up {status.uptime_s:.0f} s")
    table = [_jobs(status.listed_jobs, status.jobs - len(status.listed_jobs))] if status.listed_jobs else []
    return Panel(Group(*parts, rates, jobs, _totals(counters), *table), title=head, title_align="left")


async def _once(server: ServerAccess, interval_s: float, max_jobs: int) -> None:
    """One frame, with rates: two statuses."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    async with GatewayClient(server) as client:
        before, began_s = await client.status(), time.monotonic()
        await asyncio.sleep(interval_s)
        console.print(frame(await client.status(max_jobs), before, time.monotonic() - began_s))


async def _live(server: ServerAccess, interval_s: float, max_jobs: int) -> None:
    async with GatewayClient(server) as client:
        last: tuple[float, ServerStatus] | None = None
        with Live(console=Console(), auto_refresh=False, screen=sys.stdout.isatty()) as live:
            async for status in client.watch_status(interval_s, max_jobs):
                now_s = time.monotonic()
                before_s, before = last or (now_s, None)
                live.update(frame(status, before, now_s - before_s), refresh=True)
                last = (now_s, status)


def _listed(text: str) -> int:
    return at_most(positive_int(text), MOST_LISTED_JOBS)


def _parser() -> argparse.ArgumentParser:
    made = parser("top", "Watch queues, jobs and KV residency live; Ctrl-C ends it.")
    add_server(made)
    made.add_argument(
        "--interval",
        type=float_between(SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S),
        default=1.0,
        metavar="SECONDS",
        help=f"time between frames, {SHORTEST_INTERVAL_S:g} to {LONGEST_INTERVAL_S:g} [1]",
    )
    made.add_argument(
        "--jobs", type=_listed, default=0, metavar="N", help=f"list the first N jobs, too: 1 to {MOST_LISTED_JOBS}"
    )
    made.add_argument("--once", action="store_true", help="print one frame (rates over one interval) and exit")
    return made


def main(argv: list[str] | None = None) -> int:
    """Run the command."""
    arguments = _parser().parse_args(argv)
    show = _once if arguments.once else _live
    try:
        asyncio.run(show(server_of(arguments), arguments.interval, arguments.jobs))
    except KeyboardInterrupt:
        # The usual way to leave.
        return ExitCode.OK
    return ExitCode.OK
