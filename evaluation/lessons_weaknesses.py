"""Which of the published design's weaknesses (PAPER 7) the results show."""

from evaluation.beyond import CHARGE, LEVELS, STARVATION
from evaluation.evaluation import Evaluation
from evaluation.findings import times_of
from evaluation.metrics import JCT, PER_TOKEN
from evaluation.paper_n26 import BATCHES, CHUNKED, LLAMA, SWAPS
from evaluation.systems import (
    FASTSERVE,
    FASTSERVE_CHUNKED,
    FASTSERVE_MARGINAL,
    FCFS,
    FCFS_CHUNKED,
    LIMIT_OFF,
    LIMIT_PAPER,
    SRPT,
)
from evaluation.values import Panel
from evaluation.wording import SAME, against


def batches(evaluation: Evaluation) -> str:
    """Larger batches leave less to reorder."""
    found = {
        title: max(evaluation.gains(BATCHES.panel(title), FCFS, FASTSERVE), key=lambda gain: gain.times)
        for title in ("batch 16", "batch 64", "batch 128")
    }
    shows = "shows" if found["batch 128"].times * SAME < found["batch 16"].times else "does not show"
    parts = ", ".join(f"{times_of(gain.times)} at {title}" for title, gain in found.items())
    return (
        f"*The gain shrinks with the batch* {shows}: the greatest gain on mean latency per output token over the loads "
        f"is {parts} (Llama-3-8B, ShareGPT lengths)."
    )


def limit(evaluation: Evaluation) -> str:
    """The papers' limit, and none, beside the default: where KV is plenty and where it is scarce."""
    panels = {"ShareGPT lengths": STARVATION.panel("ShareGPT"), "little KV": STARVATION.panel("little KV, mean")}
    collapses = [_worst(evaluation, panel) < 1 / SAME for panel in panels.values()]
    shows = "shows" if all(collapses) else "shows in part" if any(collapses) else "does not show"
    told = " ".join(_limits_beside(evaluation, f"With {words} and 300 ms", panel) for words, panel in panels.items())
    default = f"{FASTSERVE.starvation_limit_s:g} s"
    return f"*Promotion after 300 ms collapses the order* {shows}, beside the default of {default}. {told}"


def _worst(evaluation: Evaluation, panel: Panel) -> float:
    return min(gain.times for gain in evaluation.gains(panel, FASTSERVE, LIMIT_PAPER, JCT.name))


def _limits_beside(evaluation: Evaluation, lead: str, panel: Panel) -> str:
    parts: list[str] = []
    for name, words in ((JCT.name, "mean JCT"), (PER_TOKEN.name, "latency per output token")):
        gains = evaluation.gains(panel, FASTSERVE, LIMIT_PAPER, name)
        least, most = (pick(gains, key=lambda gain: gain.times) for pick in (min, max))
        if least.times > 1 / SAME and most.times < SAME:
            parts.append(f"{words} is about as long at all loads")
            continue
        ends = [gain for gain in (least, most) if not 1 / SAME < gain.times < SAME]
        parts.append(
            f"{words} is "
            + " and ".join(f"{against(gain.times, 'with the default')} at load {gain.x:g}" for gain in ends)
        )
    x = evaluation.scale.of(panel.points)[-1]
    moved = [evaluation.point(panel, system, x, "offloaded_gb").mean for system in (LIMIT_PAPER, FASTSERVE, LIMIT_OFF)]
    never = evaluation.gains(panel, FASTSERVE, LIMIT_OFF, JCT.name)[-1]
    return (
        f"{lead} {', '.join(parts)}; without any promotion mean JCT is {against(never.times, 'with the default')} at "
        f"load {never.x:g}. There {moved[0]:,.0f}, {moved[1]:,.0f} and {moved[2]:,.0f} GB go to the host with "
        "300 ms, the default and no promotion."
    )


def levels(evaluation: Evaluation) -> str:
    """How far levels reach."""
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


def charge(evaluation: Evaluation) -> str:
    """What a job is charged."""
    gains = evaluation.gains(CHARGE.panel("mean JCT"), FASTSERVE, FASTSERVE_MARGINAL)
    least, most = (pick(gains, key=lambda gain: gain.times) for pick in (min, max))
    shows = "shows" if most.times > SAME and least.times > 1 / SAME else "does not show"
    return (
        f"*Every job is charged the whole iteration* {shows}: with marginal charge mean JCT is at its worst "
        f"{against(least.times, 'with wall time')} (load {least.x:g}), at its best "
        f"{against(most.times, 'with wall time')} (load {most.x:g}; OPT-13B, ShareGPT lengths)."
    )


def chunks(evaluation: Evaluation) -> str:
    """Prompts that stall whole iterations."""
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


def stalls(evaluation: Evaluation) -> str:
    """What latency per output token hides."""
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


def gqa(evaluation: Evaluation) -> str:
    """Small KV."""
    panels = (LLAMA.panel("mean JCT"), SWAPS.panel("mean JCT"))
    llama, opt = (evaluation.points(panel, FASTSERVE, "offloaded_gb")[-1].mean for panel in panels)
    shares = [max(point.mean for point in evaluation.points(panel, FASTSERVE, "upload_share")) for panel in panels]
    words = "moves less" if llama < opt else "does not move less"
    return (
        f"*With grouped-query attention KV is small*: at the greatest load Llama-3-8B {words}, {llama:,.1f} GB "
        f"offloaded against OPT-13B's {opt:,.1f} GB; bringing KV back takes at most {shares[0]:.2%} and "
        f"{shares[1]:.2%} of completion times."
    )
