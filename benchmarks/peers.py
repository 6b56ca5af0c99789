"""FastServe beside other engines on this machine, in turn and repeated.

    python -m benchmarks.peers --install                           # makes their environments; no figures
    python -m benchmarks.peers                                     # everything; about 25 minutes on 2 cores
    python -m benchmarks.peers --models S --minutes 5
    python -m benchmarks.peers --models M --measures offline,decode --peers openvino,vllm --rounds 3

Writes peers.json and SUMMARY.md below benchmarks/results/<hardware>/ after each measure, and prints the tables. What
was measured before stays, unless it is measured again: so the measures can be spread over several quiet windows.
Nothing else may run meanwhile. A peer that can't be installed or fails is named with the reason. Environments that are
not there yet are made first, from the package registry; compiling llama.cpp takes about ten minutes.
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.goals_and_tables import goals_table, section, tell
from benchmarks.model_folders import ROOT, random_model
from benchmarks.peer_engines.environments import PEERS, find_uv, install
from benchmarks.peer_figures import MEASURES, goals, merged, tables
from benchmarks.settings import BenchError, BenchSettings
from benchmarks.side_by_side import MAX_BATCH, QUICK_JOBS, ROUNDS, Choice, measure_choice
from benchmarks.summary import write_summary
from services.runtime.command_line import CommandError
from services.workloads.job_records import write_lines

PART = "peers"
BUSY_LOAD = 0.5


def _names(given: str, known: tuple[str, ...], flag: str) -> tuple[str, ...]:
    """The names of a list, in the known order. Raises BenchError for an unknown one."""
    wanted = given.split(",")
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise BenchError(f"{flag}: there is no {unknown[0]!r}; there are {', '.join(known)}")
    return tuple(name for name in known if name in wanted)


def choice_of(given: argparse.Namespace) -> Choice:
    """What the flags choose. Raises BenchError."""
    rounds = (1 if given.quick else ROUNDS) if given.rounds is None else given.rounds
    if rounds < 1:
        raise BenchError(f"--rounds is {rounds}; it must be at least 1")
    if not given.minutes > 0:
        raise BenchError(f"--minutes is {given.minutes:g}; it must be more than 0")
    return Choice(
        _names(given.peers, tuple(one.name for one in PEERS), "--peers"),
        _names(given.models or ("S" if given.quick else "S,M"), ("S", "M"), "--models"),
        _names(given.measures, tuple(one.name for one in MEASURES), "--measures"),
        rounds,
        given.minutes,
    )


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="FastServe beside other engines.")
    made.add_argument("--install", action="store_true", help="only make the environments, and say what can't be made")
    made.add_argument("--peers", default=",".join(one.name for one in PEERS), metavar="NAME,NAME", help="[%(default)s]")
    made.add_argument("--models", metavar="NAME,NAME", help="[S,M; S in a quick run]")
    made.add_argument("--measures", default=",".join(one.name for one in MEASURES), metavar="NAME,NAME", help="[all]")
    made.add_argument("--rounds", type=int, help=f"turns of each system [{ROUNDS}; 1 in a quick run]")
    made.add_argument(
        "--minutes", type=float, default=60.0, help="no further round of a measure begins that would end later [60]"
    )
    made.add_argument("--quick", action="store_true", help=f"{QUICK_JOBS} jobs, below out/: shows that it runs")
    made.add_argument(
        "--max-batch", type=int, default=MAX_BATCH, help="maximum jobs of an iteration, of all systems [64]"
    )
    made.add_argument("--out", type=Path, help="folder for the results of all machines [benchmarks/results]")
    return made


def _install_only(choice: Choice) -> int:
    """Makes the environments; returns how many can't be made."""
    failed = 0
    for environment in PEERS:
        if environment.name in choice.peers:
            try:
                tell(f"{environment.name} ...")
                install(environment, find_uv())
            except (BenchError, OSError) as error:
                tell(str(error))
                failed += 1
    return failed


def _kept(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["measured"]
    return found


def _measure(settings: BenchSettings, choice: Choice, out: Path) -> dict[str, Any]:
    """Measures and writes after each step; returns all that is known."""
    before, load, began_s = _kept(out / f"{PART}.json"), os.getloadavg()[0], time.monotonic()
    out.mkdir(parents=True, exist_ok=True)

    def keep(measured: dict[str, Any]) -> None:
        content = {
            "part": PART,
            "quick": settings.quick,
            "machine": machine.describe(),
            "load_before": round(load, 2),
            "took_s": round(time.monotonic() - began_s, 1),
            "on": datetime.now(UTC).date().isoformat(),
            "measured": merged(before, measured),
        }
        write_lines(out / f"{PART}.json", json.dumps(content, indent=1).splitlines())
        write_summary(out)

    return merged(before, asyncio.run(measure_choice(settings, choice, keep)))


def main(argv: list[str] | None = None) -> int:
    """Measures and prints. The exit code is 1 if FastServe itself failed or an environment can't be made."""
    given = _parser().parse_args(argv)
    try:
        choice = choice_of(given)
    except BenchError as error:
        tell(str(error))
        return 2
    for preset in choice.models:
        random_model(preset)
    if given.install:
        return 1 if _install_only(choice) else 0
    settings = BenchSettings(ROOT / "out" / "peers", given.quick, given.max_batch)
    shutil.rmtree(settings.scratch, ignore_errors=True)
    default = ROOT / "out" / "bench-quick" if given.quick else ROOT / "benchmarks" / "results"
    out = (given.out or default) / machine.hardware()
    load = os.getloadavg()[0]
    if load > BUSY_LOAD:
        tell(f"warning: this machine is busy (load {load:.1f}); figures will be too low, and ratios wrong")
    try:
        measured = _measure(settings, choice, out)
    except (BenchError, CommandError) as error:
        tell(f"FAILED: {error} (logs: {settings.scratch / 'logs'})")
        return 1
    except KeyboardInterrupt:
        tell("interrupted; the rounds that were measured are kept")
        return 130
    print("\n\n".join([*(section(table) for table in tables(measured)), goals_table(goals(measured))]))
    tell(f"written to {out / f'{PART}.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
