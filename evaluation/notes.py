"""What the runs tell of single claims: notes beside their rows. Words are chosen by the numbers."""

from collections.abc import Callable
from itertools import pairwise

from evaluation.evaluation import Evaluation
from evaluation.findings import Comparison, Finding, Place, keeps_up, slower_than_fcfs, times_of
from evaluation.metrics import JCT, PER_TOKEN
from evaluation.paper_v1 import OVERALL, STATIC_LOADS
from evaluation.systems import DEFER, FASTSERVE, FCFS, REACTIVE, RECOMPUTE, STATIC
from evaluation.values import Figure, Panel, System
from evaluation.wording import SAME, against

_LITTLE = 0.05
"""A share of a time that is called little."""


def _places(evaluation: Evaluation, panel: Panel, system: System) -> list[Place]:
    return [Place(panel, point.x, point.load) for point in evaluation.points(panel, system)]


def _value(evaluation: Evaluation, place: Place, system: System, number: str) -> float:
    return evaluation.point(place.panel, system, place.x, number).mean


def static_batches(title: str) -> Callable[[Evaluation, Finding], str]:
    """Where static batches keep up, and why nothing is compared where they do not."""

    def longest(evaluation: Evaluation, figure: Figure, panel_title: str, keeping: bool) -> tuple[float, float] | None:
        panel = figure.panel(panel_title)
        found = [
            (slower_than_fcfs(evaluation, place, STATIC), place.load)
            for place in _places(evaluation, panel, STATIC)
            if keeps_up(evaluation, place, STATIC) == keeping
        ]
        return (max(slower for slower, _ in found), min(load for _, load in found)) if found else None

    def note(evaluation: Evaluation, _: Finding) -> str:
        parts: list[str] = []
        kept = longest(evaluation, STATIC_LOADS, title, True)
        if kept is not None:
            parts.append(
                f"Read where {STATIC.label} keep up (all jobs take at most {times_of(kept[0])} as long as FCFS)."
            )
        for figure, panel_title in ((STATIC_LOADS, title), (OVERALL, f"{title}, mean")):
            missed = longest(evaluation, figure, panel_title, False) if evaluation.has(figure.name) else None
            if missed is not None:
                parts.append(
                    f"Where they don't, from load {missed[1]:.2g} on in {figure.name}, the jobs take up to "
                    f"{times_of(missed[0])} as long: a ratio there tells the trace's length, nothing is compared."
                )
        rates = Comparison(((STATIC_LOADS, "rate"),), STATIC, FASTSERVE).gains(evaluation)
        rates = [(gain, place) for gain, place in rates if keeps_up(evaluation, place, STATIC)]
        if title != "rate" and rates:
            (low, low_at), (high, high_at) = rates[0], rates[-1]
            parts.append(
                f"The load matters: {times_of(low)} at {low_at}, {times_of(high)} at {high_at} in the rate sweep."
            )
        return " ".join(parts)

    return note


def deferring(evaluation: Evaluation, finding: Finding) -> str:
    """Deferring admits in FCFS's order once memory is full; whether that is bad depends on the lengths."""
    parts: list[str] = []
    assert finding.low_at is not None, "a range has places"
    assert finding.high_at is not None, "a range has places"
    worst, best = (_jct(evaluation, place) for place in (finding.low_at, finding.high_at))
    if worst[FASTSERVE] > worst[DEFER] * SAME:
        place = finding.low_at
        waits = [_value(evaluation, place, system, "preempted_s") for system in (FASTSERVE, DEFER)]
        moved_gb = _value(evaluation, place, FASTSERVE, "offloaded_gb")
        parts.append(
            f"At {place} proactive is the worse one: a job waits {waits[0]:.3g} s between its iterations against "
            f"{waits[1]:.3g} s with {DEFER.label}, and {moved_gb:,.0f} GB go to the host."
        )
        if worst[FASTSERVE] > worst[FCFS] * SAME and 1 / SAME < worst[DEFER] / worst[FCFS] < SAME:
            parts.append(
                f"Deferring keeps near FCFS's order ({times_of(worst[DEFER] / worst[FCFS])} its mean JCT), which these "
                f"lengths suit: FCFS's is {against(worst[FASTSERVE] / worst[FCFS], 'that of FastServe')}."
            )
        tokens = [_value(evaluation, place, system, PER_TOKEN.name) for system in (DEFER, FASTSERVE)]
        parts.append(f"Latency per output token is {against(tokens[0] / tokens[1], f'with {DEFER.label}')} there.")
    if best[DEFER] > best[FASTSERVE] * SAME and best[DEFER] / best[FCFS] > 1 / SAME:
        parts.append(
            f"At {finding.high_at} deferring has {times_of(best[DEFER] / best[FCFS])} FCFS's mean JCT: once memory is "
            "full, jobs start in FCFS's order."
        )
    if not parts:
        moved_gb = _value(evaluation, finding.high_at, FASTSERVE, "offloaded_gb")
        parts.append(
            f"At {finding.high_at} {moved_gb:,.0f} GB go to the host under FastServe, and deferring has "
            f"{times_of(best[DEFER] / best[FCFS])} FCFS's mean JCT."
        )
    return " ".join(parts)


def _jct(evaluation: Evaluation, place: Place) -> dict[System, float]:
    return {system: _value(evaluation, place, system, JCT.name) for system in (FCFS, DEFER, FASTSERVE)}


def reacting(evaluation: Evaluation, finding: Finding) -> str:
    """How long copies keep jobs waiting under either policy."""
    assert finding.high_at is not None, "a range has places"
    places = _places(evaluation, finding.high_at.panel, REACTIVE)
    place = max(places, key=lambda place: _value(evaluation, place, REACTIVE, "upload_s"))
    copies = [_value(evaluation, place, system, "upload_s") for system in (REACTIVE, FASTSERVE)]
    jct_s = _value(evaluation, place, REACTIVE, JCT.name)
    share = (copies[0] - copies[1]) / jct_s if jct_s > 0 else 0.0
    share_words = f"{abs(share):.1%} of the mean JCT {'less' if share >= 0 else 'more'}"
    little = ", which is little" if abs(share) < _LITTLE else ""
    return (
        f"At {place}, where it lasts longest, a job's KV is being brought back for {copies[0]:.3g} s on average with "
        f"{REACTIVE.label} and for {copies[1]:.3g} s with FastServe, {share_words}{little}. "
        "No iteration waits for a copy under either."
    )


def recomputing(evaluation: Evaluation, finding: Finding) -> str:
    """What computing again costs."""
    assert finding.high_at is not None, "a range has places"
    panel = finding.high_at.panel
    found = [
        (_value(evaluation, place, RECOMPUTE, "busy_s") / busy_s, place)
        for place in _places(evaluation, panel, RECOMPUTE)
        if (busy_s := _value(evaluation, place, FASTSERVE, "busy_s")) > 0
    ]
    most, place = max(found, key=lambda pair: pair[0])
    return f"Recomputing makes the server compute at most {times_of(most)} as long as FastServe ({place})."


def swapping(evaluation: Evaluation, finding: Finding) -> str:
    """What the share is of, and what else moving KV costs or saves."""
    assert finding.high_at is not None, "a share has a place"
    places = _places(evaluation, finding.high_at.panel, FASTSERVE)
    moved_gb, place = max(
        ((_value(evaluation, place, FASTSERVE, "offloaded_gb"), place) for place in places), key=lambda pair: pair[0]
    )
    jct_s = [_value(evaluation, place, system, JCT.name) for system in (DEFER, FASTSERVE)]
    return (
        "It is the part of jobs' time in which their KV is brought back; no iteration waits for that. "
        f"Whether moving pays is another matter: at {place} {moved_gb:,.0f} GB go to the host, and mean JCT is "
        f"{against(jct_s[0] / jct_s[1], f'with {DEFER.label}')}, which moves none."
    )


def peak_over_loads(peaks: Comparison, papers: float) -> Callable[[Evaluation, Finding], str]:
    """How the ratio of peaks depends on the load, which the papers do not give."""

    def note(evaluation: Evaluation, _: Finding) -> str:
        gains = sorted(peaks.gains(evaluation), key=lambda pair: pair[1].load)
        told = ", ".join(f"{times_of(gain)} at load {place.load:.2f}" for gain, place in gains)
        rises = all(after >= before for (before, _), (after, _) in pairwise(gains))
        lead = "The ratio rises with the load" if rises else "The ratio depends on the load"
        between = next(
            (
                f": theirs lies between load {below.load:.2f} and {above.load:.2f} of this server"
                for (less, below), (more, above) in pairwise(gains)
                if less <= papers <= more
            ),
            "",
        )
        return f"{lead}: {told}. The papers give the rate, not the load{between}."

    return note
