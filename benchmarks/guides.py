"""What guides add to an iteration: sampling a batch of 16 greedy rows, all with guides and none, in turn, at a
vocabulary of 128,000. A guided row's share is its mask, its addition to the logits, and the step of its state then.

The logits are random, the same for both; so the guided rows write names and strings most of the time, whose masks are
the largest. The guides are six kinds of JSON Schema, with other properties in each row.
"""

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.goals_and_tables import Goal, Table, at_most
from benchmarks.settings import BenchSettings

ROWS = 16
VOCABULARY = 128_000
STEPS, QUICK_STEPS = 300, 40
MOST_ADDED_MS = 3.0


def _schema(row: int) -> dict[str, Any]:
    kinds: Sequence[dict[str, Any]] = (
        {"type": "string"},
        {"type": "array", "items": {"type": "number"}},
        {"type": "string", "pattern": "^[a-z ,.]+$"},
        {"type": "array", "items": {"enum": [f"choice {place}" for place in range(40)]}},
        {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
        {"type": "object", "additionalProperties": {"type": "string"}},
    )
    names = [f"property_{row}_{place}" for place in range(6)]
    properties = {name: kinds[(row + place) % len(kinds)] for place, name in enumerate(names)}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _measured(steps: int, folder: Path) -> dict[str, Any]:
    from services.worker.engine.compute_environment import set_compute_environment, usable_cores

    set_compute_environment()
    import torch

    from models.make_random import byte_level_tokenizer
    from services.domain.guide import Guide, GuideKind
    from services.domain.ids import JobId
    from services.domain.job_sampling import JobSampling
    from services.runtime.guide_compiler import GuideCompiler
    from services.worker.sampling.guide_states import GuideState, GuideStates
    from services.worker.sampling.sampler import JobSampler, SampleRow, sample
    from services.worker.sampling.token_masks import prepare_masks

    torch.set_num_threads(usable_cores())
    config = {"vocab_size": VOCABULARY, "max_position_embeddings": 4096, "eos_token_id": 1}
    (folder / "config.json").write_text(json.dumps(config))
    byte_level_tokenizer(VOCABULARY).save(str(folder / "tokenizer.json"))
    began_s = time.perf_counter()
    states = GuideStates(GuideCompiler(folder))
    tokenizer_s = time.perf_counter() - began_s
    guides = [Guide(GuideKind.JSON_SCHEMA, json.dumps(_schema(row))) for row in range(ROWS)]
    compile_ms: list[float] = []

    def begin(row: int) -> GuideState:
        began_s = time.perf_counter()
        made = states.take(JobId(str(row)), guides[row])
        compile_ms.append(1e3 * (time.perf_counter() - began_s))
        return made

    prepare_masks(torch.device("cpu"))
    present = [begin(row) for row in range(ROWS)]
    sampler = JobSampler(JobSampling(max_tokens=4096, seed=0, temperature=0.0))
    generator = torch.Generator().manual_seed(0)
    times_ms: dict[str, list[float]] = {"none": [], "guided": []}
    restarts = 0
    for step in range(steps):
        logits_SV = torch.randn(ROWS, VOCABULARY, generator=generator)
        for name in ("none", "guided") if step % 2 else ("guided", "none"):
            own_SV = logits_SV.clone()
            is_guided = name == "guided"
            began_s = time.perf_counter()
            made = sample(own_SV, [SampleRow(sampler, step, None, guide if is_guided else None) for guide in present])
            ended = (
                [guide.add(token) for guide, token in zip(present, made.token_ids, strict=True)] if is_guided else []
            )
            times_ms[name].append(1e3 * (time.perf_counter() - began_s))
            for row, has_ended in enumerate(ended):
                assert present[row].fault is None, present[row].fault
                if has_ended:
                    present[row] = states.take(JobId(str(row)), guides[row])
                    restarts += 1
    states.close()
    added = [guided - none for guided, none in zip(times_ms["guided"], times_ms["none"], strict=True)]
    return {
        "rows": ROWS,
        "vocabulary": VOCABULARY,
        "steps": steps,
        "outputs_ended": restarts,
        "none_ms": median(times_ms["none"]),
        "guided_ms": median(times_ms["guided"]),
        "added_ms": median(added),
        "added_p95_ms": quantiles(added, n=20)[-1],
        "first_compile_ms": median(compile_ms),
        "tokenizer_s": tokenizer_s,
    }


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Medians over the steps."""
    with tempfile.TemporaryDirectory() as folder:
        return _measured(settings.pick(STEPS, QUICK_STEPS), Path(folder))


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    heading = ("batch", "median, ms", "P95, ms")
    rows = [
        ("no guides", f"{measured['none_ms']:.2f}", ""),
        (f"{measured['rows']} guided rows", f"{measured['guided_ms']:.2f}", ""),
        ("added", f"{measured['added_ms']:.2f}", f"{measured['added_p95_ms']:.2f}"),
    ]
    note = (
        f"{measured['rows']} greedy rows at a vocabulary of {measured['vocabulary']:,}, {measured['steps']} steps. "
        f"Beside the steps, on a thread of its own: {measured['first_compile_ms']:.1f} ms to compile a guide that was "
        f"not seen before; at the worker's start {measured['tokenizer_s']:.1f} s to read the tokenizer."
    )
    return [Table("Guides: sampling a batch", heading, rows, note)]


def goals(measured: dict[str, Any]) -> list[Goal]:
    """This part's goals."""
    text = f"{measured['rows']} guided rows at a vocabulary of {measured['vocabulary']:,}: added to an iteration"
    return [at_most(text, measured["added_ms"], MOST_ADDED_MS, " ms")]
