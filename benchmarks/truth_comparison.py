"""Live figures beside simulated ones: how far apart they are, whether that is near enough, and tables of it. Pure.

A figure's live value is the mean of the repeats; their range shows how much this machine differs from itself, and no
simulator can be held to less. Ratios to FCFS are of the same trace and, live, of the same repeat.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean
from typing import Any

from benchmarks.goals_and_tables import Goal, Table, at_most

MOST_BUSY_OFF = 0.03
MOST_JCT_OFF = 0.10
MOST_RATIO_OFF = 0.10
MODERATE_LOAD = 0.7
HIGH_LOAD = 0.9
FCFS = "fcfs"
PICTURE = "live_against_simulated"

Measured = dict[str, Any]
Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of one trace under one pair of policies: of each live run, and of the simulated one."""

    trace: str
    load: float
    pair: tuple[str, str]
    live: tuple[float, ...]
    simulated: float

    @property
    def name(self) -> str:
        """Trace and pair."""
        return f"{self.trace}: {' + '.join(self.pair)}"

    @property
    def live_mean(self) -> float:
        """Mean of the repeats."""
        return fmean(self.live)

    @property
    def spread(self) -> float:
        """Range of the repeats as a share of their mean: the noise floor."""
        return (max(self.live) - min(self.live)) / self.live_mean if self.live_mean else 0.0

    @property
    def off(self) -> float:
        """Relative to the live mean: 0.02 if the simulated figure is 2 % greater."""
        if self.live_mean == 0.0:
            return 0.0 if self.simulated == 0.0 else float("inf")
        return self.simulated / self.live_mean - 1


def _loads(measured: Measured) -> dict[str, float]:
    return {trace["name"]: trace["load"] for trace in measured["traces"]}


def compared(measured: Measured, figure: str) -> list[Compared]:
    """A figure of every run."""
    loads = _loads(measured)
    return [
        Compared(
            run["trace"],
            loads[run["trace"]],
            tuple(run["pair"]),
            tuple(live[figure] for live in run["live"]),
            run["simulated"][figure],
        )
        for run in measured["runs"]
    ]


def ratios_to_fcfs(measured: Measured, figure: str = "mean_jct_s") -> list[Compared]:
    """A figure of every run but FCFS's own, divided by FCFS's on the same trace."""
    every = compared(measured, figure)
    fcfs = {each.trace: each for each in every if each.pair[0] == FCFS}
    return [
        Compared(
            each.trace,
            each.load,
            each.pair,
            tuple(own / base for own, base in zip(each.live, fcfs[each.trace].live, strict=True)),
            each.simulated / fcfs[each.trace].simulated,
        )
        for each in every
        if each.pair[0] != FCFS and each.trace in fcfs
    ]


def _goal(text: str, figures: Sequence[Compared], most: float) -> list[Goal]:
    """One goal for all of them, which names the worst; none if there are no figures."""
    if not figures:
        return []
    worst = max(figures, key=lambda each: abs(each.off))
    within = sum(abs(each.off) <= most for each in figures)
    told = f"simulated {text}, off from live: {within} of {len(figures)} within; worst {worst.name}"
    return [at_most(told, abs(worst.off) * 100, most * 100, "%")]


def goals(measured: Measured) -> list[Goal]:
    """The goals of the simulator."""
    jct, ratios = compared(measured, "mean_jct_s"), ratios_to_fcfs(measured)
    moderate = [each for each in jct if each.load <= MODERATE_LOAD]
    high = [each for each in ratios if each.load >= HIGH_LOAD]
    return [
        *_goal("busy time", compared(measured, "busy_s"), MOST_BUSY_OFF),
        *_goal(f"mean JCT at load {MODERATE_LOAD:g} or less", moderate, MOST_JCT_OFF),
        *_goal(f"ratio of mean JCT to FCFS at load {HIGH_LOAD:g}", high, MOST_RATIO_OFF),
    ]


def _cells(each: Compared) -> tuple[str, ...]:
    return (f"{each.live_mean:.3g}", f"{each.spread:.1%}", f"{each.simulated:.3g}", f"{each.off:+.1%}")


_CELLS = ("live", "spread", "simulated", "off")


def _figure_table(title: str, figures: Sequence[Compared], note: str = "") -> Table:
    return Table(title, ("trace, policies", *_CELLS), [(each.name, *_cells(each)) for each in figures], note)


def _traces_table(measured: Measured) -> Table:
    server, drift = measured["server"], measured["profile_drift"]
    repeats = len(measured["runs"][0]["live"])
    note = (
        f"![simulated against live]({PICTURE}.svg)\n\n"
        f"Model {measured['model']} on {measured['threads']} thread(s), batch {server['max_batch']}, a device pool of "
        f"{server['device_tokens']} tokens; every trace and pair of policies live {repeats} time(s) and simulated once "
        "with the cost profile that was measured before. Measured again afterwards, its median point took "
        f"{drift:+.1%}. Slowdown: how many times the seconds of an idle machine's profile an iteration takes in "
        "service, found on the live runs of all other traces. Off: simulated against the mean of the live runs. "
        "Spread: greatest less least live run, of their mean."
    )
    rows = []
    for trace in measured["traces"]:
        work = trace["workload"]
        rows.append(
            (
                trace["name"],
                str(work["jobs"]),
                f"{trace['span_s']:.0f}",
                f"{work['rate']:.3g}",
                f"{trace['load_met']:.2f}",
                f"{trace['slowdown']:.3f}",
                f"{trace['cv']:.2g}",
                f"{work['theta']:g}",
                str(trace["peak_need_tokens"]),
            )
        )
    heading = ("trace", "jobs", "seconds", "jobs/s", "load", "slowdown", "CV", "theta", "peak need, tokens")
    return Table("Live against simulated", heading, rows, note)


def _run_name(run: Run) -> str:
    return f"{run['trace']}: {' + '.join(run['pair'])}"


def _pace_table(runs: Sequence[Run]) -> Table:
    """Each live run and the same simulated at its own pace."""
    rows = []
    for run in runs:
        paced = run["at_own_pace"]
        pairs = list(zip(paced, run["live"], strict=True))
        mean = fmean(own["mean_jct_s"] for own in paced) / fmean(live["mean_jct_s"] for live in run["live"]) - 1
        rows.append(
            (
                _run_name(run),
                ", ".join(f"{own['slowdown']:.3f}" for own in paced),
                *(
                    ", ".join(f"{own[figure] / live[figure] - 1:+.1%}" for own, live in pairs)
                    for figure in ("busy_s", "mean_jct_s")
                ),
                f"{mean:+.1%}",
            )
        )
    heading = ("trace, policies", "slowdown", "busy time, off", "mean JCT, off", "mean of the runs' mean JCT, off")
    note = (
        "For each live run, with the slowdown of its own iterations: what is off then is the course of events, not how "
        "fast the machine was in those minutes. No goal is about this."
    )
    return Table("Each live run, and simulated at its own pace", heading, rows, note)


_ON_THE_WAY: Mapping[str, tuple[Callable[[Mapping[str, float]], float], int]] = {
    "iterations": (itemgetter("iterations"), 0),
    "ms an iteration": (lambda figures: figures["busy_s"] / figures["iterations"] * 1e3, 3),
    "preemptions": (itemgetter("preemptions"), 0),
    "GB moved": (itemgetter("moved_gb"), 3),
    "waiting for copies, s": (itemgetter("stall_s"), 3),
    "waiting for plans, s": (itemgetter("plan_wait_s"), 3),
    "until the last token, s": (itemgetter("duration_s"), 2),
}
"""Where a difference comes from: more iterations, longer ones, or waits between them. Name, figure and digits."""


def _counts(run: Run) -> tuple[str, ...]:
    """What happened on the way, live (mean) / simulated."""
    cells = []
    for figure, digits in _ON_THE_WAY.values():
        live = fmean(figure(each) for each in run["live"])
        cells.append(f"{live:.{digits}f} / {figure(run['simulated']):.{digits}f}")
    return (_run_name(run), *cells)


def tables(measured: Measured) -> list[Table]:
    """This part of the summary."""
    # Results of earlier versions have no runs at their own pace.
    paced = [run for run in measured["runs"] if "at_own_pace" in run]
    return [
        _traces_table(measured),
        _figure_table("Busy time of the worker, seconds", compared(measured, "busy_s")),
        _figure_table("Mean job completion, seconds", compared(measured, "mean_jct_s")),
        _figure_table("Mean job completion, of FCFS's on the same trace", ratios_to_fcfs(measured)),
        _figure_table("Mean time to the first token, seconds", compared(measured, "mean_ttft_s")),
        _figure_table("Mean latency per output token, seconds", compared(measured, "mean_per_output_token_s")),
        _figure_table("P99 of job completion, seconds", compared(measured, "p99_jct_s")),
        *([_pace_table(paced)] if paced else []),
        Table(
            "On the way, live / simulated",
            ("trace, policies", *_ON_THE_WAY),
            [_counts(run) for run in measured["runs"]],
        ),
    ]
