"""The figures of the paper's first version (PAPER 5: GPT-175B on 16 A100 for all of it, one A100 for design choices;
Zipf lengths, Gamma arrivals).
"""

from dataclasses import replace

from evaluation.panel_metrics import JCT, JCT_P95, PER_TOKEN
from evaluation.systems import (
    DEFER,
    FCFS,
    GITTINS,
    MLFQ,
    MLFQ_KILL,
    REACTIVE,
    RECOMPUTE,
    RESERVING,
    SKIP_JOIN,
    SRPT,
    STATIC,
)
from evaluation.values import Axis, Figure, Lengths, Metric, Panel, Points, Server, System, Traffic
from services.workloads.workload import WorkloadKind

GPT_175B = Server("opt-175b-a100-40gb-tp8-pp2")
OPT_13B = Server("opt-13b-a100-40gb")
OPT_13B_TIGHT = replace(OPT_13B, device_tokens=3_500)
"""A pool that a few long jobs fill: what KV policies are for."""

ZIPF = Lengths(WorkloadKind.ZIPF, theta=1.4, max_prompt_tokens=512, max_output_tokens=512)
BURSTY = Traffic(ZIPF, cv=4.0, load=0.9)
LOADS = Points((0.3, 0.6, 0.8, 1.0, 1.3), (0.9, 1.15, 1.6))
CVS = Points((1.0, 2.0, 4.0, 8.0), (3.0, 6.0))
THETAS = Points((0.6, 1.0, 1.4, 1.8), (0.8, 1.2, 1.6))
LOW_LOADS = Points((0.02, 0.04, 0.06, 0.08))
"""What static batches can serve of the bursty Zipf workload: about a tenth of what FCFS can."""

LOW = replace(BURSTY, load=0.05)


def bursty_panel(
    title: str,
    axis: Axis,
    points: Points,
    server: Server,
    systems: tuple[System, ...],
    metric: Metric,
    traffic: Traffic = BURSTY,
) -> Panel:
    """A sweep around the bursty Zipf workload, of thrice the scale's jobs: their outputs are short but for a few."""
    return Panel(title, axis, points, server, traffic, systems, metric, job_factor=3)


_END_TO_END = (STATIC, FCFS, RESERVING, SKIP_JOIN, GITTINS, SRPT)
_FIRST_ITERATION = (FCFS, RESERVING, MLFQ_KILL, MLFQ, SKIP_JOIN, GITTINS, SRPT)
_BY_KV = (FCFS, RESERVING, DEFER, RECOMPUTE, REACTIVE, SKIP_JOIN, GITTINS, SRPT)
_UNLESS_SWEPT = (
    f"Batch 16, Gamma arrivals, Zipf lengths of prompts and outputs, 1 to {ZIPF.max_output_tokens} tokens; "
    f"unless swept: load {BURSTY.load} of FCFS's capacity, CV {BURSTY.cv:g}, theta {ZIPF.theta}."
)

OVERALL = Figure(
    name="v1-09-overall",
    shows="v1 Fig. 9",
    title="GPT-175B: completion times over rate, burstiness and skew",
    caption=f"GPT-175B on 16 A100-40GB. {_UNLESS_SWEPT}",
    panels=(
        bursty_panel("rate, mean", Axis.LOAD, LOADS, GPT_175B, _END_TO_END, JCT),
        bursty_panel("burstiness, mean", Axis.CV, CVS, GPT_175B, _END_TO_END, JCT),
        bursty_panel("skew, mean", Axis.THETA, THETAS, GPT_175B, _END_TO_END, JCT),
        bursty_panel("rate, P95", Axis.LOAD, LOADS, GPT_175B, _END_TO_END, JCT_P95),
        bursty_panel("burstiness, P95", Axis.CV, CVS, GPT_175B, _END_TO_END, JCT_P95),
        bursty_panel("skew, P95", Axis.THETA, THETAS, GPT_175B, _END_TO_END, JCT_P95),
    ),
)

STATIC_LOADS = Figure(
    name="v1-09-static-batches",
    shows="v1 Fig. 9, at loads that static batches can serve",
    title="GPT-175B: against static batches, where they keep up",
    caption="GPT-175B on 16 A100-40GB, the jobs of v1-09-overall at loads that are low enough for static batches to "
    "keep up. Batch 16, Gamma arrivals, Zipf lengths of prompts and outputs, 1 to "
    f"{ZIPF.max_output_tokens} tokens; unless swept: load {LOW.load} of FCFS's capacity, CV {LOW.cv:g}, theta "
    f"{ZIPF.theta}.",
    panels=(
        bursty_panel("rate", Axis.LOAD, LOW_LOADS, GPT_175B, _END_TO_END, JCT, LOW),
        bursty_panel("burstiness", Axis.CV, Points((1.0, 4.0, 8.0)), GPT_175B, _END_TO_END, JCT, LOW),
        bursty_panel("skew", Axis.THETA, Points((0.6, 1.0, 1.4, 1.8)), GPT_175B, _END_TO_END, JCT, LOW),
    ),
)

FIRST_ITERATION = Figure(
    name="v1-10-first-iteration",
    shows="v1 Fig. 10",
    title="OPT-13B: what to do with a first iteration that exceeds the top quantum",
    caption=f"OPT-13B on one A100-40GB. {_UNLESS_SWEPT}",
    panels=(
        bursty_panel("rate", Axis.LOAD, LOADS, OPT_13B, _FIRST_ITERATION, JCT),
        bursty_panel("skew", Axis.THETA, THETAS, OPT_13B, _FIRST_ITERATION, JCT),
    ),
)

KV_POLICIES = Figure(
    name="v1-11-kv-policies",
    shows="v1 Fig. 11",
    title="OPT-13B, little memory: what to do when KV does not fit",
    caption=f"OPT-13B on one A100-40GB with room for {OPT_13B_TIGHT.device_tokens:,} tokens of KV. {_UNLESS_SWEPT} "
    "Reserving and deferring know each job's true length. Only the proactive policy keeps slots idle.",
    panels=(
        bursty_panel("rate", Axis.LOAD, LOADS, OPT_13B_TIGHT, _BY_KV, JCT),
        bursty_panel("burstiness", Axis.CV, Points((1.0, 4.0, 8.0), (2.0,)), OPT_13B_TIGHT, _BY_KV, JCT),
        bursty_panel("idle slots", Axis.IDLE_SLOTS, Points((0, 4, 8, 16), (2, 32)), OPT_13B_TIGHT, _BY_KV, JCT),
    ),
)

STAGES = Figure(
    name="v1-12-pipeline",
    shows="v1 Fig. 12, in part",
    title="GPT-175B on 16 GPUs: more pipeline stages, more batches in flight",
    caption="The same 16 A100-40GB and the same time of an iteration from the first stage to the last, cut into "
    "pipeline stages. How tensor parallelism changes that time is not modelled. Load 1 is what FCFS serves with each "
    f"layout. {_UNLESS_SWEPT}",
    panels=(
        bursty_panel("mean JCT", Axis.STAGES, Points((1, 2, 4), (8,)), GPT_175B, _END_TO_END, JCT),
        bursty_panel("per output token", Axis.STAGES, Points((1, 2, 4), (8,)), GPT_175B, _END_TO_END, PER_TOKEN),
    ),
)

QUANTA = Figure(
    name="v1-quantum-ratio",
    shows="v1, quantum ratios",
    title="OPT-13B: the ratio of one level's quantum to the next",
    caption=f"OPT-13B on one A100-40GB. {_UNLESS_SWEPT} Only MLFQ policies have quanta.",
    panels=(
        bursty_panel("mean", Axis.QUANTUM_RATIO, Points((2, 4, 16), (8,)), OPT_13B, (FCFS, SKIP_JOIN, SRPT), JCT),
        bursty_panel("P95", Axis.QUANTUM_RATIO, Points((2, 4, 16), (8,)), OPT_13B, (FCFS, SKIP_JOIN, SRPT), JCT_P95),
    ),
)

FIGURES = (OVERALL, STATIC_LOADS, FIRST_ITERATION, KV_POLICIES, STAGES, QUANTA)
