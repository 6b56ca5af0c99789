"""From logits to tokens, for all jobs of an iteration at once.

Theory of operation
-------------------
The order is that of `SamplingParams`: logit bias, penalties (repetition over prompt and output, then frequency and
presence over the output), the mask of stop tokens before min_tokens, the guide's, temperature, top-k, top-p, min-p, one
draw. Where a guide leaves nothing but stop tokens, these are not masked.
Temperature 0 (or so near to it that nothing else could win) takes the largest logit, the lowest id among equals. Log
probabilities are those of the model's own distribution, before all of this.

Work is done on whole rows and only on the rows that ask for it: a batch of greedy jobs costs one argmax. No step
visits the vocabulary in Python, and none sorts it: top-k and top-p both keep the n most probable tokens (equals by
the lower id), where n comes from the largest few hundred logits; only a distribution so flat that these do not reach
top-p is sorted whole.

Shape legend: S rows of the batch, R the rows of one step of the work, V vocabulary, M largest logits looked at.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from services.domain.generation import TokenLogprob
from services.domain.job_sampling import JobSampling
from services.worker.sampling.draws import keys_of, race, stream_of
from services.worker.sampling.guide_states import GuideState
from services.worker.sampling.token_counts import TokenCounts
from services.worker.sampling.token_masks import add_masks, bits_of, mask_words

GREEDY_BELOW = 1e-5
"""A lower temperature is greedy: a logit that is one bit smaller would lose the race by thousands of nats."""

CANDIDATES = 512
"""How many of the largest logits are looked at first for top-k and top-p."""

Indices = npt.NDArray[np.int64]


class JobSampler:
    """One job's parameters, prepared once."""

    __slots__ = (
        "bias_ids",
        "bias_values",
        "cuts",
        "draw",
        "greedy",
        "needs_counts",
        "sampling",
        "stop_ids",
        "stop_tokens",
        "stream",
        "takes_likeliest",
    )

    def __init__(self, sampling: JobSampling) -> None:
        self.sampling = sampling
        self.stream = stream_of(sampling.seed, sampling.choice)
        self.greedy = sampling.temperature < GREEDY_BELOW
        self.cuts = not self.greedy and (sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0)
        self.needs_counts = (
            sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0 or sampling.repetition_penalty != 1.0
        )
        self.stop_tokens = frozenset(sampling.stop_token_ids)
        self.stop_ids: Indices = np.array(sorted(self.stop_tokens), dtype=np.int64)
        self.bias_ids: Indices = np.array([token for token, _ in sampling.logit_bias], dtype=np.int64)
        self.bias_values = np.array([value for _, value in sampling.logit_bias], dtype=np.float32)
        self.takes_likeliest = self.greedy and not self.needs_counts and not sampling.logit_bias
        """Whether the largest logit wins as it is, but for stop tokens before min_tokens and for guides."""
        temperature = 0.0 if self.greedy else sampling.temperature
        least_nats = math.log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf
        self.draw = (temperature, least_nats, sampling.top_k, sampling.top_p, self.stream)
        """Of a draw of the compiled decoder (choices.py), all but the number."""


class SampleRow(NamedTuple):
    """How a row of logits is sampled. `number`: of the output token; `counts`: there if the sampler needs it; `guide`:
    there if the job has one.
    """

    sampler: JobSampler
    number: int
    counts: TokenCounts | None = None
    guide: GuideState | None = None

    @property
    def is_too_short(self) -> bool:
        """Whether a stop token would come before min_tokens."""
        return self.number < self.sampler.sampling.min_tokens


DrawRows = Callable[[Tensor, Sequence[SampleRow]], Tensor]


class Samples(NamedTuple):
    """A token for every row, and log probabilities by the number of each row that asked for them."""

    token_ids: list[int]
    logprobs: dict[int, TokenLogprob]


def draw(logits_RV: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """Temperature, cuts and the draw, of rows that are not greedy: int64 [R]. Logits are taken relative to the row's
    largest, which the most probable token brings to 0.
    """
    device = logits_RV.device
    temperatures = torch.tensor([row.sampler.sampling.temperature for row in rows], device=device)
    nats_RV = (logits_RV - logits_RV.amax(-1, keepdim=True)) / temperatures[:, None]
    cut = [number for number, row in enumerate(rows) if row.sampler.cuts]
    if len(cut) == len(rows):
        nats_RV = _cut(nats_RV, [row.sampler.sampling for row in rows])
    elif cut:
        nats_RV[cut] = _cut(nats_RV[cut], [rows[number].sampler.sampling for number in cut])
    streams_and_numbers = torch.tensor(
        [[row.sampler.stream for row in rows], [row.number for row in rows]], device=device
    )
    return race(nats_RV.exp_(), keys_of(streams_and_numbers[0], streams_and_numbers[1]))


def sample(logits_SV: Tensor, rows: Sequence[SampleRow], draw_rows: DrawRows = draw) -> Samples:
    """One token for each row. The logits may be overwritten. `draw_rows` does what `draw` does."""
    assert logits_SV.shape[0] == len(rows), "one row of logits for every row to sample"
    logits_SV = logits_SV.float()
    reported = [number for number, row in enumerate(rows) if row.sampler.sampling.logprobs is not None]
    own_RV = logits_SV[reported].clone() if reported else None

    _adjust(logits_SV, rows)
    drawn = [number for number, row in enumerate(rows) if not row.sampler.greedy]
    if not drawn:
        tokens_S = _most_likely(logits_SV)
    elif len(drawn) == len(rows):
        tokens_S = draw_rows(logits_SV, rows)
    else:
        tokens_S = _most_likely(logits_SV)
        tokens_S[drawn] = draw_rows(logits_SV[drawn], [rows[number] for number in drawn])
    token_ids: list[int] = tokens_S.tolist()
    if own_RV is None:
        return Samples(token_ids, {})
    chosen = [token_ids[number] for number in reported]
    top_counts = [rows[number].sampler.sampling.logprobs or 0 for number in reported]
    return Samples(token_ids, dict(zip(reported, _report(own_RV, chosen, top_counts), strict=True)))


def _most_likely(logits_SV: Tensor) -> Tensor:
    """The token of each row with the largest logit, the first one of several. On a CPU numpy's argmax takes an eighth
    of the time of torch's, which is a fiftieth of a small model's iteration.
    """
    if logits_SV.device.type == "cpu":
        return torch.from_numpy(logits_SV.numpy().argmax(-1))
    return logits_SV.argmax(-1)


def _adjust(logits_SV: Tensor, rows: Sequence[SampleRow]) -> None:
    """Bias, penalties, the mask of stop tokens and those of guides, in place."""
    vocabulary_size, flat = logits_SV.shape[1], logits_SV.view(-1)
    biased = [number for number, row in enumerate(rows) if len(row.sampler.bias_ids)]
    if biased:
        places = np.concatenate([rows[number].sampler.bias_ids + number * vocabulary_size for number in biased])
        values = np.concatenate([rows[number].sampler.bias_values for number in biased])
        flat.index_add_(0, _on(flat, places), torch.from_numpy(values).to(flat.device))
    penalised = [
        (number, row.sampler.sampling, row.counts) for number, row in enumerate(rows) if row.counts is not None
    ]
    if penalised:
        _penalise(flat, vocabulary_size, penalised)
    masked = [
        row.sampler.stop_ids + number * vocabulary_size
        for number, row in enumerate(rows)
        if row.is_too_short and row.guide is None
    ]
    if masked:
        flat.index_fill_(0, _on(flat, np.concatenate(masked)), -math.inf)
    guided = [number for number, row in enumerate(rows) if row.guide is not None]
    if guided:
        _mask_by_guides(logits_SV, guided, [rows[number] for number in guided])


def _mask_by_guides(logits_SV: Tensor, numbers: list[int], rows: Sequence[SampleRow]) -> None:
    """Masks what the rows' guides rule out, and stop tokens before min_tokens where something else is left."""
    vocabulary_size = logits_SV.shape[1]
    masks = np.empty((len(rows), mask_words(vocabulary_size)), dtype=np.int32)
    for mask, row in zip(masks, rows, strict=True):
        assert row.guide is not None
        row.guide.fill(mask, bits_of(row.sampler.stop_ids, vocabulary_size) if row.is_too_short else None)
    add_masks(logits_SV, numbers, masks)


def _on(like: Tensor, indices: Indices) -> Tensor:
    return torch.from_numpy(indices).to(like.device)


def _penalise(flat: Tensor, vocabulary_size: int, rows: Sequence[tuple[int, JobSampling, TokenCounts]]) -> None:
    """Changes the logits of the tokens that the rows' jobs have seen, in place."""
    places = np.concatenate([counts.token_ids + number * vocabulary_size for number, _, counts in rows])
    made = np.concatenate([counts.output_counts for _, _, counts in rows])
    factors = np.array(
        [(s.repetition_penalty, s.frequency_penalty, s.presence_penalty) for _, s, _ in rows], np.float32
    )
    per_token = np.repeat(factors, [len(counts.token_ids) for _, _, counts in rows], axis=0)
    numbers = torch.from_numpy(np.concatenate([per_token, made[:, None]], axis=1)).to(flat.device)
    repetition, frequency, presence, times = numbers.T
    places_N = _on(flat, places)
    values = flat[places_N]
    values = torch.where(values > 0, values / repetition, values * repetition)
    flat[places_N] = values - frequency * times - presence * (times > 0)


def _cut(nats_RV: Tensor, samplings: Sequence[JobSampling]) -> Tensor:
    """top-k, top-p and min-p: logits that are cut become -inf."""
    limited = [number for number, s in enumerate(samplings) if s.top_k > 0 or s.top_p < 1.0]
    if limited:
        nats_RV[limited] = _most_probable(nats_RV[limited], [samplings[number] for number in limited])
    if any(s.min_p > 0.0 for s in samplings):
        floors = [math.log(s.min_p) if s.min_p > 0.0 else -math.inf for s in samplings]
        nats_RV = nats_RV.masked_fill(nats_RV < torch.tensor(floors, device=nats_RV.device)[:, None], -math.inf)
    return nats_RV


def _most_probable(nats_RV: Tensor, samplings: Sequence[JobSampling]) -> Tensor:
    """Keeps what top-k and top-p leave."""
    vocabulary_size, device = nats_RV.shape[1], nats_RV.device
    top_k = [min(s.top_k, vocabulary_size) if s.top_k > 0 else vocabulary_size for s in samplings]
    top_k_R = torch.tensor(top_k, device=device)
    top_p_R = torch.tensor([s.top_p for s in samplings], dtype=torch.float64, device=device)
    first = CANDIDATES if any(s.top_p < 1.0 for s in samplings) else 1
    look = min(vocabulary_size, max(first, *(k for k in (*top_k, 0) if k < vocabulary_size)))
    sorted_RM = nats_RV.topk(look, dim=-1).values
    kept_R = _kept(nats_RV, sorted_RM, top_k_R, top_p_R)
    if look < vocabulary_size and bool((kept_R > look).any()):
        sorted_RM = nats_RV.sort(dim=-1, descending=True).values
        kept_R = _kept(nats_RV, sorted_RM, top_k_R, top_p_R)
    return nats_RV.masked_fill(~_best(nats_RV, sorted_RM, kept_R), -math.inf)


def _kept(nats_RV: Tensor, sorted_RM: Tensor, top_k_R: Tensor, top_p_R: Tensor) -> Tensor:
    """How many of the most probable tokens top-k and top-p leave; more than M if M are not enough to decide."""
    look, vocabulary_size = sorted_RM.shape[1], nats_RV.shape[1]
    weights_RM = sorted_RM.double().exp()
    places_M = torch.arange(look, device=nats_RV.device)
    weights_RM.masked_fill_(places_M >= top_k_R[:, None], 0.0)
    # top-p is a share of what top-k left: of all tokens where top-k is off.
    cumulated_RM = weights_RM.cumsum(-1)
    everything_R = nats_RV.exp().sum(-1, dtype=torch.float64) if look < vocabulary_size else cumulated_RM[:, -1]
    total_R = torch.where(top_k_R <= look, cumulated_RM[:, -1], everything_R)
    short_RM = cumulated_RM - weights_RM < (top_p_R * total_R)[:, None]
    kept_R = torch.minimum(short_RM.sum(-1).clamp(min=1), top_k_R)
    unsure_R = (top_p_R >= 1.0) | (cumulated_RM[:, -1] < top_p_R * total_R)
    return torch.where((top_k_R > look) & unsure_R, vocabulary_size, torch.where(top_p_R >= 1.0, top_k_R, kept_R))


def _best(values_RV: Tensor, sorted_RM: Tensor, counts_R: Tensor) -> Tensor:
    """A mask of the `counts_R` largest values of each row, equals by the lower id. `sorted_RM`: at least that many,
    descending.
    """
    borders = sorted_RM.gather(1, (counts_R - 1).clamp(min=0)[:, None])
    least_RV = values_RV >= borders
    if bool((least_RV.sum(-1) == counts_R).all()):
        return least_RV  # no row has equals of which some must go
    above_RV, equal_RV = values_RV > borders, values_RV == borders
    room_R = counts_R - above_RV.sum(-1)
    return above_RV | (equal_RV & (equal_RV.cumsum(-1) <= room_R[:, None]))


def most_probable(logits_RV: Tensor, count: int) -> Tensor:
    """The ids of the `count` largest logits of each row, best first, equals by the lower id: [R, count]."""
    counts_R = torch.full((logits_RV.shape[0],), count, device=logits_RV.device)
    best_RV = _best(logits_RV, logits_RV.topk(count, dim=-1).values, counts_R)
    ids_RM = best_RV.nonzero()[:, 1].view(-1, count)
    order_RM = logits_RV.gather(1, ids_RM).argsort(dim=-1, descending=True, stable=True)
    return ids_RM.gather(1, order_RM)


def _report(logits_RV: Tensor, chosen: list[int], top_counts: list[int]) -> list[TokenLogprob]:
    """Log probabilities of the chosen tokens and of the best ones; `logits_RV` are those of the model, unadjusted."""
    logprobs_RV = logits_RV.log_softmax(-1)
    chosen_R = torch.tensor(chosen, device=logits_RV.device)
    of_chosen = logprobs_RV.gather(1, chosen_R[:, None])[:, 0].tolist()
    top: list[list[tuple[int, float]]] = [[] for _ in chosen]
    most = min(max(top_counts), logits_RV.shape[1])
    if most > 0:
        counts_R = torch.tensor(top_counts, device=logits_RV.device).clamp(max=most)
        best_RV = _best(logits_RV, logits_RV.topk(most, dim=-1).values, counts_R)
        numbers, token_ids = best_RV.nonzero(as_tuple=True)
        values = logprobs_RV[numbers, token_ids].tolist()
        for number, token_id, value in zip(numbers.tolist(), token_ids.tolist(), values, strict=True):
            top[number].append((token_id, value))
    best_first = [tuple(sorted(entries, key=lambda entry: (-entry[1], entry[0]))) for entries in top]
    return [TokenLogprob(*entry) for entry in zip(chosen, of_chosen, best_first, strict=True)]
