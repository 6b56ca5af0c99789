"""The figures of the NSDI'26 version (PAPER 5: OPT on A100, ShareGPT and Alpaca lengths, Poisson arrivals; latency over
output length against a limit of 0.3 s).
"""

from dataclasses import replace

from evaluation.measures import PER_TOKEN_LIMIT_S, TTFT_LIMIT_S
from evaluation.panel_metrics import JCT, PEAK_KV, PER_TOKEN, PER_TOKEN_P95, QUEUE_SHARE, TIME_SPLIT, WITHIN
from evaluation.paper_v1 import GPT_175B, OPT_13B
from evaluation.ratio_lengths import SHARED_TOKENS
from evaluation.systems import (
    DEFER,
    FCFS,
    FCFS_CHUNKED,
    FIXED_PRIORITY,
    GITTINS,
    GITTINS_CHUNKED,
    MLFQ,
    REACTIVE,
    RECOMPUTE,
    RESERVING,
    SKIP_JOIN,
    SKIP_JOIN_CHUNKED,
    SRPT,
    STATIC,
)
from evaluation.values import Axis, Figure, Lengths, Metric, Panel, PanelKind, Points, Server, System, Traffic
from services.workloads.workload import WorkloadKind

SLO_S = 0.3
"""The limit on latency over output length (PAPER 5)."""
BATCH_SLO_S = 0.05
"""The limit where batches are compared, ours: the papers' is lax for as small a model as has memory for them."""

OPT_2_7B = Server("opt-2.7b-a100-40gb")
OPT_66B = Server("opt-66b-a100-40gb-tp4")
LLAMA_8B = Server("llama-3-8b-a100-40gb")
MODELS = (("OPT-13B", OPT_13B), ("OPT-66B", OPT_66B), ("OPT-175B", GPT_175B))

SHAREGPT = Traffic(Lengths(WorkloadKind.SHAREGPT))
ALPACA = Traffic(Lengths(WorkloadKind.ALPACA))
DATASETS = (("ShareGPT", SHAREGPT), ("Alpaca", ALPACA))
LOADS = Points((0.2, 0.5, 0.8, 1.0, 1.2, 1.5), (1.1, 2.0))

_END_TO_END = (STATIC, FCFS, RESERVING, SKIP_JOIN, GITTINS, SRPT)
_POISSON = "Poisson arrivals"


def _rate_panels(metric: Metric, systems: tuple[System, ...], limit: float | None) -> tuple[Panel, ...]:
    return tuple(
        Panel(f"{model}, {dataset}", Axis.LOAD, LOADS, server, traffic, systems, metric, limit)
        for dataset, traffic in DATASETS
        for model, server in MODELS
    )


QUEUEING = Figure(
    name="n26-01-queueing",
    shows="N26 Fig. 1",
    title="How much of a job's time passes before its first iteration",
    caption=f"OPT-13B on one A100-40GB, batch 16, {_POISSON}.",
    panels=tuple(
        Panel(dataset, Axis.LOAD, LOADS, OPT_13B, traffic, _END_TO_END, QUEUE_SHARE) for dataset, traffic in DATASETS
    ),
)

PEAK = Figure(
    name="n26-08-peak-kv",
    shows="N26 Fig. 8",
    title="OPT-2.7B: KV cache that waits because its jobs were preempted",
    caption="OPT-2.7B, at most 20 output tokens, Gamma arrivals, CV 4, batch 16, KV pools that never fill. The "
    "papers name a rate of 64 jobs/s; the other rates show how much depends on it.",
    panels=(
        Panel(
            "peak KV",
            Axis.RATE,
            Points((16, 32, 48, 64, 96), (128,)),
            replace(OPT_2_7B, device_tokens=4_000_000, host_tokens=4_000_000),
            Traffic(Lengths(WorkloadKind.ZIPF, theta=0.0, max_prompt_tokens=512, max_output_tokens=20), cv=4.0),
            (FCFS, RESERVING, MLFQ, SKIP_JOIN, GITTINS, SRPT),
            PEAK_KV,
        ),
        Panel(
            "mean JCT",
            Axis.RATE,
            Points((16, 32, 48, 64, 96), (128,)),
            replace(OPT_2_7B, device_tokens=4_000_000, host_tokens=4_000_000),
            Traffic(Lengths(WorkloadKind.ZIPF, theta=0.0, max_prompt_tokens=512, max_output_tokens=20), cv=4.0),
            (FCFS, RESERVING, MLFQ, SKIP_JOIN, GITTINS, SRPT),
            JCT,
        ),
    ),
)

MEAN_LATENCY = Figure(
    name="n26-11-mean-latency",
    shows="N26 Fig. 11",
    title="Rate against mean latency per output token",
    caption=f"OPT-13B on 1, OPT-66B and OPT-175B on several A100-40GB (see profiles/), batch 16, {_POISSON}. "
    f"Dotted: the limit of {SLO_S} s.",
    panels=_rate_panels(PER_TOKEN, _END_TO_END, SLO_S),
)

TAIL_LATENCY = replace(
    MEAN_LATENCY,
    name="n26-12-tail-latency",
    shows="N26 Fig. 12",
    title="Rate against P95 latency per output token",
    panels=_rate_panels(PER_TOKEN_P95, _END_TO_END, SLO_S),
)

GOODPUT = Figure(
    name="n26-13-goodput",
    shows="N26 Fig. 13",
    title="Jobs within a limit on the first token and one on the others",
    caption=f"First token within {TTFT_LIMIT_S:g} s, later ones within {PER_TOKEN_LIMIT_S:g} s each on average (our "
    f"own limits; the CSV has them at half, twice and four times that as well). Batch 16, {_POISSON}.",
    panels=_rate_panels(WITHIN, _END_TO_END, None),
)

BATCHES = Figure(
    name="n26-14-large-batches",
    shows="N26 Fig. 14",
    title="Llama-3-8B: larger batches leave less to reorder",
    caption=f"Llama-3-8B on one A100-40GB, which has memory for such batches, ShareGPT lengths, {_POISSON}. Load 1 is "
    f"what FCFS serves with each batch size. Dotted: a limit of our own, {BATCH_SLO_S:g} s.",
    panels=tuple(
        Panel(
            f"batch {batch}",
            Axis.LOAD,
            LOADS,
            replace(LLAMA_8B, max_batch=batch),
            SHAREGPT,
            (FCFS, RESERVING, SKIP_JOIN, GITTINS, SRPT),
            PER_TOKEN,
            BATCH_SLO_S,
            job_factor=max(1, batch // 64),
        )
        for batch in (16, 64, 128)
    ),
)

LLAMA = Figure(
    name="n26-15-llama",
    shows="N26 Fig. 15",
    title="Llama-3-8B: grouped-query attention, little KV per token",
    caption=f"Llama-3-8B on one A100, batch 16, ShareGPT lengths, {_POISSON}.",
    panels=(
        Panel("mean", Axis.LOAD, LOADS, LLAMA_8B, SHAREGPT, _END_TO_END, PER_TOKEN, SLO_S),
        Panel("P95", Axis.LOAD, LOADS, LLAMA_8B, SHAREGPT, _END_TO_END, PER_TOKEN_P95, SLO_S),
        Panel("mean JCT", Axis.LOAD, LOADS, LLAMA_8B, SHAREGPT, _END_TO_END, JCT),
    ),
)

_RATIOS = Points((0.25, 1, 4, 16, 64, 256), (0.5, 2, 8, 32, 128))
_RATIO_TRAFFIC = Traffic(Lengths(WorkloadKind.ZIPF, theta=0.8), cv=1.0, load=1.0)
_RATIO_SYSTEMS = (FCFS, RESERVING, FIXED_PRIORITY, MLFQ, SKIP_JOIN, GITTINS, SRPT)
RATIO = Figure(
    name="n26-16-input-output-ratio",
    shows="N26 Fig. 16",
    title="OPT-13B: skip-join over the ratio of prompt to output lengths",
    caption=f"OPT-13B on one A100-40GB, batch 16, {_POISSON}, load {_RATIO_TRAFFIC.load:g} of FCFS's capacity for the "
    f"lengths of each point. Prompts and outputs are drawn independently from Zipf distributions (theta "
    f"{_RATIO_TRAFFIC.lengths.theta}), {SHARED_TOKENS:,} tokens together at most.",
    panels=(
        Panel("mean JCT", Axis.RATIO, _RATIOS, OPT_13B, _RATIO_TRAFFIC, _RATIO_SYSTEMS, JCT),
        Panel("per output token", Axis.RATIO, _RATIOS, OPT_13B, _RATIO_TRAFFIC, _RATIO_SYSTEMS, PER_TOKEN),
    ),
)

_SWAPS = (FCFS, RESERVING, DEFER, RECOMPUTE, REACTIVE, SKIP_JOIN, GITTINS, SRPT)
SWAPS = Figure(
    name="n26-17-swap-policies",
    shows="N26 Fig. 17",
    title="OPT-13B: policies for KV that does not fit, and where a job's time goes",
    caption=f"OPT-13B on one A100-40GB, batch 16, ShareGPT lengths, {_POISSON}. Right: at the greatest load. A "
    "job's KV is brought back while the job waits; no iteration waits for it.",
    panels=(
        Panel("per output token", Axis.LOAD, LOADS, OPT_13B, SHAREGPT, _SWAPS, PER_TOKEN, SLO_S),
        Panel("mean JCT", Axis.LOAD, LOADS, OPT_13B, SHAREGPT, _SWAPS, JCT),
        Panel("a job's time", Axis.LOAD, LOADS, OPT_13B, SHAREGPT, _SWAPS, TIME_SPLIT, kind=PanelKind.TIME_SPLIT),
    ),
)

_CHUNKED = (FCFS, RESERVING, FCFS_CHUNKED, SKIP_JOIN, SKIP_JOIN_CHUNKED, GITTINS, GITTINS_CHUNKED, SRPT)
CHUNKED = Figure(
    name="n26-18-chunked-prefill",
    shows="N26 Fig. 18",
    title="OPT-13B: against FCFS with chunked prefill",
    caption=f"OPT-13B on one A100-40GB, batch 16, ShareGPT lengths, {_POISSON}, chunks of "
    f"{FCFS_CHUNKED.prefill_chunk_tokens} tokens. FCFS that recomputes is vLLM's order; its engine is not modelled.",
    panels=(
        Panel("per output token", Axis.LOAD, LOADS, OPT_13B, SHAREGPT, _CHUNKED, PER_TOKEN, SLO_S),
        Panel("mean JCT", Axis.LOAD, LOADS, OPT_13B, SHAREGPT, _CHUNKED, JCT),
    ),
)

FIGURES = (
    QUEUEING,
    PEAK,
    MEAN_LATENCY,
    TAIL_LATENCY,
    GOODPUT,
    BATCHES,
    LLAMA,
    RATIO,
    SWAPS,
    CHUNKED,
)
