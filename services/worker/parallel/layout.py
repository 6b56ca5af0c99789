"""How a model is laid out over the ranks of a group, and which layouts a model can have. No torch here.

Theory of operation
-------------------
A group of pp stages with tp ranks each holds one copy of a model. A stage has neighbouring layers; the ranks of a stage
have a share of every one of its layers: of the query heads, of the kv heads, of the feed-forward's inner width. The
first stage also has the embeddings, the last one the head, cut by vocabulary over its ranks. Rank = stage * tp + place
in the stage; rank 0 leads, the first rank of the last stage samples.

Heads are not cut: each rank has equally many query heads, and all the kv heads that these read, which no other rank has
unless there are fewer kv heads than ranks. Then several ranks have a copy of the same one.

Widths without such a structure (feed-forward, vocabulary) are cut as evenly as whole numbers allow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TypeVar

from services.domain.errors import InvalidFieldError
from services.worker.model.model_config import ModelConfig
from services.worker.model.parameter_counts import parameter_counts

ConfigT = TypeVar("ConfigT", bound=ModelConfig)

MOST_RANKS = 1024
"""The most ranks of a group."""


@dataclass(frozen=True, slots=True)
class Layout:
    """tp ranks a stage, pp stages."""

    tp: int = 1
    pp: int = 1

    @property
    def rank_count(self) -> int:
        return self.tp * self.pp

    def __str__(self) -> str:
        return f"--tp {self.tp} --pp {self.pp}"


@dataclass(frozen=True, slots=True)
class GroupRank:
    """One rank of a group, and its place in the layout."""

    number: int
    layout: Layout

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.layout.rank_count:
            raise InvalidFieldError(
                "--rank", f"must be from 0 to {self.layout.rank_count - 1} with {self.layout}, not {self.number}"
            )

    @property
    def stage(self) -> int:
        return self.number // self.layout.tp

    @property
    def place(self) -> int:
        """Place among the ranks of its stage."""
        return self.number % self.layout.tp

    @property
    def in_first_stage(self) -> bool:
        return self.stage == 0

    @property
    def in_last_stage(self) -> bool:
        return self.stage == self.layout.pp - 1

    @property
    def leads(self) -> bool:
        return self.number == 0

    @property
    def samples(self) -> bool:
        """Whether the logits come together here."""
        return self.number == sampling_rank(self.layout)

    @property
    def before(self) -> int:
        """The rank of the stage before that sends its hidden states here."""
        return self.number - self.layout.tp

    @property
    def after(self) -> int:
        """The rank of the next stage that gets this one's hidden states."""
        return self.number + self.layout.tp


def sampling_rank(layout: Layout) -> int:
    """The first rank of the last stage."""
    return (layout.pp - 1) * layout.tp


# --- what a model can have -------------------------------------------------------------------------------------------


def check_layout(config: ModelConfig, layout: Layout) -> None:
    """Raises InvalidFieldError, naming the reason and the nearest layout that can, if the model can't be laid out
    so.
    """
    reason = _why_not_tp(config, layout.tp)
    field = "--tp"
    if reason is None and layout.pp > config.layer_count:
        field, reason = "--pp", f"{layout.pp} stages need a layer each; the model has {config.layer_count}"
    if reason is None and layout.rank_count > MOST_RANKS:
        reason = f"{layout.rank_count} ranks are more than {MOST_RANKS}"
    if reason is not None:
        raise InvalidFieldError(field, f"{reason}; the nearest layout that can be is {nearest_layout(config, layout)}")


def nearest_layout(config: ModelConfig, layout: Layout) -> Layout:
    """The layout that the model can have with the nearest tp, the smaller of two; then the nearest pp."""
    tp = min(possible_tp(config), key=lambda each: (abs(each - layout.tp), each))
    return Layout(tp, max(1, min(layout.pp, config.layer_count, MOST_RANKS // tp)))


def possible_tp(config: ModelConfig) -> list[int]:
    """The numbers of ranks a stage that the model can have, rising."""
    return [tp for tp in range(1, min(config.head_count, MOST_RANKS) + 1) if _why_not_tp(config, tp) is None]


def _why_not_tp(config: ModelConfig, tp: int) -> str | None:
    heads, kv_heads = config.head_count, config.kv_head_count
    if heads % tp:
        return f"{heads} attention heads can't be shared out evenly among {tp} ranks"
    if kv_heads % tp and tp % kv_heads:
        return f"{kv_heads} kv heads can be neither shared out evenly among {tp} ranks nor copied to equally many"
    for what, size in (("inner width", config.intermediate_size), ("vocabulary", config.vocabulary_size)):
        if size < tp:
            return f"the {what} of {size} can't be cut into {tp}"
    return None


# --- shares ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank has of every layer, as ranges of the whole model's numbers: query heads, kv heads, inner width of the
    feed-forward, tokens of the vocabulary (of the head only).
    """

    heads: range
    kv_heads: range
    intermediate: range
    vocabulary: range


def share_at(config: ModelConfig, tp: int, place: int) -> Share:
    """The share of the rank at `place` of `tp`. The config is that of the whole model."""
    kv_head_count = max(1, config.kv_head_count // tp)
    first_kv_head = place * config.kv_head_count // tp
    return Share(
        heads=even_cut(config.head_count, tp, place),
        kv_heads=range(first_kv_head, first_kv_head + kv_head_count),
        intermediate=even_cut(config.intermediate_size, tp, place),
        vocabulary=even_cut(config.vocabulary_size, tp, place),
    )


def even_cut(size: int, parts: int, number: int) -> range:
    """Part `number` of 0 to size - 1, the longer parts first."""
    least, longer = divmod(size, parts)
    first = number * least + min(number, longer)
    return range(first, first + least + (number < longer))


def share_config(config: ConfigT, rank: GroupRank, stage_layers: Sequence[range]) -> ConfigT:
    """The config from which the rank's model is built; `stage_layers` says the layers of every stage."""
    assert len(stage_layers) == rank.layout.pp, "every stage has its layers"
    share, layers = share_at(config, rank.layout.tp, rank.place), stage_layers[rank.stage]
    cuts_head = rank.in_last_stage and rank.layout.tp > 1
    return replace(
        config,
        head_count=len(share.heads),
        kv_head_count=len(share.kv_heads),
        intermediate_size=len(share.intermediate),
        layer_count=len(layers),
        windows=config.windows[layers.start : layers.stop],
        first_layer=layers.start,
        last_stage=rank.in_last_stage,
        head_rows=share.vocabulary if cuts_head else None,
        adds_output_biases=rank.place == 0,
    )


# --- stages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Seconds of a typical iteration in one layer of each kind, in the embedding, and in the head with its sampling, of
    one rank.

    Layers of different sliding windows differ in their cost: `layers_s` names every layer.
    """

    layers_s: tuple[float, ...]
    embedding_s: float
    head_s: float


def estimated_stage_costs(config: ModelConfig) -> StageCosts:
    """Costs in proportion to the numbers that a decode reads, for want of measured ones. The config is that of the
    whole model.
    """
    counts = parameter_counts(config)
    return StageCosts((float(counts.layer),) * config.layer_count, 0.0, float(counts.head))


def split_layers(costs: StageCosts, pp: int) -> tuple[range, ...]:
    """Layers of each stage, at least one each, so that the slowest stage is as fast as can be; then so that the stages
    are as even as can be, then with the longer stages first.
    """
    layer_count = len(costs.layers_s)
    assert 1 <= pp <= layer_count, "check_layout refuses it"
    ends_s = [0.0]
    for layer_s in costs.layers_s:
        ends_s.append(ends_s[-1] + layer_s)

    def stage_s(first: int, stop: int) -> float:
        seconds = ends_s[stop] - ends_s[first]
        seconds += costs.embedding_s if first == 0 else 0.0
        return seconds + (costs.head_s if stop == layer_count else 0.0)

    @cache
    def best(first: int, stages: int) -> tuple[float, float, int]:
        """Of the layers from `first` on in so many stages: slowest, sum of squares, where the first stage stops."""
        if stages == 1:
            seconds = stage_s(first, layer_count)
            return seconds, seconds**2, layer_count
        found = None
        for stop in range(layer_count - stages + 1, first, -1):
            seconds = stage_s(first, stop)
            slowest, squares, _ = best(stop, stages - 1)
            candidate = (max(seconds, slowest), squares + seconds**2, stop)
            if found is None or candidate[:2] < found[:2]:
                found = candidate
        assert found is not None, "there are as many layers as stages"
        return found

    borders = [0]
    for stages in range(pp, 0, -1):
        borders.append(best(borders[-1], stages)[2])
    return tuple(range(first, stop) for first, stop in pairwise(borders))
