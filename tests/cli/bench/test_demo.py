"""The demo's course, with a gateway that generates nonsense at once."""

import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import Console

from services.cli.bench.demo import Stage, run, server_flags
from services.workloads.calibration import Need
from tests.fakes.fake_gateway_for_client import FakeGatewayForClient, serving

QUICK = Need(load=0.9, least_jobs=60, least_s=0.01, pool_tokens=16, pools_in_peak=1.0, cv_tolerance=10.0)


async def test_the_demo_runs_one_trace_under_both_policies_and_writes_everything(tmp_path: Path) -> None:
    started: list[Sequence[str]] = []

    @asynccontextmanager
    async def start(flags: Sequence[str], log: Path) -> AsyncIterator[str]:
        started.append(flags)
        log.touch()
        async with serving(FakeGatewayForClient()) as gateway:
            yield gateway.address

    console = Console(file=io.StringIO(), width=140, record=True)
    await run(Stage(console, tmp_path), QUICK, start)

    assert started == [server_flags(name, tmp_path / "state") for name in ("fcfs", "fastserve")]
    jobs = len((tmp_path / "trace.jsonl").read_text().splitlines())
    assert jobs >= 60
    for name in ("fcfs", "fastserve"):
        assert json.loads((tmp_path / name / "result.json").read_text())["jobs"] == jobs
        assert (tmp_path / name / "jobs.jsonl").exists()
    assert {path.name for path in tmp_path.glob("*.png")} == {"latency.png", "levels.png", "kv.png"}
    text = console.export_text()
    for words in ("FCFS sustains", "between tokens: FastServe", "GB offloaded", "P99 of job completion"):
        assert words in text


def test_both_servers_differ_in_their_policies_alone() -> None:
    before, after = (server_flags(name, Path("state")) for name in ("fcfs", "fastserve"))
    assert [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]] == [
        ("fcfs", "skip-join-mlfq"),
        ("defer", "proactive"),
    ]
