"""Where the gain comes from, and where it vanishes."""

from collections.abc import Callable

from evaluation.evaluation import Evaluation
from evaluation.findings import times_of
from evaluation.paper_n26 import MEAN_LATENCY, PEAK, RATIO, SLO_S, SWAPS
from evaluation.paper_v1 import FIRST_ITERATION, OVERALL
from evaluation.systems import DEFER, FASTSERVE, FCFS, MLFQ, MLFQ_KILL, REACTIVE, RECOMPUTE, SRPT
from evaluation.values import Figure
from evaluation.wording import KIND_WORDS, SAME, against, lengths_words, trend

Tell = Callable[[Evaluation], str | None]


def sweep(axis: str, title: str) -> Tell:
    """The gain over an axis of GPT-175B's sweeps."""

    def tell(evaluation: Evaluation) -> str:
        gains = evaluation.gains(OVERALL.panel(title), FCFS, FASTSERVE)
        return f"Over FCFS the gain on mean JCT {trend([(gain.x, gain.times) for gain in gains], axis)} (GPT-175B)."

    return tell


_FELT = (
    ("jct_s.mean", "mean JCT"),
    ("per_output_token_s.mean", "latency per output token"),
    ("ttft_s.mean", "time to first token"),
)


def where_it_is_felt(evaluation: Evaluation) -> str | None:
    """Who gains in overload: only what gains is told."""
    panel = SWAPS.panel("mean JCT")
    found = {words: evaluation.gains(panel, FCFS, FASTSERVE, name)[-1] for name, words in _FELT}
    better = {words: gain.times for words, gain in found.items() if gain.times >= SAME}
    if not better:
        return None
    told = ", ".join(f"{words} is {against(ratio, 'under FCFS')}" for words, ratio in better.items())
    jct, *others = (gain.times for gain in found.values())
    order = ": short jobs and first tokens gain most" if min(others) > jct * SAME else ""
    return f"At load {next(iter(found.values())).x:g} on OPT-13B with ShareGPT lengths {told}{order}."


def mean_jct_loss(figure: Figure, model: str) -> Tell:
    """Where FastServe's mean JCT is longer than FCFS's."""

    def tell(evaluation: Evaluation) -> str | None:
        panel = figure.panel("mean JCT")
        gains = evaluation.gains(panel, FCFS, FASTSERVE)
        lost = [gain for gain in gains if gain.times <= 1 / SAME]
        if not lost:
            return None
        worst = min(lost, key=lambda gain: gain.times)
        others = ", ".join(f"{gain.x:g}" for gain in lost if gain != worst)
        also = f" (longer too at {others})" if others else ""
        waits = [
            evaluation.point(panel, system, worst.x, number).mean
            for number in ("queue_s", "preempted_s")
            for system in (FASTSERVE, FCFS)
        ]
        return (
            f"With ShareGPT lengths FastServe's mean JCT is {against(worst.times, 'under FCFS')} at load {worst.x:g}"
            f"{also}: there a job waits {waits[0]:.3g} s against {waits[1]:.3g} s before its first iteration, but "
            f"{waits[2]:.3g} s against {waits[3]:.3g} s after it ({model})."
        )

    return tell


def oracle(evaluation: Evaluation) -> str:
    """How far FastServe is from an order that knows lengths."""
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


def low_load(evaluation: Evaluation) -> str:
    """Without queues."""
    gain = evaluation.gains(SWAPS.panel("mean JCT"), FCFS, FASTSERVE)[0]
    reason = ": without queues there is nothing to reorder" if 1 / SAME < gain.times < SAME else ""
    return (
        f"At load {gain.x:g} mean JCT is {against(gain.times, 'under FCFS')} ({times_of(gain.times)}; OPT-13B, "
        f"ShareGPT lengths){reason}."
    )


def short_outputs(evaluation: Evaluation) -> str:
    """What happens where lengths have no heavy tail."""
    panel = PEAK.panel("mean JCT")
    least = min(evaluation.gains(panel, FCFS, FASTSERVE), key=lambda gain: gain.times)
    verdict = "loses" if least.times <= 1 / SAME else "does not lose"
    lengths = lengths_words(panel.traffic.lengths)
    return (
        f"Where no job is much longer than the others FastServe {verdict}: with {lengths}, mean JCT is "
        f"{against(least.times, 'under FCFS')} at {least.x:g} jobs/s, where it does worst (OPT-2.7B)."
    )


def skipping_over_loads(evaluation: Evaluation) -> str:
    """Naive MLFQ beside skip-join where prompts are as long as outputs."""
    panel = FIRST_ITERATION.panel("rate")
    naive, cut = (
        max(evaluation.gains(panel, system, FASTSERVE), key=lambda gain: gain.times) for system in (MLFQ, MLFQ_KILL)
    )
    verdict = "hardly matters" if naive.times < SAME else "matters"
    return (
        f"Where prompts are as long as outputs and a started prefill is left to finish, skipping levels {verdict}: "
        f"over all loads naive MLFQ's mean JCT is at most {times_of(naive.times)} FastServe's (load {naive.x:g}); "
        f"where prefills are cut, {times_of(cut.times)} (load {cut.x:g}; OPT-13B, Zipf lengths)."
    )


def skipping_over_ratios(gained: bool) -> Tell:
    """The same over the ratio of prompts to outputs: where it matters, or where it does not."""

    def tell(evaluation: Evaluation) -> str | None:
        panel = RATIO.panel("mean JCT")
        gains = [gain for gain in evaluation.gains(panel, MLFQ, FASTSERVE) if (gain.times >= SAME) == gained]
        if not gains:
            return None
        load = panel.traffic.load
        assert load is not None, "the ratios are swept at one load"
        told = ", ".join(f"{times_of(gain.times)} at {gain.x:g}" for gain in gains)
        lead = "Skipping levels gains" if gained else "Skipping levels gains nothing"
        return (
            f"{lead} at these ratios of prompt to output tokens: naive MLFQ's mean JCT over FastServe's is {told} "
            f"(OPT-13B, load {load:g}, started prefills left to finish)."
        )

    return tell


def tail(evaluation: Evaluation) -> str:
    """What the longest jobs pay."""
    gains = evaluation.gains(OVERALL.panel("rate, P95"), FCFS, FASTSERVE)
    least = min(gains, key=lambda gain: gain.times)
    lead = "Long jobs pay" if least.times < 1 / SAME else "The tail does not pay for the mean"
    return (
        f"{lead}: where it does worst, at load {least.x:g}, P95 of JCT is {against(least.times, 'under FCFS')} "
        "(GPT-175B, Zipf lengths)."
    )


def kv_policies(figure: Figure, title: str, gained: bool) -> Tell:
    """Proactive beside the other KV policies under skip-join, each where it gains or loses most."""

    def tell(evaluation: Evaluation) -> str | None:
        panel = figure.panel(title)
        parts: list[str] = []
        for system in (DEFER, REACTIVE, RECOMPUTE):
            gains = evaluation.gains(panel, system, FASTSERVE)
            extreme = (max if gained else min)(gains, key=lambda gain: gain.times)
            counts = extreme.times >= SAME if gained else extreme.times <= 1 / SAME
            if not gained and all(1 / SAME < gain.times < SAME for gain in gains):
                parts.append(f"at all loads about as long as with {system.label}")
            elif counts:
                parts.append(f"{against(extreme.times, f'with {system.label}')} at load {extreme.x:g}")
        if not parts:
            return None
        pool = panel.server.device_tokens
        where = f"{KIND_WORDS[panel.traffic.lengths.kind]} lengths" + (
            f" and {pool:,} tokens of KV" if pool is not None else ""
        )
        return f"With {where} the mean JCT of skip-join with proactive swapping is {'; '.join(parts)} (OPT-13B)."

    return tell


def short_traces(evaluation: Evaluation) -> str:
    """Up to which load the limit is kept."""
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
