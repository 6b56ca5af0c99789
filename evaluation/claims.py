"""What the papers claim (PAPER 6), one row each: the papers' number, which was typed, and how ours is read.

A range's `low` is None where the papers say "up to". Where an ablation of theirs has two figures here, it has two rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from evaluation.interpolation import Bound
from evaluation.panel_metrics import PEAK_KV
from evaluation.paper_n26 import (
    BATCH_SLO_S,
    BATCHES,
    CHUNKED,
    LOADS,
    MEAN_LATENCY,
    PEAK,
    RATIO,
    SLO_S,
    SWAPS,
    TAIL_LATENCY,
)
from evaluation.paper_v1 import KV_POLICIES, OVERALL, STATIC_LOADS
from evaluation.readings import (
    Comparison,
    Finding,
    Reading,
    gain_range,
    greatest_gain,
    greatest_share,
    single,
    sustained_gain,
)
from evaluation.results import Evaluation
from evaluation.systems import (
    DEFER,
    FCFS,
    FCFS_CHUNKED,
    FIXED_PRIORITY,
    MLFQ,
    REACTIVE,
    RECOMPUTE,
    RESERVING,
    SKIP_JOIN,
    STATIC,
)
from evaluation.values import Figure, System


class Verdict(StrEnum):
    """Ours beside the papers' range. PARTLY: our greatest number reaches it, our least does not."""

    MET = "met"
    EXCEEDED = "exceeded"
    PARTLY = "partly met"
    MISSED = "missed"
    OPEN = "open"
    INCOMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True)
class Claim:
    """One number of the papers. `engine` names the other engine that it compares with, "" for the same engine;
    `against` is the system that stands for it here. `reading` tells how ours is read off for the papers' policy, or for
    another system in its place.
    """

    key: str
    where: str
    against: str
    low: float | None
    high: float
    figure: Figure
    reading: Callable[[System], Reading]
    engine: str = ""
    percent: bool = False

    @property
    def paper(self) -> str:
        """As the papers write it."""
        if self.percent:
            return f"under {self.high:.0%}"
        if self.low is None:
            return f"up to {self.high:g}x"
        return f"{self.high:g}x" if self.low == self.high else f"{self.low:g}-{self.high:g}x"

    def ours(self, evaluation: Evaluation, system: System = SKIP_JOIN) -> Finding | None:
        """None where the figure was not run."""
        return self.reading(system)(evaluation) if evaluation.has(self.figure.name) else None

    def verdict(self, finding: Finding) -> Verdict:
        """Where ours is. A bound that was only reached from one side decides where it is beyond."""
        if not finding.comparable:
            return Verdict.INCOMPARABLE
        low, high = finding.low, finding.high
        if Bound.OPEN in (high.bound, low.bound):
            return Verdict.OPEN
        if self.percent:
            return Verdict.MET if high.value < self.high else Verdict.MISSED
        # "Up to" speaks of the greatest only.
        low = high if self.low is None else low
        least = self.high if self.low is None else self.low
        # One decimal is what the papers give.
        floor, ceiling, lowest, greatest = (round(value, 1) for value in (least, self.high, low.value, high.value))
        if greatest < floor:
            return Verdict.OPEN if high.bound is Bound.AT_LEAST else Verdict.MISSED
        if lowest > ceiling:
            return Verdict.OPEN if low.bound is Bound.AT_MOST else Verdict.EXCEEDED
        if lowest < floor:
            undecided = low.bound is Bound.AT_LEAST or high.bound is Bound.AT_MOST
            return Verdict.OPEN if undecided else Verdict.PARTLY
        return Verdict.OPEN if low.bound is Bound.AT_MOST else Verdict.MET


_MODELS = ("OPT-13B", "OPT-66B", "OPT-175B")
_SHAREGPT = tuple(f"{model}, ShareGPT" for model in _MODELS)
_ALPACA = tuple(f"{model}, Alpaca" for model in _MODELS)
_FT, _ORCA, _VLLM_0_1, _VLLM_0_6 = "FasterTransformer", "Orca", "vLLM 0.1.7", "vLLM 0.6.1"


_RESERVES = "-reserves"
"""Ends the key of a claim over FCFS that is read against FCFS with reservation."""


def _both(claim: Callable[[str, System], Claim], key: str) -> tuple[Claim, Claim]:
    """A claim over FCFS: against its best form, then against the one that reserves."""
    return claim(key, FCFS), claim(f"{key}{_RESERVES}", RESERVING)


def _overall(key: str, panel: str, low: float, high: float) -> tuple[Claim, Claim]:
    def claim(key: str, against: System) -> Claim:
        panels = ((OVERALL, f"{panel}, mean"),)
        where = f"v1 {panel} sweep, mean JCT"
        return Claim(
            key,
            where,
            against.label,
            low,
            high,
            OVERALL,
            lambda ours: gain_range(Comparison(panels, against, ours)),
            _ORCA,
        )

    return _both(claim, f"v1-{key}")


def _static(key: str, panel: str, low: float, high: float) -> Claim:
    def reading(ours: System) -> Reading:
        return gain_range(Comparison(((STATIC_LOADS, panel),), STATIC, ours), kept_by=STATIC)

    return Claim(f"v1-{key}", f"v1 {panel} sweep, mean JCT", STATIC.label, low, high, STATIC_LOADS, reading, _FT)


@dataclass(frozen=True, slots=True)
class _Sustained:
    """A claim about the rate that keeps a limit. `engine` as in Claim."""

    where: str
    engine: str
    low: float | None
    high: float
    titles: tuple[str, ...]
    figure: Figure = MEAN_LATENCY

    def __call__(self, key: str, against: System) -> Claim:
        """Against this system."""
        limit_s = BATCH_SLO_S if self.figure is BATCHES else SLO_S
        panels = tuple((self.figure, title) for title in self.titles)

        def reading(ours: System) -> Reading:
            return sustained_gain(Comparison(panels, against, ours), limit_s)

        return Claim(key, self.where, against.label, self.low, self.high, self.figure, reading, self.engine)


def _headline(key: str, where: str, high: float, statistic: str) -> tuple[Claim, Claim]:
    panels = tuple((OVERALL, f"{panel}, {statistic}") for panel in ("rate", "burstiness", "skew"))

    def claim(key: str, against: System) -> Claim:
        return Claim(
            key,
            where,
            against.label,
            None,
            high,
            OVERALL,
            lambda ours: greatest_gain(Comparison(panels, against, ours)),
            _ORCA,
        )

    return _both(claim, key)


def _ablation(key: str, against: System, high: float) -> Claim:
    def reading(ours: System) -> Reading:
        return greatest_gain(Comparison(((RATIO, "mean JCT"), (RATIO, "per output token")), against, ours))

    where = "ablation over input/output ratios: skip-join"
    return Claim(key, where, against.label, None, high, RATIO, reading)


def _kv(key: str, against: System, low: float, high: float) -> tuple[Claim, Claim]:
    def claim(suffix: str, figure: Figure, panel: str, what: str) -> Claim:
        where = f"ablation: proactive, mean JCT, {what}"
        return Claim(
            f"{key}{suffix}",
            where,
            against.label,
            low,
            high,
            figure,
            lambda ours: gain_range(Comparison(((figure, panel),), against, ours)),
        )

    return (
        claim("", SWAPS, "mean JCT", "ShareGPT lengths"),
        claim("-little-kv", KV_POLICIES, "rate", "Zipf lengths, little KV"),
    )


_PAPERS_RATE_PER_S = 64.0
_ALL = (*_SHAREGPT, *_ALPACA)
_BATCHED = ("batch 64", "batch 128")


def _low_load(ours: System) -> Reading:
    return single(Comparison(((SWAPS, "mean JCT"),), FCFS, ours), LOADS.main[0])


def _peak(ours: System) -> Reading:
    return single(Comparison(((PEAK, "peak KV"),), ours, FCFS, PEAK_KV.name), _PAPERS_RATE_PER_S)


def _swap_share(ours: System) -> Reading:
    return greatest_share(SWAPS, "mean JCT", ours, "upload_share")


CLAIMS: tuple[Claim, ...] = (
    _static("rate-static", "rate", 1.9, 11.4),
    *_overall("rate-fcfs", "rate", 1.0, 4.3),
    _static("cv-static", "burstiness", 7.4, 12.2),
    *_overall("cv-fcfs", "burstiness", 2.3, 5.1),
    _static("theta-static", "skew", 3.6, 10.6),
    *_overall("theta-fcfs", "skew", 1.9, 3.9),
    *_headline("v1-headline-mean", "v1 headline, mean JCT", 5.1, "mean"),
    *_headline("v1-headline-tail", "v1 headline, tail (P95) of JCT", 6.4, "P95"),
    _Sustained("v3 ShareGPT, rate at SLO", _FT, 31.5, 74.9, _SHAREGPT)("v3-sharegpt-static", STATIC),
    _Sustained("v3 Alpaca, rate at SLO", _FT, 9.5, 15.8, _ALPACA)("v3-alpaca-static", STATIC),
    *_both(_Sustained("v3 ShareGPT, rate at SLO", _VLLM_0_1, None, 18.3, _SHAREGPT), "v3-sharegpt-vllm"),
    *_both(_Sustained("v3 Alpaca, rate at SLO", _VLLM_0_1, None, 31.4, _ALPACA), "v3-alpaca-vllm"),
    *_both(_Sustained("v3, rate at P95 SLO", _VLLM_0_1, None, 17.9, _ALL, TAIL_LATENCY), "v3-vllm-tail"),
    *_both(_Sustained("v3 ShareGPT, rate at SLO", "", 2.0, 4.0, _SHAREGPT), "v3-sharegpt-fcfs"),
    *_both(_Sustained("v3 Alpaca, rate at SLO", "", 1.6, 2.0, _ALPACA), "v3-alpaca-fcfs"),
    *_both(_Sustained("N26, rate at SLO", _VLLM_0_6, None, 6.1, _ALL), "n26-vllm"),
    *_both(_Sustained("N26, rate at P95 SLO", _VLLM_0_6, None, 8.1, _ALL, TAIL_LATENCY), "n26-vllm-tail"),
    *_both(_Sustained("N26 batch 64, rate at SLO", _VLLM_0_6, 1.43, 1.43, ("batch 64",), BATCHES), "n26-batch-64-vllm"),
    *_both(
        _Sustained("N26 batch 128, rate at SLO", _VLLM_0_6, 1.51, 1.51, ("batch 128",), BATCHES), "n26-batch-128-vllm"
    ),
    *_both(_Sustained("N26 batch 64 and 128, rate at SLO", "", 1.2, 1.3, _BATCHED, BATCHES), "n26-batches-fcfs"),
    _Sustained("N26 with chunked prefill, rate at SLO", _VLLM_0_6, 1.5, 1.5, ("per output token",), CHUNKED)(
        "n26-chunked", FCFS_CHUNKED
    ),
    *_both(lambda key, against: _ablation(key, against, 8.9), "ablation-fcfs"),
    _ablation("ablation-mlfq", MLFQ, 1.87),
    _ablation("ablation-fixed-priority", FIXED_PRIORITY, 13.9),
    *_kv("proactive-defer", DEFER, 2.3, 3.5),
    *_kv("proactive-reactive", REACTIVE, 1.4, 1.7),
    *_kv("proactive-recompute", RECOMPUTE, 2.7, 2.7),
    Claim(
        "swap-share",
        "what swapping costs the proactive policy, of all completion times",
        "",
        None,
        0.05,
        SWAPS,
        _swap_share,
        percent=True,
    ),
    Claim("low-load", "low load, mean JCT: no gain", FCFS.label, 1.0, 1.0, SWAPS, _low_load),
    Claim(
        "peak-kv",
        f"peak KV of skip-join at {_PAPERS_RATE_PER_S:g} jobs/s, over FCFS's",
        FCFS.label,
        None,
        7.0,
        PEAK,
        _peak,
    ),
)


def claim_of(key: str) -> Claim:
    """The claim of this key."""
    return next(claim for claim in CLAIMS if claim.key == key)
