"""docs/evaluation/REPORT.md, from an evaluation: no number in it was typed but the papers' own (claims.py)."""

from collections.abc import Iterator

from evaluation.claims import CLAIMS
from evaluation.drawing import GAPS_SUFFIX, caption_of, gaps_owner
from evaluation.evaluation import Evaluation
from evaluation.lessons import GAIN, VANISHES, WEAKNESSES, told
from evaluation.reasons import why
from evaluation.systems import FASTSERVE, FCFS
from evaluation.values import Figure, PanelKind, Server

_INTRODUCTION = """\
Written by `make figures` from the results beside it; no number here was typed but those that the papers give.

The scheduler and the KV manager that serve also decided here, on a virtual clock: the same code, the same messages, the
same plans in flight. Iteration times come from the cost models in [profiles](../../profiles), which say
how they were derived; no GPU was run. So this compares policies on one and the same engine, not engines.

A load is the arrival rate over FCFS's capacity: the rate at which FCFS, deferring jobs that do not fit, works off a
backlog of these lengths on that server. Lengths are stratified and arrivals stretched, so that a load is what it says.
Whoever defers is told each job's true length, where a real server must reserve for the longest possible: that flatters
FCFS. The policies have their own defaults, among them a starvation limit of {limit:g} s where the papers have 300 ms.
"""


def _rows(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|" + " --- |" * len(header)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _server_name(server: Server) -> str:
    parts = [server.profile, f"batch {server.max_batch}"]
    if server.device_tokens is not None:
        parts.append(f"{server.device_tokens:,} tokens of KV")
    if server.stages is not None:
        parts.append(f"{server.stages} stages")
    return ", ".join(parts)


def _capacities(evaluation: Evaluation) -> Iterator[tuple[str, ...]]:
    seen: dict[tuple[str, str], float] = {}
    for run, measured in evaluation.measured.items():
        lengths = run.traffic.lengths
        theta = "" if lengths.theta is None else f", theta {lengths.theta:g}"
        ratio = "" if lengths.ratio is None else f", prompt/output {lengths.ratio:g}"
        seen[(_server_name(run.server), f"{lengths.kind}{theta}{ratio}")] = measured.capacity_per_s
    for (server, lengths_name), capacity in sorted(seen.items()):
        yield (server, lengths_name, f"{capacity:.3g}")


def _claim_rows(evaluation: Evaluation) -> Iterator[tuple[str, ...]]:
    for claim in CLAIMS:
        finding = claim.ours(evaluation)
        if finding is None:
            yield (claim.where, claim.against, claim.paper, "not run", "")
            continue
        verdict = claim.verdict(finding)
        against = f"{claim.against} (papers: {claim.engine})" if claim.engine else claim.against
        cells = f"{verdict}. {why(claim, evaluation, finding, verdict)}".strip()
        yield (claim.where, against, claim.paper, f"[{finding.text}]({claim.figure.name}.csv)", cells)


def _gap_rows(evaluation: Evaluation) -> Iterator[tuple[str, ...]]:
    for figure in evaluation.figures:
        if gaps_owner(figure, evaluation.figures) is not figure:
            continue
        for panel in figure.panels[:1]:
            if panel.kind is not PanelKind.LINES or not {FCFS, FASTSERVE} <= set(panel.systems):
                continue
            for system in (FCFS, FASTSERVE):
                x = evaluation.scale.of(panel.points)[-1]
                values = [
                    evaluation.point(panel, system, x, name).mean
                    for name in ("gap_s.mean", "gap_s.p99", "worst_gap_s.mean", "worst_gap_s.p95", "worst_gap_s.max")
                ]
                link = f"[{figure.name}]({figure.name}{GAPS_SUFFIX}.png)"
                place = f"{panel.title}, {panel.axis.value} {x:g}"
                yield (
                    link,
                    place,
                    system.label,
                    *(f"{v:.3g}" for v in values),
                )


def _figure(evaluation: Evaluation, figure: Figure) -> Iterator[str]:
    yield f"### {figure.title}"
    yield ""
    gaps = f"{gaps_owner(figure, evaluation.figures).name}{GAPS_SUFFIX}"
    yield f"{figure.shows}. [CSV]({figure.name}.csv), [SVG]({figure.name}.svg)."
    yield f"Gaps inside its streams: [PNG]({gaps}.png), [SVG]({gaps}.svg)."
    yield ""
    yield f"![{figure.title}]({figure.name}.png)"
    yield ""
    yield caption_of(evaluation, figure)
    yield ""


def report(evaluation: Evaluation) -> str:
    """The whole text."""
    scale = evaluation.scale
    failed = sum(measured.numbers["failed"] for measured in evaluation.measured.values())
    lines = ["# The papers' evaluation, once more", "", _INTRODUCTION.format(limit=FASTSERVE.starvation_limit_s)]
    lines.append(
        f"This is the {scale.name} set: {len(evaluation.measured):,} simulations of {scale.jobs:,} jobs each (more "
        f"where the caption says so), seeds {', '.join(map(str, scale.seeds))}; {failed:,.0f} jobs failed. "
        f"Repeat it with `{_COMMANDS[scale.name]}`."
    )
    lines += ["", "## The papers' claims", ""]
    lines += _rows(("claim", "against", "paper", "here", "how they compare"), _claim_rows(evaluation))
    lines += ["", "## Gaps inside streams", ""]
    lines.append("Seconds between a job's consecutive tokens, at the last point of each figure's first panel.")
    lines.append("")
    header = ("figure", "point", "system", "mean gap", "P99 gap", "worst gap: mean", "P95", "max")
    lines += _rows(header, _gap_rows(evaluation))
    lines += ["", "## Figures", ""]
    for figure in evaluation.figures:
        lines += _figure(evaluation, figure)
    lines += ["## What FCFS can serve", ""]
    lines += _rows(("server", "lengths", "jobs/s"), _capacities(evaluation))
    lines += ["", "## What was learnt", ""]
    for title, lessons in _CHAPTERS:
        lines += [f"### {title}", "", *(f"- {sentence}" for sentence in told(evaluation, lessons)), ""]
    return "\n".join(lines).rstrip() + "\n"


_COMMANDS = {"quick": "make figures QUICK=1", "main": "make figures", "full": "make figures FULL=1"}
_CHAPTERS = (
    ("Where the gain comes from", GAIN),
    ("Where it vanishes", VANISHES),
    ("Which known weaknesses show", WEAKNESSES),
)
