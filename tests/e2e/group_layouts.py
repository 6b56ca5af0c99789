"""Every layout of a small model gives the unsplit model's tokens, through the real services: alone, and with forty jobs
in a pool for four, each of which is swapped several times.

    python -m tests.e2e.group_layouts [TPxPP ...]
"""

import asyncio
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from models.make_random import PRESETS, write_random_model
from services.worker.model.loader import load_model
from tests.e2e.group_cluster import LEAST_SWAPS, different, one_by_one, running_group, swapped_together, unsplit
from tests.worker import tiny_engine

LAYOUTS = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 3), (4, 1))
JOBS = 40


def main(arguments: list[str]) -> int:
    layouts = [tuple(map(int, text.split("x"))) for text in arguments] or list(LAYOUTS)
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        # Three layers for three stages; four ranks of a stage are more than the two kv heads.
        write_random_model(replace(PRESETS["tiny"], layers=3), model)
        whole = load_model(model, "cpu", tiny_engine.tiny_model().dtype)
        with patch.object(tiny_engine, "tiny_model", lambda: whole):
            expected = unsplit(JOBS)
        for tp, pp in layouts:
            folder = Path(scratch) / f"{tp}x{pp}"
            folder.mkdir()
            with running_group(model, folder, tp, pp) as group:
                by_itself = different(asyncio.run(one_by_one(group, 4)), expected[:4])
                shared, swaps = asyncio.run(swapped_together(group, expected))
                counters = group.status().counters
            wrong += len(by_itself) + len(shared) + sum(each < LEAST_SWAPS for each in swaps)
            print(
                f"tp={tp} pp={pp}: {len(by_itself)} of 4 jobs alone and {len(shared)} of {JOBS} together differ; "
                f"each was swapped {min(swaps)} to {max(swaps)} times, {counters.preemptions} preemptions, "
                f"{counters.uploaded_bytes} bytes uploaded",
                flush=True,
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
