"""What was learnt, in sentences whose numbers come from the results, and whose words are chosen by them: another result
gives another sentence. A lesson whose figure was not run is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass

from services.cli.figures.beyond import CHARGE, LEVELS, STARVATION
from services.cli.figures.evaluation import Evaluation
from services.cli.figures.findings import times
from services.cli.figures.interpolation import Known
from services.cli.figures.paper_n26 import BATCHES, CHUNKED, LLAMA, MEAN_LATENCY, PEAK, SLO_S, SWAPS
from services.cli.figures.paper_v1 import FIRST_ITERATION, KV_POLICIES, OVERALL
from services.cli.figures.systems import (
    FASTSERVE,
    FASTSERVE_CHUNKED,
    FASTSERVE_MARGINAL,
    FCFS,
    FCFS_CHUNKED,
    LIMIT_OFF,
    LIMIT_PAPER,
    MLFQ,
    MLFQ_KILL,
    SRPT,
)
from services.cli.figures.values import Figure, Panel

SAME = 1.05
"""Numbers whose ratio is nearer to 1 than this are called the same."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A sentence or two about some figures; `tell` may count on all of them."""

    key: str
    figures: tuple[Figure, ...]
    tell: Callable[[Evaluation], str]


def _x(value: float) -> str:
    return times(Known(value))


def _ends(evaluation: Evaluation, panel: Panel, number: str | None = None) -> tuple[tuple[float, float], ...]:
    """(x, gain of FastServe over FCFS) at the two ends of a panel's axis."""
    gains = evaluation.gains(panel, FCFS, FASTSERVE, number)
    return ((gains[0].x, gains[0].times), (gains[-1].x, gains[-1].times))


def _trend(first: float, last: float) -> str:
    if last > first * SAME:
        return "grows"
    return "shrinks" if first > last * SAME else "hardly changes"


def against(ratio: float, other: str) -> str:
    """A time beside another that is `ratio` times as long, in words with the number."""
    if ratio >= SAME:
        return f"{_x(ratio)} shorter than {other}"
    return f"{_x(1 / ratio)} longer than {other}" if ratio <= 1 / SAME else f"about as long as {other}"


def _sweep(axis: str, title: str) -> Callable[[Evaluation], str]:
    def tell(evaluation: Evaluation) -> str:
        (low_x, low), (high_x, high) = _ends(evaluation, OVERALL.panel(title))
        return (
            f"Over FCFS the gain on mean JCT {_trend(low, high)} with {axis}: {_x(low)} at {low_x:g}, {_x(high)} at "
            f"{high_x:g} (GPT-175B)."
        )

    return tell


def _where_it_is_felt(evaluation: Evaluation) -> str:
    panel = SWAPS.panel("mean JCT")
    numbers = ("jct_s.mean", "per_output_token_s.mean", "ttft_s.mean")
    found = [evaluation.gains(panel, FCFS, FASTSERVE, name)[-1] for name in numbers]
    jct, per_token, ttft = (gain.times for gain in found)
    order = "short jobs and first tokens gain most" if min(per_token, ttft) > jct * SAME else "no measure stands out"
    return (
        f"At load {found[0].x:g} on OPT-13B with ShareGPT lengths mean JCT is {against(jct, 'under FCFS')}, latency "
        f"per output token {against(per_token, 'under FCFS')}, time to first token "
        f"{against(ttft, 'under FCFS')}: {order}."
    )


def _oracle(evaluation: Evaluation) -> str:
    panel = SWAPS.panel("mean JCT")
    gap = evaluation.gains(panel, FASTSERVE, SRPT)[-1]
    fcfs, fastserve, srpt = (evaluation.points(panel, system)[-1].mean for system in (FCFS, FASTSERVE, SRPT))
    share = ""
    if fcfs > srpt * SAME and fastserve <= fcfs:
        share = (
            f" FastServe, which does not know lengths, gets {(fcfs - fastserve) / (fcfs - srpt):.0%} of what it saves."
        )
    return (
        f"At load {gap.x:g} the mean JCT of SRPT, which knows lengths, is {against(gap.times, 'that of FastServe')} "
        f"(OPT-13B, ShareGPT lengths).{share}"
    )


def _low_load(evaluation: Evaluation) -> str:
    gain = evaluation.gains(SWAPS.panel("mean JCT"), FCFS, FASTSERVE)[0]
    reason = ": without queues there is nothing to reorder" if 1 / SAME < gain.times < SAME else ""
    return (
        f"At load {gain.x:g} mean JCT is {against(gain.times, 'under FCFS')} ({_x(gain.times)}; OPT-13B, ShareGPT "
        f"lengths){reason}."
    )


def _alike(evaluation: Evaluation) -> str:
    gains = evaluation.gains(PEAK.panel("mean JCT"), FCFS, FASTSERVE)
    least = min(gains, key=lambda gain: gain.times)
    lead = "Jobs that are all alike lose" if least.times < 1 / SAME else "Jobs that are all alike do not lose"
    return (
        f"{lead}: with outputs of at most {PEAK.panels[0].traffic.lengths.max_output_tokens} tokens mean JCT is "
        f"{against(least.times, 'under FCFS')} at {least.x:g} jobs/s, where it does worst (OPT-2.7B)."
    )


def _naive(evaluation: Evaluation) -> str:
    panel = FIRST_ITERATION.panel("rate")
    naive, cut = (
        max(evaluation.gains(panel, system, FASTSERVE), key=lambda gain: gain.times) for system in (MLFQ, MLFQ_KILL)
    )
    verdict = "hardly matters" if naive.times < SAME else "matters"
    return (
        f"Skipping levels {verdict} where a started prefill is left to finish: over all loads naive MLFQ's mean JCT is "
        f"at most {_x(naive.times)} FastServe's; where prefills are cut, {_x(cut.times)} (OPT-13B, Zipf lengths)."
    )


def _tail(evaluation: Evaluation) -> str:
    gains = evaluation.gains(OVERALL.panel("rate, P95"), FCFS, FASTSERVE)
    least = min(gains, key=lambda gain: gain.times)
    lead = "Long jobs pay" if least.times < 1 / SAME else "The tail does not pay for the mean"
    return (
        f"{lead}: where it does worst, at load {least.x:g}, P95 of JCT is {against(least.times, 'under FCFS')} "
        "(GPT-175B, Zipf lengths)."
    )


def _kv(evaluation: Evaluation) -> str:
    panel = KV_POLICIES.panel("rate")
    x = evaluation.scale.of(panel.points)[-1]
    means = {
        system.label: evaluation.point(panel, system, x, panel.metric.name).mean
        for system in panel.systems
        if system != SRPT
    }
    best, worst = min(means, key=lambda label: means[label]), max(means, key=lambda label: means[label])
    return (
        f"With little memory, at load {x:g}, {best} has the shortest mean JCT ({means[best]:.3g} s) and {worst} the "
        f"longest ({means[worst]:.3g} s) of the systems that need no oracle."
    )


def _batches(evaluation: Evaluation) -> str:
    found = {
        title: max(evaluation.gains(BATCHES.panel(title), FCFS, FASTSERVE), key=lambda gain: gain.times)
        for title in ("batch 16", "batch 64", "batch 128")
    }
    shows = "shows" if found["batch 128"].times * SAME < found["batch 16"].times else "does not show"
    parts = ", ".join(f"{_x(gain.times)} at {title}" for title, gain in found.items())
    return (
        f"*The gain shrinks with the batch* {shows}: the greatest gain on mean latency per output token over the loads "
        f"is {parts} (Llama-3-8B, ShareGPT lengths)."
    )


def _limit(evaluation: Evaluation) -> str:
    panel = STARVATION.panel("little KV, mean")
    x = evaluation.scale.of(panel.points)[-1]
    fcfs, short, default, never = (
        evaluation.point(panel, system, x, panel.metric.name).mean
        for system in (FCFS, LIMIT_PAPER, FASTSERVE, LIMIT_OFF)
    )
    shows = "shows" if short > default * SAME else "does not show"
    return (
        f"*Promotion after 300 ms collapses the order* {shows}: with little KV at load {x:g} the mean JCT it gives is "
        f"{against(default / short, 'with the default limit')} and {against(fcfs / short, 'under FCFS')}; without any "
        f"promotion it is {against(default / never, 'with the default limit')}."
    )


def _levels(evaluation: Evaluation) -> str:
    panels = tuple(LEVELS.panel(f"{title}, per output token") for title in ("levels up to a prefill", "more levels"))
    x = evaluation.scale.of(panels[0].points)[-1]
    few, many, few_never, many_never = (
        evaluation.point(panel, system, x, panel.metric.name).mean
        for system in (FASTSERVE, LIMIT_OFF)
        for panel in panels
    )
    shows = "reorders too little" if max(few / many, few_never / many_never) > SAME else "suffices"
    return (
        f"*A last level that just holds the longest prefill* {shows}: with more levels mean latency per output token "
        f"at load {x:g} is {against(few / many, 'with fewer')} under the default limit, and "
        f"{against(few_never / many_never, 'with fewer')} without promotion (OPT-13B, ShareGPT lengths)."
    )


def _charge(evaluation: Evaluation) -> str:
    gains = evaluation.gains(CHARGE.panel("mean JCT"), FASTSERVE, FASTSERVE_MARGINAL)
    least, most = (pick(gains, key=lambda gain: gain.times) for pick in (min, max))
    shows = "shows" if most.times > SAME and least.times > 1 / SAME else "does not show"
    return (
        f"*Every job is charged the whole iteration* {shows}: with marginal charge mean JCT is at its worst "
        f"{against(least.times, 'with wall time')} (load {least.x:g}), at its best "
        f"{against(most.times, 'with wall time')} (load {most.x:g}; OPT-13B, ShareGPT lengths)."
    )


def _chunks(evaluation: Evaluation) -> str:
    panel = CHUNKED.panel("mean JCT")
    fastserve = evaluation.gains(panel, FASTSERVE, FASTSERVE_CHUNKED, "gap_s.p99")[-1]
    fcfs = evaluation.gains(panel, FCFS, FCFS_CHUNKED, "gap_s.p99")[-1]
    jct = evaluation.gains(panel, FASTSERVE, FASTSERVE_CHUNKED)[-1]
    shows = "shows" if max(fastserve.times, fcfs.times) > SAME else "does not show"
    return (
        f"*A long prompt stalls a whole iteration* {shows}: with chunks of {FCFS_CHUNKED.prefill_chunk_tokens} tokens "
        f"the P99 gap between tokens is {against(fcfs.times, 'without')} under FCFS and "
        f"{against(fastserve.times, 'without')} under FastServe, whose mean JCT is "
        f"{against(jct.times, 'without')} (OPT-13B, load {jct.x:g})."
    )


def _stalls(evaluation: Evaluation) -> str:
    panel = SWAPS.panel("mean JCT")
    x = evaluation.scale.of(panel.points)[-1]
    worst = {
        system.label: evaluation.point(panel, system, x, "worst_gap_s.mean").mean for system in (FCFS, FASTSERVE, SRPT)
    }
    shows = "shows" if worst[FASTSERVE.label] > worst[FCFS.label] * SAME else "does not show"
    parts = ", ".join(f"{value:.3g} s under {label}" for label, value in worst.items())
    return (
        f"*Latency per output token hides stalls inside streams* {shows}: a job's worst gap between two tokens is on "
        f"average {parts} (OPT-13B, ShareGPT lengths, load {x:g})."
    )


def _gqa(evaluation: Evaluation) -> str:
    panels = (LLAMA.panel("mean JCT"), SWAPS.panel("mean JCT"))
    llama, opt = (evaluation.points(panel, FASTSERVE, "offloaded_gb")[-1].mean for panel in panels)
    shares = [max(point.mean for point in evaluation.points(panel, FASTSERVE, "swap_share")) for panel in panels]
    words = "moves less" if llama < opt else "does not move less"
    return (
        f"*With grouped-query attention KV is small*: at the greatest load Llama-3-8B {words}, {llama:,.1f} GB "
        f"offloaded against OPT-13B's {opt:,.1f} GB; nothing but a copy ran in at most {shares[0]:.2%} and "
        f"{shares[1]:.2%} of the time."
    )


def _short_traces(evaluation: Evaluation) -> str:
    panel = MEAN_LATENCY.panel("OPT-13B, ShareGPT")
    capacity = evaluation.at(panel, FCFS, evaluation.scale.of(panel.points)[0])[0].capacity_per_s
    rates = {system.label: evaluation.sustained(panel, system, SLO_S) for system in (FCFS, FASTSERVE)}
    parts = " and ".join(f"{rate.bound}{rate.value / capacity:.2f} under {label}" for label, rate in rates.items())
    warning = ""
    if rates[FASTSERVE.label].value > capacity:
        warning = (
            " Above load 1 some jobs wait ever longer, however low the mean: this holds for a trace of this length."
        )
    return (
        f"The mean latency per output token stays within {SLO_S:g} s up to a load of {parts} (OPT-13B, ShareGPT "
        f"lengths).{warning}"
    )


GAIN = (
    Lesson("rate", (OVERALL,), _sweep("the load", "rate, mean")),
    Lesson("burstiness", (OVERALL,), _sweep("the CV of arrivals", "burstiness, mean")),
    Lesson("skew", (OVERALL,), _sweep("theta", "skew, mean")),
    Lesson("where-felt", (SWAPS,), _where_it_is_felt),
    Lesson("oracle", (SWAPS,), _oracle),
    Lesson("kv", (KV_POLICIES,), _kv),
)
VANISHES = (
    Lesson("low-load", (SWAPS,), _low_load),
    Lesson("tail", (OVERALL,), _tail),
    Lesson("alike", (PEAK,), _alike),
    Lesson("naive", (FIRST_ITERATION,), _naive),
    Lesson("short-traces", (MEAN_LATENCY,), _short_traces),
)
WEAKNESSES = (
    Lesson("batches", (BATCHES,), _batches),
    Lesson("limit", (STARVATION,), _limit),
    Lesson("levels", (LEVELS,), _levels),
    Lesson("charge", (CHARGE,), _charge),
    Lesson("chunks", (CHUNKED,), _chunks),
    Lesson("stalls", (SWAPS,), _stalls),
    Lesson("gqa", (LLAMA, SWAPS), _gqa),
)


def told(evaluation: Evaluation, lessons: tuple[Lesson, ...]) -> list[str]:
    """The sentences that this evaluation can tell."""
    return [
        lesson.tell(evaluation) for lesson in lessons if all(evaluation.has(figure.name) for figure in lesson.figures)
    ]
