"""What the papers claim (PAPER 6), one row each: the papers' number, which was typed, and how ours is read.

A range's `low` is None where the papers say "up to". Where an ablation of theirs has two figures here, it has two rows.
"""

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
from evaluation.systems import DEFER, FASTSERVE, FCFS, FCFS_CHUNKED, FIXED_PRIORITY, MLFQ, REACTIVE, RECOMPUTE, STATIC
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
    `against` is the system that stands for it here.
    """

    key: str
    where: str
    against: str
    low: float | None
    high: float
    figure: Figure
    reading: Reading
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

    def ours(self, evaluation: Evaluation) -> Finding | None:
        """None where the figure was not run."""
        return self.reading(evaluation) if evaluation.has(self.figure.name) else None

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


def _overall(key: str, panel: str, low: float, high: float) -> Claim:
    reading = gain_range(Comparison(((OVERALL, f"{panel}, mean"),), FCFS, FASTSERVE))
    return Claim(f"v1-{key}", f"v1 {panel} sweep, mean JCT", FCFS.label, low, high, OVERALL, reading, _ORCA)


def _static(key: str, panel: str, low: float, high: float) -> Claim:
    reading = gain_range(Comparison(((STATIC_LOADS, panel),), STATIC, FASTSERVE), kept_by=STATIC)
    return Claim(f"v1-{key}", f"v1 {panel} sweep, mean JCT", STATIC.label, low, high, STATIC_LOADS, reading, _FT)


def _sustained(
    key: str,
    where: str,
    against: System,
    engine: str,
    low: float | None,
    high: float,
    titles: tuple[str, ...],
    figure: Figure = MEAN_LATENCY,
) -> Claim:
    limit_s = BATCH_SLO_S if figure is BATCHES else SLO_S
    compares = Comparison(tuple((figure, title) for title in titles), against, FASTSERVE)
    return Claim(key, where, against.label, low, high, figure, sustained_gain(compares, limit_s), engine)


def _headline(key: str, where: str, high: float, statistic: str) -> Claim:
    panels = tuple((OVERALL, f"{panel}, {statistic}") for panel in ("rate", "burstiness", "skew"))
    reading = greatest_gain(Comparison(panels, FCFS, FASTSERVE))
    return Claim(key, where, FCFS.label, None, high, OVERALL, reading, _ORCA)


def _ablation(key: str, against: System, high: float) -> Claim:
    reading = greatest_gain(Comparison(((RATIO, "mean JCT"), (RATIO, "per output token")), against, FASTSERVE))
    where = "ablation over input/output ratios: skip-join"
    return Claim(key, where, against.label, None, high, RATIO, reading)


def _kv(key: str, against: System, low: float, high: float) -> tuple[Claim, Claim]:
    def claim(suffix: str, figure: Figure, panel: str, what: str) -> Claim:
        reading = gain_range(Comparison(((figure, panel),), against, FASTSERVE))
        where = f"ablation: proactive, mean JCT, {what}"
        return Claim(f"{key}{suffix}", where, against.label, low, high, figure, reading)

    return (
        claim("", SWAPS, "mean JCT", "ShareGPT lengths"),
        claim("-little-kv", KV_POLICIES, "rate", "Zipf lengths, little KV"),
    )


_PAPERS_RATE_PER_S = 64.0
_LOW = Comparison(((SWAPS, "mean JCT"),), FCFS, FASTSERVE)
_PEAKS = Comparison(((PEAK, "peak KV"),), FASTSERVE, FCFS, PEAK_KV.name)

CLAIMS: tuple[Claim, ...] = (
    _static("rate-static", "rate", 1.9, 11.4),
    _overall("rate-fcfs", "rate", 1.0, 4.3),
    _static("cv-static", "burstiness", 7.4, 12.2),
    _overall("cv-fcfs", "burstiness", 2.3, 5.1),
    _static("theta-static", "skew", 3.6, 10.6),
    _overall("theta-fcfs", "skew", 1.9, 3.9),
    _headline("v1-headline-mean", "v1 headline, mean JCT", 5.1, "mean"),
    _headline("v1-headline-tail", "v1 headline, tail (P95) of JCT", 6.4, "P95"),
    _sustained("v3-sharegpt-static", "v3 ShareGPT, rate at SLO", STATIC, _FT, 31.5, 74.9, _SHAREGPT),
    _sustained("v3-alpaca-static", "v3 Alpaca, rate at SLO", STATIC, _FT, 9.5, 15.8, _ALPACA),
    _sustained("v3-sharegpt-vllm", "v3 ShareGPT, rate at SLO", FCFS, _VLLM_0_1, None, 18.3, _SHAREGPT),
    _sustained("v3-alpaca-vllm", "v3 Alpaca, rate at SLO", FCFS, _VLLM_0_1, None, 31.4, _ALPACA),
    _sustained(
        "v3-vllm-tail", "v3, rate at P95 SLO", FCFS, _VLLM_0_1, None, 17.9, (*_SHAREGPT, *_ALPACA), TAIL_LATENCY
    ),
    _sustained("v3-sharegpt-fcfs", "v3 ShareGPT, rate at SLO", FCFS, "", 2.0, 4.0, _SHAREGPT),
    _sustained("v3-alpaca-fcfs", "v3 Alpaca, rate at SLO", FCFS, "", 1.6, 2.0, _ALPACA),
    _sustained("n26-vllm", "N26, rate at SLO", FCFS, _VLLM_0_6, None, 6.1, (*_SHAREGPT, *_ALPACA)),
    _sustained(
        "n26-vllm-tail", "N26, rate at P95 SLO", FCFS, _VLLM_0_6, None, 8.1, (*_SHAREGPT, *_ALPACA), TAIL_LATENCY
    ),
    _sustained("n26-batch-64-vllm", "N26 batch 64, rate at SLO", FCFS, _VLLM_0_6, 1.43, 1.43, ("batch 64",), BATCHES),
    _sustained(
        "n26-batch-128-vllm", "N26 batch 128, rate at SLO", FCFS, _VLLM_0_6, 1.51, 1.51, ("batch 128",), BATCHES
    ),
    _sustained(
        "n26-batches-fcfs", "N26 batch 64 and 128, rate at SLO", FCFS, "", 1.2, 1.3, ("batch 64", "batch 128"), BATCHES
    ),
    _sustained(
        "n26-chunked",
        "N26 with chunked prefill, rate at SLO",
        FCFS_CHUNKED,
        _VLLM_0_6,
        1.5,
        1.5,
        ("per output token",),
        CHUNKED,
    ),
    _ablation("ablation-fcfs", FCFS, 8.9),
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
        greatest_share(SWAPS, "mean JCT", FASTSERVE, "upload_share"),
        percent=True,
    ),
    Claim(
        "low-load",
        "low load, mean JCT: no gain",
        FCFS.label,
        1.0,
        1.0,
        SWAPS,
        single(_LOW, LOADS.main[0]),
    ),
    Claim(
        "peak-kv",
        f"peak KV of skip-join at {_PAPERS_RATE_PER_S:g} jobs/s, over FCFS's",
        FCFS.label,
        None,
        7.0,
        PEAK,
        single(_PEAKS, _PAPERS_RATE_PER_S),
    ),
)


def claim_of(key: str) -> Claim:
    """The claim of this key."""
    return next(claim for claim in CLAIMS if claim.key == key)
