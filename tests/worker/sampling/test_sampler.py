"""Each sampling field does what SamplingParams says, and a draw depends on nothing but (seed, choice, number). With
torch, and with the compiled code on every instruction set of this processor.
"""

import math
import random
from dataclasses import replace

import pytest
import torch

from services.domain.job_sampling import JobSampling
from services.worker.kernels.cpu.decoder_library import instruction_sets
from services.worker.kernels.cpu.native_draws import native_draw
from services.worker.sampling.sampler import CANDIDATES, DrawRows, JobSampler, SampleRow, draw, sample
from services.worker.sampling.token_counts import TokenCounts
from tests.worker.sampling import naive_sampler

VOCABULARY = 200

FIELDS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 100.0},
    "cold": {"temperature": 0.01},
    "top_k": {"top_k": 5},
    "top_k 1": {"top_k": 1},
    "top_k over the vocabulary": {"top_k": 10_000},
    "top_p": {"top_p": 0.5},
    "top_p tiny": {"top_p": 1e-6},
    "min_p": {"min_p": 0.1},
    "min_p 1": {"min_p": 1.0},
    "all cuts": {"top_k": 30, "top_p": 0.8, "min_p": 0.02, "temperature": 1.5},
    "presence_penalty": {"presence_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 0.7},
    "negative penalties": {"presence_penalty": -1.0, "frequency_penalty": -0.5},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "repetition below 1": {"repetition_penalty": 0.5},
    "greedy with penalties": {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
    "logit_bias": {"logit_bias": ((3, 5.0), (17, -100.0), (180, 2.5))},
    "min_tokens": {"min_tokens": 50, "stop_token_ids": tuple(range(0, 200, 2))},
    "min_tokens reached": {"min_tokens": 2, "stop_token_ids": tuple(range(0, 200, 2))},
    "everything": {
        "temperature": 0.9,
        "top_k": 60,
        "top_p": 0.95,
        "min_p": 0.01,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.2,
        "logit_bias": ((9, 3.0),),
        "min_tokens": 50,
        "stop_token_ids": (4, 5),
    },
}


@pytest.fixture(params=["torch", *instruction_sets()], ids=str)
def draw_rows(request: pytest.FixtureRequest) -> DrawRows:
    return draw if request.param == "torch" else native_draw(request.param)


def how_of(**fields: object) -> JobSampling:
    return replace(JobSampling(max_tokens=100, seed=11), **fields)  # type: ignore[arg-type]


def row_of(how: JobSampling, prompt: list[int], output: list[int]) -> SampleRow:
    sampler = JobSampler(how)
    counts = TokenCounts() if sampler.needs_counts else None
    if counts is not None:
        counts.add_prompt(prompt)
        for token_id in output:
            counts.add_output(token_id)
    return SampleRow(sampler, len(output), counts)


def logits_of(seed: int, rows: int, vocabulary: int = VOCABULARY, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


def histories_of(seed: int) -> tuple[list[int], list[int]]:
    dice = random.Random(seed)
    return dice.choices(range(VOCABULARY), k=9), dice.choices(range(12), k=6)


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_does_what_the_naive_sampler_does(name: str, draw_rows: DrawRows) -> None:
    rows, expected = [], []
    logits = logits_of(len(name), 40)
    for number in range(40):
        how = how_of(seed=number * 1_000_003 - 20, choice=number % 3, **FIELDS[name])
        prompt, output = histories_of(number)
        rows.append(row_of(how, prompt, output))
        expected.append(naive_sampler.choose(logits[number].tolist(), how, prompt, output))
    assert sample(logits, rows, draw_rows).token_ids == expected


def test_a_row_gives_the_same_token_in_any_batch(draw_rows: DrawRows) -> None:
    logits = logits_of(3, len(FIELDS))
    rows = [row_of(how_of(seed=5, **fields), *histories_of(1)) for fields in FIELDS.values()]
    together = sample(logits.clone(), rows, draw_rows).token_ids
    assert together == [sample(logits[n : n + 1].clone(), [row], draw_rows).token_ids[0] for n, row in enumerate(rows)]
    backwards = sample(logits.flip(0).clone(), rows[::-1], draw_rows).token_ids
    assert backwards[::-1] == together


def test_draws_of_other_seeds_choices_and_numbers_differ(draw_rows: DrawRows) -> None:
    logits = torch.zeros(1, 4096)
    draws = {
        sample(logits.clone(), [SampleRow(JobSampler(how_of(seed=seed, choice=choice)), number)], draw_rows).token_ids[
            0
        ]
        for seed in (0, 1, -1, 2**63 - 1)
        for choice in (0, 1)
        for number in (0, 1, 2)
    }
    assert len(draws) >= 22


def test_tokens_are_drawn_in_proportion_to_their_probabilities(draw_rows: DrawRows) -> None:
    draws, vocabulary = 40_000, 150
    logits = logits_of(8, 1, vocabulary, spread=1.0)
    sampler = JobSampler(how_of(temperature=0.8))
    tokens = sample(
        logits.expand(draws, -1).clone(), [SampleRow(sampler, number) for number in range(draws)], draw_rows
    ).token_ids
    counts = torch.bincount(torch.tensor(tokens), minlength=vocabulary).double()
    probabilities = (logits[0].double() / 0.8).softmax(-1)
    chi_square = float(((counts - draws * probabilities) ** 2 / (draws * probabilities)).sum())
    # Mean of its distribution: vocabulary - 1; standard deviation: sqrt(2 (vocabulary - 1)).
    assert abs(chi_square - (vocabulary - 1)) < 5 * math.sqrt(2 * (vocabulary - 1))


@pytest.mark.parametrize("fields", [{"top_p": 0.999}, {"top_k": 700}, {"top_p": 0.7, "top_k": 900}, {"top_p": 0.3}])
def test_cuts_are_exact_where_they_reach_beyond_the_candidates(fields: dict[str, object], draw_rows: DrawRows) -> None:
    """Flat enough for top-p to keep more tokens than are looked at first."""
    vocabulary = 3 * CANDIDATES
    logits = logits_of(6, 4, vocabulary, spread=0.5)
    hows = [how_of(seed=number, **(fields if number else {})) for number in range(4)]
    expected = [naive_sampler.choose(logits[n].tolist(), how, [], []) for n, how in enumerate(hows)]
    assert sample(logits, [row_of(how, [], []) for how in hows], draw_rows).token_ids == expected


def test_equal_logits_go_to_the_lower_id(draw_rows: DrawRows) -> None:
    logits = torch.zeros(2, VOCABULARY)
    logits[:, [7, 40, 90]] = 5.0
    rows = [row_of(how_of(temperature=0.0), [], []), row_of(how_of(top_k=1), [], [])]
    assert sample(logits, rows, draw_rows).token_ids == [7, 7]
    two = [row_of(how_of(top_k=2, seed=seed), [], []) for seed in range(50)]
    many = torch.zeros(50, VOCABULARY)
    many[:, [7, 40, 90]] = 5.0
    assert set(sample(many, two, draw_rows).token_ids) == {7, 40}


def test_rounding_of_the_logits_changes_next_to_no_draw(draw_rows: DrawRows) -> None:
    """As in a batch of another size. Borders of cumulated probabilities would move; a race is decided by its
    leaders.
    """
    logits = logits_of(9, 3000, 512, spread=1.0)
    rows = [SampleRow(JobSampler(how_of()), number) for number in range(3000)]
    noise = torch.randn(3000, 512, generator=torch.Generator().manual_seed(1)) * 2e-6
    plain, rounded = (
        sample(logits.clone(), rows, draw_rows).token_ids,
        sample(logits + noise, rows, draw_rows).token_ids,
    )
    assert sum(a != b for a, b in zip(plain, rounded, strict=True)) <= 1


class TestLogprobs:
    def test_are_those_of_the_models_own_distribution(self) -> None:
        logits = logits_of(4, 3)
        how = how_of(temperature=0.3, top_k=2, logit_bias=((5, 50.0),), logprobs=4)
        samples = sample(logits.clone(), [row_of(how_of(), [], []), row_of(how, [], []), row_of(how_of(), [], [])])
        assert samples.logprobs.keys() == {1}
        report, own = samples.logprobs[1], logits[1].double().log_softmax(-1)
        assert report.token_id == samples.token_ids[1] == 5
        assert report.logprob == pytest.approx(float(own[5]), abs=1e-5)
        best = own.argsort(descending=True)[:4].tolist()
        assert [token for token, _ in report.top] == best
        assert [value for _, value in report.top] == pytest.approx(own[best].tolist(), abs=1e-5)

    def test_may_be_of_the_chosen_token_alone(self) -> None:
        samples = sample(logits_of(4, 2), [row_of(how_of(logprobs=0), [], []), row_of(how_of(logprobs=3), [], [])])
        assert samples.logprobs[0].top == ()
        assert len(samples.logprobs[1].top) == 3

    def test_list_equals_by_the_lower_id(self) -> None:
        logits = torch.zeros(1, VOCABULARY)
        logits[0, [90, 40, 7]] = 1.0
        how = how_of(temperature=0.0, logprobs=2)
        assert [token for token, _ in sample(logits, [row_of(how, [], [])]).logprobs[0].top] == [7, 40]


def test_counts_grow_with_the_job() -> None:
    counts = TokenCounts()
    counts.add_prompt(range(100))
    for token_id in [7, 300, 7, *range(301, 400)]:
        counts.add_output(token_id)
    assert counts.token_ids.tolist() == [*range(100), *range(300, 400)]
    made = dict(zip(counts.token_ids.tolist(), counts.output_counts.tolist(), strict=True))
    assert (made[7], made[300], made[399], made[8]) == (2, 1, 1, 0)
