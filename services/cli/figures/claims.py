"""What the papers claim (PAPER 6), one row each: the only numbers of the report that were typed, and how ours are read.

A range's `low` is None where the papers say "up to".
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from services.cli.figures.evaluation import Evaluation
from services.cli.figures.findings import (
    Finding,
    Reading,
    gain_range,
    greatest_gain,
    greatest_share,
    single,
    sustained_gain,
)
from services.cli.figures.interpolation import Bound
from services.cli.figures.metrics import JCT_P95, PEAK_KV
from services.cli.figures.paper_n26 import (
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
from services.cli.figures.paper_v1 import KV_POLICIES, OVERALL
from services.cli.figures.systems import (
    DEFER,
    FASTSERVE,
    FCFS,
    FCFS_CHUNKED,
    FIXED_PRIORITY,
    MLFQ,
    REACTIVE,
    RECOMPUTE,
    SRPT,
    STATIC,
)
from services.cli.figures.values import Figure, System


class Verdict(StrEnum):
    """Ours beside the papers' range."""

    WITHIN = "within the papers' range"
    SMALLER = "smaller than the papers'"
    LARGER = "larger than the papers'"
    OPEN = "not decided by the rates that were run"


@dataclass(frozen=True, slots=True)
class Claim:
    """One number of the papers. `engine` names the other engine that it compares with, "" for the same engine.

    `bound`: what the oracle reaches. `overload`: how much longer than FCFS the system compared with works on the same
    jobs, where it can't keep up. `note`: what the runs tell of a smaller gain. `limit_s`: of sustained rates.
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
    bound: Reading | None = None
    overload: Reading | None = None
    note: Callable[[Evaluation], str] | None = None
    limit_s: float = SLO_S

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
        """Ranges that overlap agree. A bound that was only reached from one side decides where it is beyond."""
        low, high = finding.low, finding.high
        if high.bound is Bound.OPEN or low.bound is Bound.OPEN:
            return Verdict.OPEN
        if self.percent:
            return Verdict.WITHIN if high.value < self.high else Verdict.LARGER
        floor = self.high if self.low is None else self.low
        # One decimal is what the papers give.
        if round(high.value, 1) < round(floor, 1):
            return Verdict.OPEN if high.bound is Bound.AT_LEAST else Verdict.SMALLER
        if round(low.value, 1) > round(self.high, 1):
            return Verdict.OPEN if low.bound is Bound.AT_MOST else Verdict.LARGER
        return Verdict.WITHIN


_MODELS = ("OPT-13B", "OPT-66B", "OPT-175B")
_SHAREGPT = tuple(f"{model}, ShareGPT" for model in _MODELS)
_ALPACA = tuple(f"{model}, Alpaca" for model in _MODELS)
_FT, _ORCA, _VLLM_0_1, _VLLM_0_6 = "FasterTransformer", "Orca", "vLLM 0.1.7", "vLLM 0.6.1"


def _overall(key: str, panel: str, against: System, engine: str, low: float, high: float) -> Claim:
    where = f"v1 {panel} sweep, mean JCT"
    reading = gain_range(OVERALL, f"{panel}, mean", against, FASTSERVE)
    bound = gain_range(OVERALL, f"{panel}, mean", against, SRPT)
    overload = gain_range(OVERALL, f"{panel}, mean", STATIC, FCFS, "duration_s") if against == STATIC else None
    return Claim(f"v1-{key}", where, against.label, low, high, OVERALL, reading, engine, bound=bound, overload=overload)


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
    reading = sustained_gain(figure, titles, against, FASTSERVE, limit_s)
    return Claim(key, where, against.label, low, high, figure, reading, engine, limit_s=limit_s)


def _headline(key: str, where: str, high: float, number: str) -> Claim:
    panels = tuple((OVERALL, f"{panel}, mean") for panel in ("rate", "burstiness", "skew"))
    return Claim(key, where, FCFS.label, None, high, OVERALL, greatest_gain(panels, FCFS, FASTSERVE, number), _ORCA)


def _ablation(key: str, against: System, high: float) -> Claim:
    panels = ((RATIO, "mean JCT"), (RATIO, "per output token"))
    reading = greatest_gain(panels, against, FASTSERVE)
    bound = greatest_gain(panels, against, SRPT)
    where = "ablation over input/output ratios: skip-join"
    return Claim(key, where, against.label, None, high, RATIO, reading, bound=bound)


def _stalled(evaluation: Evaluation) -> str:
    panel = KV_POLICIES.panel("rate")
    pairs = zip(
        evaluation.points(panel, REACTIVE, "stall_s"), evaluation.points(panel, REACTIVE, "duration_s"), strict=True
    )
    share = max(stall.mean / duration.mean for stall, duration in pairs)
    return (
        f"With reactive swapping iterations wait for copies {share:.1%} of the time at most: other jobs run meanwhile."
    )


def _recomputed(evaluation: Evaluation) -> str:
    busy = gain_range(KV_POLICIES, "rate", RECOMPUTE, FASTSERVE, "busy_s")(evaluation)
    return f"Recomputing takes at most {max(busy.high.value - 1, 0.0):.1%} more computing here."


def _kv(key: str, against: System, low: float, high: float, note: Callable[[Evaluation], str] | None = None) -> Claim:
    reading = gain_range(KV_POLICIES, "rate", against, FASTSERVE)
    return Claim(key, "ablation: proactive, mean JCT", against.label, low, high, KV_POLICIES, reading, note=note)


CLAIMS: tuple[Claim, ...] = (
    _overall("rate-static", "rate", STATIC, _FT, 1.9, 11.4),
    _overall("rate-fcfs", "rate", FCFS, _ORCA, 1.0, 4.3),
    _overall("cv-static", "burstiness", STATIC, _FT, 7.4, 12.2),
    _overall("cv-fcfs", "burstiness", FCFS, _ORCA, 2.3, 5.1),
    _overall("theta-static", "skew", STATIC, _FT, 3.6, 10.6),
    _overall("theta-fcfs", "skew", FCFS, _ORCA, 1.9, 3.9),
    _headline("v1-headline-mean", "v1 headline, mean JCT", 5.1, "jct_s.mean"),
    _headline("v1-headline-tail", "v1 headline, tail (P95) of JCT", 6.4, JCT_P95.name),
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
    _kv("proactive-defer", DEFER, 2.3, 3.5),
    _kv("proactive-reactive", REACTIVE, 1.4, 1.7, _stalled),
    _kv("proactive-recompute", RECOMPUTE, 2.7, 2.7, _recomputed),
    Claim(
        "swap-share",
        "what swapping costs the proactive policy, of the time",
        "",
        None,
        0.05,
        SWAPS,
        greatest_share(SWAPS, "per output token", FASTSERVE, "swap_share"),
        percent=True,
    ),
    Claim(
        "low-load",
        "low load, mean JCT: no gain",
        FCFS.label,
        1.0,
        1.0,
        SWAPS,
        single(SWAPS, "mean JCT", FCFS, FASTSERVE, LOADS.main[0]),
    ),
    Claim(
        "peak-kv",
        "peak KV of skip-join at 64 jobs/s, over FCFS's",
        FCFS.label,
        None,
        7.0,
        PEAK,
        single(PEAK, "peak KV", FASTSERVE, FCFS, 64.0, PEAK_KV.name),
    ),
)
