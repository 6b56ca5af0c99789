"""`fastserve bench`: run a trace or a generated workload against a server, and write what was measured."""

import argparse
import asyncio
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from services.cli.bench.progress import with_progress
from services.cli.workload_flags import add_workload, chosen_workload
from services.domain.server_status import LONGEST_INTERVAL_S, SHORTEST_INTERVAL_S
from services.loadgen.gateway_client import GatewayClient
from services.loadgen.trace_run import SAMPLE_INTERVAL_S, TraceRun, TraceRunner, TraceRunOptions
from services.runtime.command_line import (
    CommandError,
    ExitCode,
    ServerAccess,
    add_server,
    float_between,
    not_negative_float,
    parser,
    positive_float,
    server_of,
    tell,
)
from services.runtime.output_folder import make_writable
from services.workloads.any_workload import trace_of, workload_as_json
from services.workloads.job_records import result, write_lines, write_result_files
from services.workloads.workload import TraceJob


def config_of(
    trace_run: TraceRun, options: TraceRunOptions, workload: dict[str, object], server: str
) -> dict[str, object]:
    """The `config` of `result.json`: what was run, how, against what."""
    assert trace_run.before is not None, "the trace run has not begun"
    served = trace_run.before
    lost = {} if trace_run.lost is None else {"status_lost": trace_run.lost}
    groups = [
        {
            "device": group.device,
            "block_size": group.block_size,
            "kv_device_tokens": group.pools.device_blocks_total * group.block_size,
            "kv_host_tokens": group.pools.host_blocks_total * group.block_size,
        }
        for group in served.groups
    ]
    return {
        "workload": workload,
        "time_scale": options.time_scale,
        "temperature": options.temperature,
        "server": server,
        "model": served.model,
        "policy": served.policy,
        "kv_policy": served.kv_policy,
        "groups": groups,
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "processor": platform.machine()},
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        **lost,
    }


async def measure(
    server: str | ServerAccess,
    trace: Sequence[TraceJob],
    options: TraceRunOptions,
    workload: dict[str, object],
    out: Path,
    title: str = "trace run",
) -> dict[str, object]:
    """Runs a trace, writes result.json, jobs.jsonl and status.jsonl into `out`, and returns the result.

    Raises CommandError if they can't be written, if possible before the run.
    """
    with _writing(out):
        make_writable(out)
    async with GatewayClient(server) as client:
        runner = TraceRunner(client, trace, options)
        trace_run = await with_progress(title, runner.trace_run, runner.run())
    if trace_run.lost is not None:
        tell("bench", f"the server's counters are those of its last status in the run: {trace_run.lost}")
    content = result(config_of(trace_run, options, workload, client.server), trace_run.records, trace_run.counters)
    with _writing(out):
        write_result_files(out, content, trace_run.records)
        write_lines(out / "status.jsonl", [json.dumps(status.as_json(time_s)) for time_s, status in trace_run.samples])
    return content


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(f"--out {out} can't be written: {error}", ExitCode.REFUSED) from error


def _summary(content: dict[str, object], out: Path) -> str:
    rows = [
        f"{content['jobs']} jobs, {content['failed']} failed, {content['duration_s']} s",
        f"{content['output_tokens_per_s']} output tokens/s",
    ]
    for name in ("jct_s", "ttft_s", "per_output_token_s", "inter_token_s", "worst_gap_s"):
        cells = content[name]
        assert isinstance(cells, dict), name
        rows.append(
            f"  {name:<19}"
            + "".join(f" {key} {'-' if value is None else f'{value:.4f}':<10}" for key, value in cells.items())
        )
    return "\n".join([*rows, f"written to {out}"])


def _parser() -> argparse.ArgumentParser:
    made = parser(
        "bench",
        "Run a trace or a generated workload against a server, open loop; writes result.json, jobs.jsonl and "
        "status.jsonl.",
    )
    add_server(made)
    add_workload(made)
    made.add_argument(
        "--time-scale",
        type=not_negative_float,
        default=1.0,
        metavar="X",
        help="factor for arrival times; 0: all at once [1]",
    )
    made.add_argument("--temperature", type=not_negative_float, default=0.0, help="temperature of every request [0]")
    made.add_argument("--model", default="", help="name of the model [the one that is served]")
    made.add_argument(
        "--timeout", type=positive_float, default=3600.0, metavar="SECONDS", help="give up a job after this time [3600]"
    )
    made.add_argument(
        "--sample-interval",
        type=float_between(SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S),
        default=SAMPLE_INTERVAL_S,
        metavar="SECONDS",
        help=f"time between two statuses in status.jsonl, {SHORTEST_INTERVAL_S:g} to {LONGEST_INTERVAL_S:g}; each "
        f"takes processor time of the server [{SAMPLE_INTERVAL_S:g}]",
    )
    made.add_argument(
        "--out", type=Path, default=Path("out/bench"), metavar="DIR", help="folder for the results [out/bench]"
    )
    return made


def main(argv: list[str] | None = None) -> int:
    """Runs the command. The exit code is 0 even if some jobs failed (result.json says how many), 1 if all did."""
    arguments = _parser().parse_args(argv)
    workload = chosen_workload(arguments, arguments.seed)
    options = TraceRunOptions(
        arguments.time_scale,
        arguments.seed,
        arguments.temperature,
        arguments.model,
        arguments.timeout,
        arguments.sample_interval,
    )
    content = asyncio.run(
        measure(server_of(arguments), trace_of(workload), options, workload_as_json(workload), arguments.out)
    )
    print(_summary(content, arguments.out))
    return ExitCode.FAILED if content["failed"] == content["jobs"] else ExitCode.OK
