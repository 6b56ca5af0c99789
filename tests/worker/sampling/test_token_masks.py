"""Masks rule out exactly the tokens that they name, on all rows or on some, and guides make them."""

import math

import numpy as np
import pytest
import torch

from services.domain.guide import Guide, GuideKind
from services.domain.job_sampling import JobSampling
from services.worker.sampling.guide_states import GuideState
from services.worker.sampling.sampler import JobSampler, SampleRow, sample
from services.worker.sampling.token_masks import add_masks, bits_of, mask_words
from tests.worker.tiny_engine import tiny_compiler

VOCABULARY = 512


@pytest.mark.parametrize("vocabulary_size", [130, 512, 1000])
@pytest.mark.parametrize("numbers", [[0, 1, 2, 3], [2], [0, 3]])
def test_masked_tokens_are_ruled_out_and_no_others(vocabulary_size: int, numbers: list[int]) -> None:
    dice = np.random.default_rng(vocabulary_size)
    allowed = dice.random((len(numbers), vocabulary_size)) < 0.4
    masks = np.stack([bits_of(np.flatnonzero(row), vocabulary_size) for row in allowed])
    assert masks.shape == (len(numbers), mask_words(vocabulary_size))
    logits_SV = torch.randn(4, vocabulary_size, generator=torch.Generator().manual_seed(0))
    expected = logits_SV.clone()
    for number, row in zip(numbers, allowed, strict=True):
        expected[number, torch.from_numpy(~row)] = -math.inf
    add_masks(logits_SV, numbers, masks)
    assert torch.equal(logits_SV, expected)


def chosen(guide: str, best: list[int], **how: object) -> list[int]:
    """The tokens of a greedy job that likes these tokens best, in this order, until its guide is complete."""
    state = GuideState(tiny_compiler().compile(Guide(GuideKind.REGEX, guide)))
    sampler = JobSampler(JobSampling(max_tokens=9, seed=0, temperature=0.0, **how))  # type: ignore[arg-type]
    made: list[int] = []
    while len(made) < 9:
        logits = torch.zeros(1, VOCABULARY)
        logits[0, best] = torch.arange(len(best), 0, -1, dtype=torch.float32)
        (token_id,) = sample(logits, [SampleRow(sampler, len(made), None, state)]).token_ids
        made.append(token_id)
        if state.add(token_id):
            break
    return made


def test_before_min_tokens_the_models_end_comes_only_where_nothing_else_may() -> None:
    end, one = 1, token_of("1")
    assert chosen("1{1,4}", [end, one], stop_token_ids=(end,)) == [one, end]
    assert chosen("1{1,4}", [end, one], stop_token_ids=(end,), min_tokens=3) == [one, one, one, end]
    assert chosen("1{1,4}", [end, one], stop_token_ids=(end,), min_tokens=9) == [one, one, one, one]
    assert chosen("1{2}", [one], stop_token_ids=(one,), min_tokens=9) == [one, one], "a stop token that must be"


def test_a_guide_outweighs_bias() -> None:
    one, two = token_of("1"), token_of("2")
    assert chosen("1{2}", [two], logit_bias=((two, 100.0), (one, -100.0))) == [one, one]


def token_of(text: str) -> int:
    mask = tiny_compiler().compile(Guide(GuideKind.REGEX, text)).compute_bitmask()
    return int.from_bytes(mask, "little").bit_length() - 1
