"""What the conclusions state, each fact under the name by which conclusions.md ties a number to it."""

from collections.abc import Mapping

from evaluation.beyond import CHARGE, STARVATION
from evaluation.claims import Verdict
from evaluation.fact_kinds import (
    Always,
    DeclaredFact,
    Fact,
    Growing,
    Judged,
    LeastOf,
    MostOf,
    ResultLine,
    SustainedLoad,
    ours,
    papers,
    setting,
    value_at,
)
from evaluation.measures import PER_TOKEN_LIMIT_S, TTFT_LIMIT_S
from evaluation.paper_n26 import BATCHES, CHUNKED, MEAN_LATENCY, OPT_66B, PEAK, RATIO, SLO_S, SWAPS
from evaluation.paper_v1 import FIRST_ITERATION, KV_POLICIES, OPT_13B_TIGHT, OVERALL
from evaluation.systems import (
    DEFER,
    FASTSERVE,
    FASTSERVE_CHUNKED,
    FASTSERVE_MARGINAL,
    FCFS,
    LIMIT_OFF,
    LIMIT_PAPER,
    MLFQ,
    MLFQ_KILL,
    REACTIVE,
    SRPT,
)
from evaluation.values import Figure, System
from services.experiments.named_profiles import find_profile

_JCT, _JCT_P95, _TTFT, _PER_TOKEN = "jct_s.mean", "jct_s.p95", "ttft_s.mean", "per_output_token_s.mean"
_WORST_GAP, _WITHIN, _PEAK_KV = "worst_gap_s.p95", "within_1x", "peak_kv_gb"
_TIMES, _AT_LOAD = "{value:.1f}x", "{value:.1f}x at load {x:g}"
_SOONER = "{value:.1f}x sooner at load {x:g}"
_FCFS_AT_LOAD = "{value:.1f}x FCFS's at load {x:g}"
_LOW_LOADS = (0.0, 0.5)

_RATE, _RATE_P95 = "rate, mean", "rate, P95"
_SHAREGPT = tuple(panel.title for panel in MEAN_LATENCY.panels if "ShareGPT" in panel.title)
_ALPACA = tuple(panel.title for panel in MEAN_LATENCY.panels if "Alpaca" in panel.title)
_13B, _66B = "OPT-13B, ShareGPT", "OPT-66B, ShareGPT"


def _shorter(figure: Figure, panel: str | tuple[str, ...], number: str, than: System = FCFS) -> ResultLine:
    """How many times as long it takes under `than` as under FastServe."""
    return ResultLine(figure, (panel,) if isinstance(panel, str) else panel, number, than, FASTSERVE)


def _longer(figure: Figure, panel: str | tuple[str, ...], number: str, than: System = FCFS) -> ResultLine:
    """How many times as long it takes under FastServe as under `than`."""
    return ResultLine(figure, (panel,) if isinstance(panel, str) else panel, number, FASTSERVE, than)


def _of(figure: Figure, panel: str, number: str, system: System) -> ResultLine:
    return ResultLine(figure, (panel,), number, system)


_GAINS: Mapping[str, Fact] = {
    "low-loads-same": Always(_shorter(MEAN_LATENCY, (*_SHAREGPT, *_ALPACA), _JCT), "within 1%", 0.99, 1.01, _LOW_LOADS),
    "low-loads-same-span": setting(f"load {_LOW_LOADS[1]:g}"),
    "first-token-0.8-least": LeastOf(_shorter(MEAN_LATENCY, (*_SHAREGPT, *_ALPACA), _TTFT), _SOONER, (0.8, 0.8)),
    "zipf-jct-0.8": value_at(_shorter(OVERALL, _RATE, _JCT), 0.8, _AT_LOAD),
    "zipf-jct-1": value_at(_shorter(OVERALL, _RATE, _JCT), 1.0, _AT_LOAD),
    "zipf-jct-most": MostOf(_shorter(OVERALL, _RATE, _JCT), _AT_LOAD),
    "zipf-load-grows": Growing(_shorter(OVERALL, _RATE, _JCT), "with the load"),
    "zipf-cv-grows": Growing(_shorter(OVERALL, "burstiness, mean", _JCT), "with the burstiness of arrivals"),
    "zipf-theta-grows": Growing(_shorter(OVERALL, "skew, mean", _JCT), "with the skew of lengths"),
    "zipf-cv-most": MostOf(_shorter(OVERALL, "burstiness, mean", _JCT), "{value:.1f}x at CV {x:g}"),
    "zipf-theta-most": MostOf(_shorter(OVERALL, "skew, mean", _JCT), "{value:.1f}x at theta {x:g}"),
    "zipf-first-token-0.8": value_at(_shorter(OVERALL, _RATE, _TTFT), 0.8, _SOONER),
    "zipf-srpt-1": value_at(ResultLine(OVERALL, (_RATE,), _JCT, FCFS, SRPT), 1.0, _AT_LOAD),
    "capacity": setting("load 1"),
    "little-kv-tokens": setting(f"{OPT_13B_TIGHT.device_tokens:,} tokens"),
    "little-kv-jct-0.8": value_at(_shorter(KV_POLICIES, "rate", _JCT), 0.8, _AT_LOAD),
    "little-kv-jct-most": MostOf(_shorter(KV_POLICIES, "rate", _JCT), _AT_LOAD),
    "little-kv-first-token-0.8": value_at(_shorter(KV_POLICIES, "rate", _TTFT), 0.8, _SOONER),
    "sharegpt-first-token-0.8": value_at(_shorter(MEAN_LATENCY, _13B, _TTFT), 0.8, _SOONER),
    "first-token-limit": setting(f"{TTFT_LIMIT_S:g} s"),
    "per-token-limit": setting(f"{PER_TOKEN_LIMIT_S:g} s"),
    "sharegpt-within-fcfs": value_at(_of(MEAN_LATENCY, _13B, _WITHIN, FCFS), 0.8, "{value:.0%}"),
    "sharegpt-within-fastserve": value_at(
        _of(MEAN_LATENCY, _13B, _WITHIN, FASTSERVE), 0.8, "{value:.0%} at load {x:g}"
    ),
    "sharegpt-others-no-gain": Always(
        _shorter(MEAN_LATENCY, tuple(title for title in _SHAREGPT if title != _66B), _JCT), "only on OPT-66B", 0.0, 1.01
    ),
    "opt-66b-jct-1": value_at(_shorter(MEAN_LATENCY, _66B, _JCT), 1.0, _AT_LOAD),
    "opt-66b-kv": DeclaredFact(lambda _: f"{find_profile(OPT_66B.profile).device_kv_tokens:,} tokens"),
    "alpaca-jct-least": LeastOf(_shorter(MEAN_LATENCY, _ALPACA, _JCT), "{value:.2f}x"),
    "alpaca-jct-most": MostOf(_shorter(MEAN_LATENCY, _ALPACA, _JCT), "{value:.2f}x"),
    "alpaca-per-token-most": MostOf(_shorter(MEAN_LATENCY, _ALPACA, _PER_TOKEN), _TIMES),
}

_COSTS: Mapping[str, Fact] = {
    "sharegpt-jct-1": value_at(_longer(MEAN_LATENCY, _13B, _JCT), 1.0, "{value:.1f}x the baseline's at load {x:g}"),
    "sharegpt-jct-worst": MostOf(_longer(MEAN_LATENCY, _13B, _JCT), _AT_LOAD),
    "sharegpt-busy-worst": MostOf(_longer(MEAN_LATENCY, _13B, "busy_s"), _TIMES),
    "zipf-tail-worst": MostOf(_longer(OVERALL, _RATE_P95, _JCT_P95), _FCFS_AT_LOAD),
    "sharegpt-tail-1": value_at(_longer(MEAN_LATENCY, _13B, _JCT_P95), 1.0, _FCFS_AT_LOAD),
    "sharegpt-tail-worst": MostOf(_longer(MEAN_LATENCY, _13B, _JCT_P95), _AT_LOAD),
    "worst-gap-fcfs": value_at(_of(MEAN_LATENCY, _13B, _WORST_GAP, FCFS), 1.0, "{value:.2g} s"),
    "worst-gap-fastserve": value_at(_of(MEAN_LATENCY, _13B, _WORST_GAP, FASTSERVE), 1.0, "{value:.2g} s at load {x:g}"),
    "worst-gap-overload": MostOf(_of(MEAN_LATENCY, _13B, _WORST_GAP, FASTSERVE), "{value:.2g} s at load {x:g}"),
    "starvation-limit": setting(f"{FASTSERVE.starvation_limit_s:g} s"),
    "peak-kv-1": value_at(_longer(MEAN_LATENCY, _13B, _PEAK_KV), 1.0, _FCFS_AT_LOAD),
    "upload-share": MostOf(_of(SWAPS, "mean JCT", "upload_share", FASTSERVE), "{value:.2%}"),
    "zipf-theta-least": MostOf(_longer(OVERALL, "skew, mean", _JCT), "{value:.1f}x FCFS's at theta {x:g}"),
    "short-outputs": setting(f"{PEAK.panels[0].traffic.lengths.max_output_tokens} tokens"),
    "short-outputs-jct": value_at(_longer(PEAK, "mean JCT", _JCT), 64.0, "{value:.1f}x FCFS's at {x:g} jobs/s"),
}

_CLAIMS: Mapping[str, Fact] = {
    "rate-holds": Judged("v1-rate-fcfs", Verdict.MET, "holds"),
    "cv-fails": Judged("v1-cv-fcfs", Verdict.MISSED, "does not hold"),
    "tail-fails": Judged("v1-headline-tail", Verdict.MISSED, "does not hold"),
    "static-rate-holds": Judged("v1-rate-static", Verdict.MET, "as claimed over rates"),
    "headline-fails": Judged("v1-headline-mean", Verdict.MISSED, "not reached"),
    "papers-headline": papers("v1-headline-mean"),
    "papers-rate": papers("v1-rate-fcfs"),
    "our-rate": ours("v1-rate-fcfs", "{low:.1f}-{high:.1f}x"),
    "papers-cv": papers("v1-cv-fcfs"),
    "our-cv": ours("v1-cv-fcfs", "{low:.1f}-{high:.1f}x"),
    "cv-srpt": MostOf(ResultLine(OVERALL, ("burstiness, mean",), _JCT, FCFS, SRPT), _TIMES),
    "papers-tail": papers("v1-headline-tail"),
    "our-tail": ours("v1-headline-tail", "{high:.1f}x"),
    "papers-sustained": papers("v3-sharegpt-fcfs"),
    "our-sustained": ours("v3-sharegpt-fcfs", "{low:.2f}-{high:.2f}x"),
    "slo": setting(f"{SLO_S:g} s"),
    "fcfs-sustained-least": SustainedLoad(MEAN_LATENCY, _SHAREGPT, FCFS, SLO_S, "load {least:.2f}"),
    "papers-static-rate": papers("v1-rate-static"),
    "our-static-rate": ours("v1-rate-static", "{low:.1f}-{high:.1f}x"),
    "papers-static-sustained": papers("v3-sharegpt-static"),
    "our-static-sustained": ours("v3-sharegpt-static", "{low:.1f}-{high:.1f}x"),
    "papers-defer": papers("proactive-defer"),
    "defer-little-kv": ours("proactive-defer-little-kv", "{low:.1f}-{high:.1f}x"),
    "defer-sharegpt": MostOf(_longer(SWAPS, "mean JCT", _JCT, DEFER), "{value:.1f}x that of deferring at load {x:g}"),
    "papers-reactive": papers("proactive-reactive"),
    "reactive-same": Always(_shorter(SWAPS, "mean JCT", _JCT, REACTIVE), "within 4%", 0.96, 1.04),
    "reactive-no-stall": Always(
        _of(SWAPS, "mean JCT", "stall_s", REACTIVE), "no iteration waits for a copy", at_most=0.0
    ),
    "papers-mlfq": papers("ablation-mlfq"),
    "mlfq-equal-lengths": MostOf(_shorter(FIRST_ITERATION, "rate", _JCT, MLFQ), "{value:.2f}x"),
    "mlfq-long-prompts": MostOf(_shorter(RATIO, "mean JCT", _JCT, MLFQ), "{value:.1f}x at a ratio of {x:g}"),
    "mlfq-kill": MostOf(_shorter(FIRST_ITERATION, "rate", _JCT, MLFQ_KILL), _TIMES),
}

_CHOICES: Mapping[str, Fact] = {
    "paper-limit": setting(f"{(LIMIT_PAPER.starvation_limit_s or 0) * 1000:g} ms"),
    "paper-limit-jct": MostOf(_shorter(STARVATION, "ShareGPT", _JCT, LIMIT_PAPER), _TIMES),
    "paper-limit-tail": MostOf(_longer(STARVATION, "little KV, P95", _JCT_P95, LIMIT_PAPER), _TIMES),
    "no-promotion-sharegpt": MostOf(_longer(STARVATION, "ShareGPT", _JCT, LIMIT_OFF), _TIMES),
    "no-promotion-little-kv": MostOf(_shorter(STARVATION, "little KV, mean", _JCT, LIMIT_OFF), _TIMES),
    "marginal-charge": MostOf(
        _shorter(CHARGE, "mean JCT", _JCT, FASTSERVE_MARGINAL), "{value:.1f}x as long at load {x:g}"
    ),
    "chunks-fastserve": MostOf(_longer(CHUNKED, "mean JCT", _JCT, FASTSERVE_CHUNKED), _AT_LOAD),
    "chunk-tokens": setting(f"{FASTSERVE_CHUNKED.prefill_chunk_tokens} tokens"),
    **{
        f"batch-{batch}": MostOf(_shorter(BATCHES, f"batch {batch}", _PER_TOKEN), f"{{value:.1f}}x at batch {batch}")
        for batch in (16, 64, 128)
    },
}

_RUNS: Mapping[str, Fact] = {
    "simulations": DeclaredFact(lambda evaluation: f"{len(evaluation.measured):,}"),
    "jobs": DeclaredFact(lambda evaluation: f"{evaluation.scale.jobs:,}"),
    "seeds": DeclaredFact(lambda evaluation: str(len(evaluation.scale.seeds))),
    "batch": setting(MEAN_LATENCY.panels[0].server.max_batch),
}

FACTS: Mapping[str, Fact] = {**_GAINS, **_COSTS, **_CLAIMS, **_CHOICES, **_RUNS}
