"""The compiled code's draws where rows are odd: equal logits at the border of a cut, ruled out tokens, none that is a
number, vocabularies of any size.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from services.domain.job_sampling import JobSampling
from services.worker.kernels.cpu.decoder_library import InstructionSet, instruction_sets
from services.worker.kernels.cpu.native_draws import native_draw
from services.worker.sampling.sampler import JobSampler, SampleRow, draw
from tests.worker.sampling import naive_sampler

CUTS: dict[str, dict[str, object]] = {
    "none": {},
    "top_k": {"top_k": 37},
    "top_p": {"top_p": 0.6},
    "top_p near 1": {"top_p": 0.999999},
    "min_p": {"min_p": 0.2},
    "top_k and top_p": {"top_k": 90, "top_p": 0.9},
    "top_k below top_p": {"top_k": 3, "top_p": 0.99},
    "all": {"top_k": 200, "top_p": 0.95, "min_p": 0.05, "temperature": 0.6},
}

every_set = pytest.mark.parametrize("instruction_set", instruction_sets(), ids=str)
every_cut = pytest.mark.parametrize("name", CUTS)


def hows(name: str, count: int) -> list[JobSampling]:
    return [
        replace(JobSampling(max_tokens=9, seed=seed), **CUTS[name])  # type: ignore[arg-type]
        for seed in range(count)
    ]


def rows_of(samplings: list[JobSampling]) -> list[SampleRow]:
    return [SampleRow(JobSampler(how), number % 3) for number, how in enumerate(samplings)]


def normal(rows: int, vocabulary: int) -> Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary))


def naive(logits: Tensor, samplings: list[JobSampling]) -> list[int]:
    return [
        naive_sampler.choose(logits[number].tolist(), how, [], [0] * (number % 3))
        for number, how in enumerate(samplings)
    ]


@every_cut
@every_set
def test_of_equal_logits_at_the_border_the_lower_ids_stay(instruction_set: InstructionSet, name: str) -> None:
    samplings = hows(name, 60)
    logits = (normal(60, 700) * 2).round() / 2
    assert native_draw(instruction_set)(logits, rows_of(samplings)).tolist() == naive(logits, samplings)


@every_cut
@pytest.mark.parametrize("vocabulary", [1, 5, 16, 63, 64, 65, 129])
def test_a_vocabulary_has_any_size(vocabulary: int, name: str) -> None:
    samplings = hows(name, 20)
    logits = normal(20, vocabulary)
    for instruction_set in instruction_sets():
        assert native_draw(instruction_set)(logits, rows_of(samplings)).tolist() == naive(logits, samplings)


@every_cut
@every_set
def test_a_large_vocabulary_is_drawn_from_as_by_torch(instruction_set: InstructionSet, name: str) -> None:
    """Flat enough for most tokens to count."""
    logits, rows = normal(4, 100_001) / 4, rows_of(hows(name, 4))
    assert native_draw(instruction_set)(logits, rows).tolist() == draw(logits, rows).tolist()


@every_cut
@every_set
def test_no_token_is_drawn_that_was_ruled_out(instruction_set: InstructionSet, name: str) -> None:
    logits = torch.full((60, 300), -math.inf)
    logits[:, [70, 299]] = torch.tensor([1.0, 1.5])
    found = native_draw(instruction_set)(logits, rows_of(hows(name, 60))).tolist()
    assert set(found) <= {70, 299}
    assert 299 in found


@every_cut
@every_set
def test_of_logits_beyond_all_numbers_some_token_comes(instruction_set: InstructionSet, name: str) -> None:
    logits = torch.zeros(4, 300)
    logits[1, 7], logits[2] = math.inf, math.nan
    logits[3] = -math.inf
    found = native_draw(instruction_set)(logits, rows_of(hows(name, 4))).tolist()
    assert all(0 <= token < 300 for token in found)
