"""`make bench`: measure this machine, part by part.

    python -m benchmarks.run [--only throughput,memory] [--quick]
    python -m benchmarks.run --only live_against_simulated    # of the parts that are measured only when named

Each part writes its own file under `benchmarks/results/<hardware>/` as soon as it is measured, and the summary is
rewritten from all files that exist, so an interrupted run keeps its parts, and a part can be measured again alone.
Nothing else should run meanwhile: two threads of the model on two cores collapse as soon as a third is busy.
`--quick` tries everything with small sizes and writes below `out/`; its figures mean nothing.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import machine
from benchmarks.goals_and_tables import tell
from benchmarks.model_folders import ROOT
from benchmarks.parts import ALL_PARTS, PARTS, SEPARATE, Part
from benchmarks.settings import DEFAULT_MAX_BATCH, BenchError, BenchSettings
from benchmarks.summary import write_summary
from services.domain.errors import FastServeError
from services.runtime.command_line import CommandError
from services.workloads.job_records import write_lines

BUSY_LOAD = 0.5


def measure_part(part: Part, settings: BenchSettings, out: Path) -> bool:
    """Measures a part and writes its file and the summary; returns whether it succeeded."""
    load = os.getloadavg()[0]
    tell(f"{part.name} ...")
    began_s = time.monotonic()
    try:
        measured = part.measure(settings)
    except (BenchError, CommandError, FastServeError, OSError, subprocess.SubprocessError) as error:
        tell(f"{part.name} FAILED: {error} (logs: {settings.scratch / 'logs'})")
        return False
    took_s = time.monotonic() - began_s
    content = {
        "part": part.name,
        "quick": settings.quick,
        "machine": machine.describe(),
        "load_before": round(load, 2),
        "took_s": round(took_s, 1),
        "on": datetime.now(UTC).date().isoformat(),
        "measured": measured,
    }
    out.mkdir(parents=True, exist_ok=True)
    write_lines(out / f"{part.name}.json", json.dumps(content, indent=1).splitlines())
    part.draw(measured, out)
    write_summary(out)
    missed = [goal for goal in part.goals(measured) if not goal.met]
    tell(
        f"{part.name} took {took_s:.0f} s"
        + "".join(f"\n  missed: {goal.text}: {goal.measured}, asked {goal.asked}" for goal in missed)
    )
    return True


def chosen(names: str | None) -> list[Part]:
    """The parts of a list of names; without one, all but the separate ones. Raises BenchError for an unknown one."""
    if names is None:
        return list(PARTS)
    wanted = names.split(",")
    known = [part.name for part in ALL_PARTS]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise BenchError(f"--only: there is no part {unknown[0]}; parts are {', '.join(known)}")
    return [part for part in ALL_PARTS if part.name in wanted]


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Measure FastServe on this machine.")
    names, separate = (",".join(part.name for part in parts) for parts in (PARTS, SEPARATE))
    made.add_argument(
        "--only", metavar="NAME,NAME", help=f"parts to measure, of {names}; or {separate}, which run only when named"
    )
    made.add_argument("--quick", action="store_true", help="small sizes, to try whether everything runs")
    made.add_argument("--out", type=Path, help="folder for the results of all machines [benchmarks/results]")
    made.add_argument(
        "--max-batch", type=int, default=DEFAULT_MAX_BATCH, help=f"maximum jobs of an iteration [{DEFAULT_MAX_BATCH}]"
    )
    made.add_argument("--threads", type=int, help="compute threads of the model [the worker's default]")
    return made


def main(argv: list[str] | None = None) -> int:
    """Measures the chosen parts. The exit code is 1 if a part failed; missed goals are shown, but are no failure."""
    arguments = _parser().parse_args(argv)
    results = arguments.out or (ROOT / "out" / "bench-quick" if arguments.quick else ROOT / "benchmarks" / "results")
    out = results / machine.hardware()
    scratch = ROOT / "out" / "benchmarks"
    settings = BenchSettings(scratch, arguments.quick, arguments.max_batch, arguments.threads)
    try:
        parts = chosen(arguments.only)
    except BenchError as error:
        tell(str(error))
        return 2
    load = os.getloadavg()[0]
    if load > BUSY_LOAD:
        tell(f"warning: this machine is busy (load {load:.1f}); figures will be too low")
    shutil.rmtree(settings.scratch, ignore_errors=True)
    began_s = time.monotonic()
    try:
        well = [measure_part(part, settings, out) for part in parts]
    except KeyboardInterrupt:
        tell("interrupted; the parts that were measured are kept")
        return 130
    took_min = (time.monotonic() - began_s) / 60
    tell(f"{sum(well)} of {len(parts)} parts measured in {took_min:.1f} min; {out / 'SUMMARY.md'}")
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
