"""The tables of the report: rows of cells, all of them numbers, names and verdicts."""

from collections.abc import Iterator
from dataclasses import dataclass

from evaluation.claims import CLAIMS
from evaluation.paper_n26 import BATCHES, LLAMA, MEAN_LATENCY, TAIL_LATENCY
from evaluation.paper_v1 import KV_POLICIES, OVERALL
from evaluation.readings import AXIS_WORDS, times, times_of
from evaluation.results import Evaluation
from evaluation.systems import FCFS, GITTINS, RESERVING, SKIP_JOIN, SRPT
from evaluation.values import Axis, Figure, Panel, Server, System, Traffic

NOT_RUN = "–"


@dataclass(frozen=True, slots=True)
class MarkdownTable:
    """A heading over rows of as many cells."""

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def lines(self) -> Iterator[str]:
        """As Markdown."""
        yield f"| {' | '.join(self.heading)} |"
        yield "|" + " --- |" * len(self.heading)
        for row in self.rows:
            yield f"| {' | '.join(row)} |"


_WORKLOADS: tuple[tuple[str, Figure, str], ...] = (
    ("GPT-175B, Zipf lengths, CV 4", OVERALL, "rate, mean"),
    ("OPT-13B, Zipf lengths, CV 4, little KV", KV_POLICIES, "rate"),
    *((f"{panel.title}, Poisson", MEAN_LATENCY, panel.title) for panel in MEAN_LATENCY.panels),
    ("Llama-3-8B, ShareGPT, Poisson", LLAMA, "mean"),
)
_GAINS = (
    ("mean JCT, load 0.8", "jct_s.mean", 0.8),
    ("load 1", "jct_s.mean", 1.0),
    ("P95 of JCT, load 1", "jct_s.p95", 1.0),
    ("first token, load 0.8", "ttft_s.mean", 0.8),
    ("load 1", "ttft_s.mean", 1.0),
)


_FCFS_FORMS = (FCFS, RESERVING)
_OURS = (SKIP_JOIN, GITTINS)


def _gain(evaluation: Evaluation, panel: Panel, than: System, number: str, load: float) -> str:
    """Of the papers' policy, then of the default."""
    if load not in evaluation.scale.of(panel.points):
        return NOT_RUN
    told = []
    for ours in _OURS:
        gains = {gain.x: gain.times for gain in evaluation.gains(panel, than, ours, number)}
        told.append(times_of(gains[load]))
    return " / ".join(told)


def _seconds(evaluation: Evaluation, panel: Panel, than: System, number: str, load: float) -> str:
    if load not in evaluation.scale.of(panel.points):
        return NOT_RUN
    before, *after = (evaluation.point(panel, system, load, number).mean for system in (than, *_OURS))
    return f"{before:.2g} → {' / '.join(f'{value:.2g}' for value in after)}"


def workloads_table(evaluation: Evaluation) -> MarkdownTable:
    """How many times as long FCFS takes as the papers' policy and as the default, and what streams pay, workload by
    workload: FCFS in its best form first, then the one that reserves.
    """
    heading = ("workload", "over", *(name for name, _, _ in _GAINS), "P95 of worst gaps, load 1, s")
    rows = [
        (
            name,
            than.label,
            *(_gain(evaluation, figure.panel(title), than, number, load) for _, number, load in _GAINS),
            _seconds(evaluation, figure.panel(title), than, "worst_gap_s.p95", 1.0),
        )
        for name, figure, title in _WORKLOADS
        if evaluation.has(figure.name)
        for than in _FCFS_FORMS
    ]
    return MarkdownTable(heading, tuple(rows))


def claims_table(evaluation: Evaluation) -> MarkdownTable:
    """Every number of the papers beside ours."""
    rows: list[tuple[str, ...]] = []
    for claim in CLAIMS:
        finding = claim.ours(evaluation)
        default = claim.ours(evaluation, GITTINS)
        assert (finding is None) == (default is None), "both are of the same figure"
        if finding is None or default is None:
            ours = (NOT_RUN, "not run", NOT_RUN)
        else:
            ours = (finding.text, claim.verdict(finding).value, default.text)
        rows.append((claim.where, claim.engine or claim.against, claim.paper, claim.against, *ours))
    heading = ("the papers' claim", "over", "theirs", "here over", SKIP_JOIN.label, "verdict", GITTINS.label)
    return MarkdownTable(heading, tuple(rows))


_SUSTAINING = (FCFS, RESERVING, SKIP_JOIN, GITTINS)


def _sustained_row(evaluation: Evaluation, figure: Figure, panel: Panel) -> tuple[str, ...]:
    assert panel.limit is not None, "a rate is sustained within a limit"
    rates = {system: evaluation.sustained(panel, system, panel.limit) for system in (*_SUSTAINING, SRPT)}
    capacity = evaluation.at(panel, FCFS, evaluation.scale.of(panel.points)[0])[0].capacity_per_s
    loads = (f"{rates[system].bound}{rates[system].value / capacity:.2f}" for system in _SUSTAINING)
    over = (times(rates[system].over(rates[FCFS])) for system in (SKIP_JOIN, GITTINS, SRPT))
    return (figure.name, panel.title, f"{panel.limit:g}", *loads, *over)


def sustained_table(evaluation: Evaluation) -> MarkdownTable:
    """Up to which load a latency per output token is kept."""
    first, *others = (system.label for system in _SUSTAINING)
    ratios = (f"{system.label}/{FCFS.label}" for system in (SKIP_JOIN, GITTINS, SRPT))
    heading = ("figure", "panel", "limit, s", f"load: {first}", *others, *ratios)
    rows = [
        _sustained_row(evaluation, figure, panel)
        for figure in (MEAN_LATENCY, TAIL_LATENCY, BATCHES)
        if evaluation.has(figure.name)
        for panel in figure.panels
    ]
    return MarkdownTable(heading, tuple(rows))


_GAP_NUMBERS = ("gap_s.mean", "gap_s.p99", "worst_gap_s.mean", "worst_gap_s.p95", "worst_gap_s.max")


def gaps_table(evaluation: Evaluation) -> MarkdownTable:
    """The gaps inside streams at the load nearest to 1 of every sweep of rates, each server and traffic once."""
    rows: list[tuple[str, ...]] = []
    seen: set[tuple[Server, Traffic]] = set()
    for figure in evaluation.figures:
        for panel in figure.panels:
            if panel.axis not in (Axis.LOAD, Axis.RATE) or (panel.server, panel.traffic) in seen:
                continue
            seen.add((panel.server, panel.traffic))
            x = min(evaluation.points(panel, FCFS), key=lambda point: abs(point.load - 1)).x
            for system in (FCFS, SKIP_JOIN, GITTINS):
                if system not in panel.systems:
                    continue
                values = (evaluation.point(panel, system, x, number).mean for number in _GAP_NUMBERS)
                place = f"{figure.name}: {panel.title}, {AXIS_WORDS[panel.axis]} {x:g}"
                rows.append((place, system.label, *(f"{value:.3g}" for value in values)))
    heading = ("figure: panel, point", "system", "mean gap", "P99 gap", "worst gap: mean", "P95", "max")
    return MarkdownTable(heading, tuple(rows))


def _server_name(server: Server) -> str:
    parts = [server.profile, f"batch {server.max_batch}"]
    if server.device_tokens is not None:
        parts.append(f"{server.device_tokens:,} tokens of KV")
    if server.stages is not None:
        parts.append(f"{server.stages} stages")
    return ", ".join(parts)


def capacities_table(evaluation: Evaluation) -> MarkdownTable:
    """What a load of 1 is in jobs a second."""
    found: dict[tuple[str, str], float] = {}
    for run, measured in evaluation.measured.items():
        lengths = run.traffic.lengths
        theta = "" if lengths.theta is None else f", theta {lengths.theta:g}"
        ratio = "" if lengths.ratio is None else f", prompt/output {lengths.ratio:g}"
        found[(_server_name(run.server), f"{lengths.kind}{theta}{ratio}")] = measured.capacity_per_s
    rows = [(server, lengths_name, f"{rate:.3g}") for (server, lengths_name), rate in sorted(found.items())]
    return MarkdownTable(("server", "lengths", "jobs/s"), tuple(rows))
