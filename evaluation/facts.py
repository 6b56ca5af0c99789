"""What the conclusions state, each fact under the name by which conclusions.md ties a number to it."""

from collections.abc import Callable, Mapping

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
    ours_of_claim,
    papers,
    setting,
    value_at,
)
from evaluation.measures import PER_TOKEN_LIMIT_S, TTFT_LIMIT_S
from evaluation.paper_n26 import BATCHES, CHUNKED, MEAN_LATENCY, PEAK, RATIO, SLO_S, SWAPS
from evaluation.paper_v1 import FIRST_ITERATION, KV_POLICIES, OPT_13B_TIGHT, OVERALL
from evaluation.systems import (
    DEFER,
    FCFS,
    GITTINS,
    GITTINS_CHUNKED,
    LIMIT_OFF,
    LIMIT_PAPER,
    MLFQ,
    MLFQ_KILL,
    REACTIVE,
    RESERVING,
    SKIP_JOIN,
    SKIP_JOIN_CHUNKED,
    SKIP_JOIN_MARGINAL,
    SRPT,
)
from evaluation.values import Figure, System

_JCT, _JCT_P95, _TTFT, _PER_TOKEN = "jct_s.mean", "jct_s.p95", "ttft_s.mean", "per_output_token_s.mean"
_WORST_GAP, _WITHIN, _PEAK_KV = "worst_gap_s.p95", "within_1x", "peak_kv_gb"
_TIMES, _AT_LOAD = "{value:.1f}x", "{value:.1f}x at load {x:g}"
_SOONER = "{value:.1f}x sooner at load {x:g}"
_FCFS_AT_LOAD = "{value:.1f}x FCFS's at load {x:g}"
_SECONDS_AT_LOAD = "{value:.2g} s at load {x:g}"
_LOW_LOADS = (0.0, 0.5)
_GITTINS = "-gittins"
"""Ends the name of a fact about the default policy, where that of the papers' policy has the name without it."""

_RATE, _RATE_P95 = "rate, mean", "rate, P95"
_SHAREGPT = tuple(panel.title for panel in MEAN_LATENCY.panels if "ShareGPT" in panel.title)
_ALPACA = tuple(panel.title for panel in MEAN_LATENCY.panels if "Alpaca" in panel.title)
_BOTH = (*_SHAREGPT, *_ALPACA)
_13B = "OPT-13B, ShareGPT"


def _shorter(
    figure: Figure, panel: str | tuple[str, ...], number: str, than: System = FCFS, ours: System = SKIP_JOIN
) -> ResultLine:
    """How many times as long it takes under `than` as under ours."""
    return ResultLine(figure, (panel,) if isinstance(panel, str) else panel, number, than, ours)


def _longer(
    figure: Figure, panel: str | tuple[str, ...], number: str, than: System = FCFS, ours: System = SKIP_JOIN
) -> ResultLine:
    """How many times as long it takes under ours as under `than`."""
    return ResultLine(figure, (panel,) if isinstance(panel, str) else panel, number, ours, than)


def _of(figure: Figure, panel: str, number: str, system: System) -> ResultLine:
    return ResultLine(figure, (panel,), number, system)


def _both(facts: Callable[[System], Mapping[str, Fact]]) -> Mapping[str, Fact]:
    """The same facts about the papers' policy and, under names of their own, about the default."""
    return {**facts(SKIP_JOIN), **{f"{name}{_GITTINS}": fact for name, fact in facts(GITTINS).items()}}


def _gains(ours: System) -> Mapping[str, Fact]:
    def shorter(figure: Figure, panel: str | tuple[str, ...], number: str) -> ResultLine:
        return _shorter(figure, panel, number, ours=ours)

    rate, bursts, skew = (shorter(OVERALL, f"{axis}, mean", _JCT) for axis in ("rate", "burstiness", "skew"))
    alpaca = shorter(MEAN_LATENCY, _ALPACA, _JCT)
    return {
        "low-loads-same": Always(shorter(MEAN_LATENCY, _BOTH, _JCT), "within 1%", 0.99, 1.01, _LOW_LOADS),
        "zipf-jct-0.8": value_at(rate, 0.8, _AT_LOAD),
        "zipf-jct-1": value_at(rate, 1.0, _AT_LOAD),
        "zipf-jct-most": MostOf(rate, _AT_LOAD),
        "zipf-load-grows": Growing(rate, "with the load"),
        "zipf-theta-most": MostOf(skew, "{value:.1f}x at theta {x:g}"),
        "zipf-cv-1": value_at(bursts, 1.0, "{value:.1f}x at CV {x:g}"),
        "zipf-cv-8": value_at(bursts, 8.0, "{value:.1f}x at CV {x:g}"),
        "little-kv-jct-1": value_at(shorter(KV_POLICIES, "rate", _JCT), 1.0, _TIMES),
        "alpaca-jct-least": LeastOf(alpaca, "{value:.2f}x"),
        "alpaca-jct-most": MostOf(alpaca, "{value:.2f}x"),
        "first-token-0.8-least": LeastOf(shorter(MEAN_LATENCY, _BOTH, _TTFT), _SOONER, (0.8, 0.8)),
        "our-rate": ours_of_claim("v1-rate-fcfs", "{low:.1f}-{high:.1f}x", ours),
    }


_GAINS: Mapping[str, Fact] = {
    **_both(_gains),
    "low-loads-same-span": setting(f"load {_LOW_LOADS[1]:g}"),
    "zipf-srpt-1": value_at(ResultLine(OVERALL, (_RATE,), _JCT, FCFS, SRPT), 1.0, _AT_LOAD),
    "zipf-theta-least": MostOf(_longer(OVERALL, "skew, mean", _JCT), "{value:.1f}x"),
    "zipf-theta-least-gittins": value_at(
        _shorter(OVERALL, "skew, mean", _JCT, ours=GITTINS), 0.6, "{value:.1f}x at theta {x:g}"
    ),
    "capacity": setting("load 1"),
    "little-kv-tokens": setting(f"{OPT_13B_TIGHT.device_tokens:,} tokens"),
    "little-kv-reserves-1": value_at(_shorter(KV_POLICIES, "rate", _JCT, RESERVING), 1.0, _TIMES),
    "first-token-limit": setting(f"{TTFT_LIMIT_S:g} s"),
    "per-token-limit": setting(f"{PER_TOKEN_LIMIT_S:g} s"),
    "sharegpt-within-fcfs": value_at(_of(MEAN_LATENCY, _13B, _WITHIN, FCFS), 0.8, "{value:.0%} at load {x:g}"),
    "sharegpt-within-skip-join": value_at(_of(MEAN_LATENCY, _13B, _WITHIN, SKIP_JOIN), 0.8, "{value:.0%}"),
    "sharegpt-within-gittins": value_at(_of(MEAN_LATENCY, _13B, _WITHIN, GITTINS), 0.8, "{value:.0%}"),
    "sharegpt-no-gain": Always(_shorter(MEAN_LATENCY, _SHAREGPT, _JCT), "nowhere by more than 5%", at_most=1.05),
}


def _costs(ours: System) -> Mapping[str, Fact]:
    def longer(figure: Figure, panel: str | tuple[str, ...], number: str) -> ResultLine:
        return _longer(figure, panel, number, ours=ours)

    return {
        "sharegpt-jct-worst": MostOf(longer(MEAN_LATENCY, _13B, _JCT), "{value:.2f}x"),
        "sharegpt-busy-worst": MostOf(longer(MEAN_LATENCY, _13B, "busy_s"), "{value:.2f}x"),
        "zipf-tail-worst": MostOf(longer(OVERALL, _RATE_P95, _JCT_P95), _FCFS_AT_LOAD),
        "sharegpt-tail-worst": MostOf(longer(MEAN_LATENCY, _13B, _JCT_P95), _FCFS_AT_LOAD),
        "worst-gap-overload": MostOf(_of(MEAN_LATENCY, _13B, _WORST_GAP, ours), _SECONDS_AT_LOAD),
        "peak-kv-1": value_at(longer(MEAN_LATENCY, _13B, _PEAK_KV), 1.0, _FCFS_AT_LOAD),
        "short-outputs-jct": value_at(longer(PEAK, "mean JCT", _JCT), 64.0, "{value:.1f}x FCFS's at {x:g} jobs/s"),
        "first-token-1": value_at(_of(MEAN_LATENCY, _13B, _TTFT, ours), 1.0, "{value:.2g} s"),
    }


_COSTS: Mapping[str, Fact] = {
    **_both(_costs),
    "worst-gap-fcfs": value_at(_of(MEAN_LATENCY, _13B, _WORST_GAP, FCFS), 1.0, "{value:.2g} s"),
    "worst-gap-skip-join": value_at(_of(MEAN_LATENCY, _13B, _WORST_GAP, SKIP_JOIN), 1.0, _SECONDS_AT_LOAD),
    "worst-gap-gittins": value_at(_of(MEAN_LATENCY, _13B, _WORST_GAP, GITTINS), 1.0, "{value:.2g} s"),
    "starvation-limit": setting(f"{SKIP_JOIN.starvation_limit_s:g} s"),
    "upload-share": MostOf(_of(SWAPS, "mean JCT", "upload_share", SKIP_JOIN), "{value:.2%}"),
    "short-outputs": setting(f"{PEAK.panels[0].traffic.lengths.max_output_tokens} tokens"),
}

_CLAIMS: Mapping[str, Fact] = {
    "cv-fails": Judged("v1-cv-fcfs", Verdict.MISSED, "does not hold"),
    "tail-fails": Judged("v1-headline-tail", Verdict.MISSED, "does not hold"),
    "static-rate-verdict": Judged("v1-rate-static", Verdict.MET, "as claimed"),
    "headline-fails": Judged("v1-headline-mean", Verdict.MISSED, "not reached"),
    "papers-headline": papers("v1-headline-mean"),
    "papers-rate": papers("v1-rate-fcfs"),
    "papers-cv": papers("v1-cv-fcfs"),
    "our-cv": ours_of_claim("v1-cv-fcfs", "{low:.1f}-{high:.1f}x"),
    "cv-srpt": MostOf(ResultLine(OVERALL, ("burstiness, mean",), _JCT, FCFS, SRPT), _TIMES),
    "papers-tail": papers("v1-headline-tail"),
    "our-tail": ours_of_claim("v1-headline-tail", "{high:.1f}x"),
    "papers-sustained": papers("v3-sharegpt-fcfs"),
    "our-sustained": ours_of_claim("v3-sharegpt-fcfs", "{low:.2f}-{high:.2f}x"),
    "our-sustained-reserves": ours_of_claim("v3-sharegpt-fcfs-reserves", "{low:.2f}-{high:.2f}x"),
    "slo": setting(f"{SLO_S:g} s"),
    "fcfs-sustained-least": SustainedLoad(MEAN_LATENCY, _SHAREGPT, FCFS, SLO_S, "load {least:.2f}"),
    "papers-static-rate": papers("v1-rate-static"),
    "our-static-rate": ours_of_claim("v1-rate-static", "{low:.1f}-{high:.1f}x"),
    "papers-static-sustained": papers("v3-sharegpt-static"),
    "our-static-sustained": ours_of_claim("v3-sharegpt-static", "{low:.1f}-{high:.1f}x"),
    "papers-defer": papers("proactive-defer"),
    "defer-little-kv": ours_of_claim("proactive-defer-little-kv", "{low:.1f}-{high:.1f}x"),
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
        _shorter(CHARGE, "mean JCT", _JCT, SKIP_JOIN_MARGINAL), "{value:.1f}x as long at load {x:g}"
    ),
    "chunks-skip-join": MostOf(_longer(CHUNKED, "mean JCT", _JCT, SKIP_JOIN_CHUNKED), _AT_LOAD),
    "chunks-gittins": MostOf(_longer(CHUNKED, "mean JCT", _JCT, GITTINS_CHUNKED, GITTINS), _AT_LOAD),
    "chunk-tokens": setting(f"{SKIP_JOIN_CHUNKED.prefill_chunk_tokens} tokens"),
    **{
        f"batch-{batch}": MostOf(_shorter(BATCHES, f"batch {batch}", _PER_TOKEN), f"{{value:.1f}}x at batch {batch}")
        for batch in (16, 64, 128)
    },
}

_RUNS: Mapping[str, Fact] = {
    "simulations": DeclaredFact(lambda evaluation: f"{len(evaluation.measured):,}"),
    "jobs": DeclaredFact(lambda evaluation: f"{evaluation.scale.jobs:,}"),
    "batch": setting(MEAN_LATENCY.panels[0].server.max_batch),
}

FACTS: Mapping[str, Fact] = {**_GAINS, **_COSTS, **_CLAIMS, **_CHOICES, **_RUNS}
