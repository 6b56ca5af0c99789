"""OPT through the engine: whatever is done to its jobs, they give the tokens of transformers."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from services.worker.kernels.kernel_choice import with_kernels
from services.worker.model.loader import filled_model
from tests.builders.model_folders import tiny_opt_folder
from tests.worker.fake_kv_commands import FakeKvCommands
from tests.worker.fake_scheduler_plans import FakeSchedulerPlans
from tests.worker.random_swaps import chunked_mixed_and_recomputed, swap_at_random
from tests.worker.tiny_engine import new_engine, prompt_of, sampling

OUTPUT_TOKENS = 12
CLEAR_MARGIN = 1e-3


def reference_tokens(reference: Any, prompt: tuple[int, ...]) -> list[int]:
    """What greedy decoding gives, without a cache. Every step must be clear: rounding decides none."""
    found = list(prompt)
    for _ in range(OUTPUT_TOKENS):
        with torch.no_grad():
            best = reference(torch.tensor([found])).logits[0, -1].topk(2)
        assert best.values[0] - best.values[1] > CLEAR_MARGIN
        found.append(int(best.indices[0]))
    return found[len(prompt) :]


@pytest.mark.parametrize("natively", [False, True], ids=["torch", "native"])
@pytest.mark.parametrize("like_350m", [False, True], ids=["norms before", "the 350m shape"])
def test_jobs_in_chunks_preempted_recomputed_and_swapped_give_the_tokens_of_the_reference(
    like_350m: bool, natively: bool, tmp_path: Path
) -> None:
    folder = tiny_opt_folder(tmp_path, like_350m=like_350m)
    reference = transformers.OPTForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = with_kernels(filled_model(folder, "cpu", torch.float32), natively)
    engine = new_engine(device_blocks=24, host_blocks=48, model=model)
    runner = FakeSchedulerPlans(FakeKvCommands(engine))
    prompts = [prompt_of(number, 6 + number) for number in range(6)]
    jobs = [
        runner.add(f"{number}/0", prompt, sampling(max_tokens=OUTPUT_TOKENS)) for number, prompt in enumerate(prompts)
    ]
    chunked_mixed_and_recomputed(runner, jobs)
    moves = swap_at_random(runner, jobs, random.Random(7))
    engine.check()
    engine.close()
    assert moves > 20
    for prompt, job_id in zip(prompts, jobs, strict=True):
        assert runner.outputs[job_id] == reference_tokens(reference, prompt)
