"""Why ours differs from the papers' numbers, as far as the results tell: the load it was measured at, what an order
that knows lengths would gain there, how lax a limit is. Words are chosen by the numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from evaluation.claims import Claim, Verdict
from evaluation.evaluation import Evaluation
from evaluation.findings import Comparison, Finding, Place, Sustained, sustained_by, times_of
from evaluation.interpolation import Bound, Known
from evaluation.systems import FCFS, SRPT
from evaluation.values import System
from evaluation.wording import SAME, against

_ORACLE = "SRPT, which knows lengths,"
_FULL = 0.99
"""From this load on a server's queue has no end but the trace's."""


def why(claim: Claim, evaluation: Evaluation, finding: Finding, verdict: Verdict) -> str:
    """All that is to be said beside a verdict."""
    reasons: list[str] = []
    if claim.engine:
        reasons.append(f"{claim.engine} is another engine, which no simulation of policies has; here only its order.")
    if finding.sustained and verdict is not Verdict.WITHIN:
        reasons += _rates(claim, evaluation, finding)
    elif claim.compares is not None and not finding.sustained:
        if verdict.falls_short:
            reasons.append((_oracle if claim.ordered else _idle_pool)(claim, evaluation, finding, verdict))
        if verdict.goes_beyond:
            reasons += _beyond(claim, evaluation, finding)
    if claim.note is not None:
        reasons.append(claim.note(evaluation, finding))
    return " ".join(reason for reason in reasons if reason)


def _oracle(claim: Claim, evaluation: Evaluation, finding: Finding, verdict: Verdict) -> str:
    """What an order of these jobs could gain: anywhere, or where ours leaves the papers' range."""
    assert claim.compares is not None, "a comparison is asked for"
    assert finding.low_at is not None, "a comparison has places"
    gain: float | None
    if verdict is Verdict.SMALLER:
        gain, place = claim.compares.gains(evaluation, SRPT)[-1]
        lead = f"{_ORACLE} gains up to {times_of(gain)} ({place.with_load})"
    else:
        place = finding.low_at
        gain = claim.compares.gain_at(evaluation, place, SRPT)
        if gain is None:
            return ""
        lead = f"At {place.with_load}, where ours is least, {_ORACLE} gains {times_of(gain)}"
    if round(gain, 1) < claim.least:
        return f"{lead}: that is below the papers' too, so an order of these jobs can hardly reach theirs at that load."
    return f"{lead}: on these jobs the papers' number takes knowing the lengths."


def _idle_pool(claim: Claim, evaluation: Evaluation, finding: Finding, verdict: Verdict) -> str:
    """Policies for KV that does not fit are alike where it fits."""
    assert claim.compares is not None, f"a comparison is asked for: {verdict}"
    assert finding.low_at is not None, "a comparison has places"
    place = finding.low_at
    gain, moved_gb = finding.low.value, _at(evaluation, place, claim.compares.better, "offloaded_gb")
    if moved_gb > 0 or not 1 / SAME < gain < SAME:
        return ""
    return f"At {place.with_load} all KV fits, none is moved: there the policies differ in nothing."


def _at(evaluation: Evaluation, place: Place, system: System, number: str) -> float:
    return evaluation.point(place.panel, system, place.x, number).mean


def _beyond(claim: Claim, evaluation: Evaluation, finding: Finding) -> list[str]:
    """Where ours is greatest, and what makes it so."""
    assert claim.compares is not None, "a comparison is asked for"
    assert finding.high_at is not None, "a comparison has places"
    place, compares = finding.high_at, claim.compares
    gain = compares.gain_at(evaluation, place, SRPT)
    queues = ": from load 1 on queues, and gains with them, grow with the trace's length" if place.load > _FULL else ""
    reasons = [f"Ours is greatest at {place.with_load}{queues}."]
    if gain is not None:
        reasons.append(f"{_ORACLE} gains {times_of(gain)} there.")
    number = compares.number or place.panel.metric.name
    if claim.ordered and compares.worse != FCFS and FCFS in place.panel.systems:
        fcfs, worse = (_at(evaluation, place, system, number) for system in (FCFS, compares.worse))
        reasons.append(f"{compares.worse.label} there: {against(fcfs / worse, 'under FCFS')}.")
    for figure, title in compares.panels:
        panel = figure.panel(title)
        if panel != place.panel:
            most = replace(compares, panels=((figure, title),)).gains(evaluation)[-1]
            reasons.append(f"In the panel '{title}' it is at most {times_of(most[0])} ({most[1]}).")
    return reasons


def _listed(values: Iterable[Known], unit: str) -> str:
    return ", ".join(f"{value.bound}{value.value:.2f}{unit}" for value in values)


def _rates(claim: Claim, evaluation: Evaluation, finding: Finding) -> list[str]:
    """How lax the limit is, up to which load it is kept, what the oracle sustains: panel by panel."""
    assert claim.compares is not None, "rates are compared"
    own = finding.sustained
    oracle = sustained_by(evaluation, replace(claim.compares, better=SRPT), claim.limit_s)
    first = evaluation.points(own[0].panel, FCFS)[0].load
    token_times = ", ".join(
        f"{claim.limit_s / evaluation.points(each.panel, FCFS, 'gap_s.p50')[0].mean:.1f}" for each in own
    )
    lead = "In the order of the panels: " if len(own) > 1 else "Here "
    return [
        *_one_sided(claim.compares, own),
        f"{lead}{claim.limit_s:g} s is {token_times} times a token's time under FCFS at load {first:.2g}; "
        f"{claim.against}: within it up to load {_listed((each.worse_load for each in own), '')}; "
        f"{_ORACLE} sustains {_listed((each.times for each in oracle), 'x')} that rate.",
        _left(claim.compares, own),
    ]


def _one_sided(compares: Comparison, sustained: Sequence[Sustained]) -> list[str]:
    """Which rates no sweep bounded."""
    words = {Bound.AT_LEAST: "all rates that were run are within the limit", Bound.AT_MOST: "none is within it"}
    told: list[str] = []
    for system, rates in (
        (compares.better, [(each.panel.title, each.better) for each in sustained]),
        (compares.worse, [(each.panel.title, each.worse) for each in sustained]),
    ):
        for bound, text in words.items():
            titles = "; ".join(title for title, rate in rates if rate.bound is bound)
            if titles:
                told.append(f"{system.label}: {text} ({titles}).")
    return told


def _left(compares: Comparison, sustained: Sequence[Sustained]) -> str:
    """What a rate that can last leaves to be gained."""
    below = [each for each in sustained if each.worse_load.value < 1 and each.worse_load.bound is not Bound.AT_LEAST]
    if not below:
        return "All at load 1 or above, more than FCFS can serve for long: no lasting rate is left to be gained."
    which = f" ({'; '.join(each.panel.title for each in below)})" if len(below) < len(sustained) else ""
    most = ", ".join(f"{1 / each.worse_load.value:.2f}x" for each in below)
    left = f"Up to load 1 that leaves at most {most}{which}."
    highest = max(each.better_load.value for each in sustained)
    if highest > 1:
        left += f" {compares.better.label}'s rates reach load {highest:.2f}; those above load 1 can't last."
    return left
