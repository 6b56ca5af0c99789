"""What was learnt, in sentences whose numbers come from the results, and whose words are chosen by them: another result
gives another sentence. A lesson whose figure was not run is left out, and so is one that the numbers do not bear out:
what is gained stands in one chapter, what is lost in another.
"""

from collections.abc import Callable
from dataclasses import dataclass

from evaluation import lessons_gains as gains
from evaluation import lessons_weaknesses as weaknesses
from evaluation.beyond import CHARGE, LEVELS, STARVATION
from evaluation.evaluation import Evaluation
from evaluation.paper_n26 import BATCHES, CHUNKED, LLAMA, MEAN_LATENCY, PEAK, RATIO, SWAPS
from evaluation.paper_v1 import FIRST_ITERATION, KV_POLICIES, OVERALL
from evaluation.values import Figure


@dataclass(frozen=True, slots=True)
class Lesson:
    """A sentence or two about some figures; `tell` may count on all of them, and gives None for nothing to tell."""

    key: str
    figures: tuple[Figure, ...]
    tell: Callable[[Evaluation], str | None]


GAIN = (
    Lesson("rate", (OVERALL,), gains.sweep("the load", "rate, mean")),
    Lesson("burstiness", (OVERALL,), gains.sweep("the CV of arrivals", "burstiness, mean")),
    Lesson("skew", (OVERALL,), gains.sweep("theta", "skew, mean")),
    Lesson("where-felt", (SWAPS,), gains.where_it_is_felt),
    Lesson("oracle", (SWAPS,), gains.oracle),
    Lesson("skip-join", (RATIO,), gains.skipping_over_ratios(gained=True)),
    Lesson("kv", (KV_POLICIES,), gains.kv_policies(KV_POLICIES, "rate", gained=True)),
    Lesson("kv-sharegpt", (SWAPS,), gains.kv_policies(SWAPS, "mean JCT", gained=True)),
)
VANISHES = (
    Lesson("low-load", (SWAPS,), gains.low_load),
    Lesson("mean-jct", (SWAPS,), gains.mean_jct_loss(SWAPS, "OPT-13B")),
    Lesson("mean-jct-llama", (LLAMA,), gains.mean_jct_loss(LLAMA, "Llama-3-8B")),
    Lesson("tail", (OVERALL,), gains.tail),
    Lesson("no-tail", (PEAK,), gains.short_outputs),
    Lesson("naive", (FIRST_ITERATION,), gains.skipping_over_loads),
    Lesson("naive-ratios", (RATIO,), gains.skipping_over_ratios(gained=False)),
    Lesson("kv", (KV_POLICIES,), gains.kv_policies(KV_POLICIES, "rate", gained=False)),
    Lesson("kv-sharegpt", (SWAPS,), gains.kv_policies(SWAPS, "mean JCT", gained=False)),
    Lesson("short-traces", (MEAN_LATENCY,), gains.short_traces),
)
WEAKNESSES = (
    Lesson("batches", (BATCHES,), weaknesses.batches),
    Lesson("limit", (STARVATION,), weaknesses.limit),
    Lesson("levels", (LEVELS,), weaknesses.levels),
    Lesson("charge", (CHARGE,), weaknesses.charge),
    Lesson("chunks", (CHUNKED,), weaknesses.chunks),
    Lesson("stalls", (SWAPS,), weaknesses.stalls),
    Lesson("gqa", (LLAMA, SWAPS), weaknesses.gqa),
)


def told(evaluation: Evaluation, lessons: tuple[Lesson, ...]) -> list[str]:
    """The sentences that this evaluation can tell."""
    can = [lesson for lesson in lessons if all(evaluation.has(figure.name) for figure in lesson.figures)]
    return [sentence for lesson in can if (sentence := lesson.tell(evaluation)) is not None]
