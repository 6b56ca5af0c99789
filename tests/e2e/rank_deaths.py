"""Kills ranks of a group at random moments under load, and counts what was lost or doubled: nothing may be.

    python -m tests.e2e.rank_deaths --kills 50 --tp 1 --pp 2 --out FILE

Jobs come in rounds of forty, in a pool for four. A rank is killed while a round is under way, and started again; each
stream must give the unsplit model's tokens, each once and in order (the client checks the numbers of the tokens).
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.builders.model_folders import tiny_model_folder
from tests.builders.waits import wait_until
from tests.e2e.group_cluster import GroupCluster, different, running_group, together, unsplit

JOBS = 40
LONGEST_PAUSE_S = 1.5
KILLS_IN_ROUND = 5


def next_epoch(group: GroupCluster, joins: int) -> None:
    """Waits until the group has joined once more."""
    wait_until(lambda: group.status().groups[0].worker_joins > joins, "the next epoch")


async def round_with_kills(
    group: GroupCluster, expected: list[list[int]], dice: random.Random, left: int
) -> tuple[int, list[float]]:
    """Runs all jobs; returns how many gave other tokens, and how long the group was away after each kill."""
    running = asyncio.create_task(together(group, JOBS))
    away_s: list[float] = []
    while len(away_s) < min(left, KILLS_IN_ROUND):
        await asyncio.sleep(dice.uniform(0.05, LONGEST_PAUSE_S))
        if running.done():
            break
        rank = dice.randrange(group.rank_count)
        joins = group.status().groups[0].worker_joins
        killed_s = time.monotonic()
        group.ranks[rank].stop(signal.SIGKILL)
        group.start_rank(rank)
        await asyncio.to_thread(next_epoch, group, joins)
        away_s.append(time.monotonic() - killed_s)
        print(f"kill of rank {rank}: the next epoch after {away_s[-1]:.1f} s", flush=True)
    return len(different(await running, expected)), away_s


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Random kills of ranks under load.")
    for name, default in (("kills", 50), ("tp", 1), ("pp", 2), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args(argv)
    dice, expected = random.Random(arguments.seed), unsplit(JOBS)
    wrong = rounds = 0
    away_s: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with running_group(tiny_model_folder(folder), folder, arguments.tp, arguments.pp) as group:
            while len(away_s) < arguments.kills:
                differ, away = asyncio.run(round_with_kills(group, expected, dice, arguments.kills - len(away_s)))
                wrong, rounds, away_s = wrong + differ, rounds + 1, away_s + away
                wait_until(group.is_idle, "every block free")
                tell(arguments, rounds, wrong, away_s)
    return 1 if wrong else 0


def tell(arguments: argparse.Namespace, rounds: int, wrong: int, away_s: list[float]) -> None:
    """Prints and writes what was found so far."""
    result = {
        "tp": arguments.tp,
        "pp": arguments.pp,
        "seed": arguments.seed,
        "kills": len(away_s),
        "jobs": rounds * JOBS,
        "jobs_with_other_tokens": wrong,
        "next_epoch_s": {"mean": sum(away_s) / len(away_s), "max": max(away_s)},
    }
    print(json.dumps(result), flush=True)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
