"""What the papers leave out: the starvation limit, what a job is charged (PAPER 7), how far the levels reach."""

from dataclasses import replace

from evaluation.panel_metrics import JCT, JCT_P95, PER_TOKEN, WORST_GAP_P95
from evaluation.paper_n26 import LOADS as POISSON_LOADS
from evaluation.paper_n26 import SHAREGPT, SLO_S
from evaluation.paper_v1 import BURSTY, LOADS, OPT_13B, OPT_13B_TIGHT, bursty_panel
from evaluation.systems import FCFS, LIMIT_3S, LIMIT_OFF, LIMIT_PAPER, SKIP_JOIN, SKIP_JOIN_MARGINAL, SRPT
from evaluation.values import Axis, Figure, Panel

_LIMITS = (FCFS, LIMIT_PAPER, LIMIT_3S, SKIP_JOIN, LIMIT_OFF, SRPT)
_CHARGES = (FCFS, SKIP_JOIN, SKIP_JOIN_MARGINAL, SRPT)

STARVATION = Figure(
    name="beyond-starvation-limit",
    shows="not in the papers",
    title="OPT-13B: how long a job may starve before it is promoted",
    caption=f"OPT-13B on one A100-40GB, batch 16. Left: ShareGPT lengths, Poisson arrivals. Others: room for "
    f"{OPT_13B_TIGHT.device_tokens:,} tokens of KV, Zipf lengths (theta {BURSTY.lengths.theta}), Gamma arrivals (CV "
    f"{BURSTY.cv:g}). The papers' limit is 300 ms.",
    panels=(
        Panel("ShareGPT", Axis.LOAD, POISSON_LOADS, OPT_13B, SHAREGPT, _LIMITS, PER_TOKEN, SLO_S),
        bursty_panel("little KV, mean", Axis.LOAD, LOADS, OPT_13B_TIGHT, _LIMITS, JCT),
        bursty_panel("little KV, P95", Axis.LOAD, LOADS, OPT_13B_TIGHT, _LIMITS, JCT_P95),
    ),
)

CHARGE = Figure(
    name="beyond-charge",
    shows="not in the papers",
    title="OPT-13B: charge each job the whole iteration, or its own part of it",
    caption="OPT-13B on one A100-40GB, batch 16, ShareGPT lengths, Poisson arrivals.",
    panels=(
        Panel("mean JCT", Axis.LOAD, POISSON_LOADS, OPT_13B, SHAREGPT, _CHARGES, JCT),
        Panel("per output token", Axis.LOAD, POISSON_LOADS, OPT_13B, SHAREGPT, _CHARGES, PER_TOKEN, SLO_S),
        Panel("worst gaps, P95", Axis.LOAD, POISSON_LOADS, OPT_13B, SHAREGPT, _CHARGES, WORST_GAP_P95),
    ),
)

_LEVELS = (FCFS, SKIP_JOIN, LIMIT_OFF, SRPT)
_LONG_CONTEXT_TOKENS = 131_072
LEVELS = Figure(
    name="beyond-levels",
    shows="not in the papers",
    title="OPT-13B: levels for longer quanta than the longest prefill",
    caption="OPT-13B on one A100-40GB, batch 16, ShareGPT lengths, Poisson arrivals. The papers' last level is the "
    "first whose quantum holds the longest prefill; in it jobs run in the order in which they joined it. Right: as "
    f"many levels as a context of {_LONG_CONTEXT_TOKENS:,} tokens would have; lengths are the same.",
    panels=tuple(
        Panel(f"{title}, {name}", Axis.LOAD, POISSON_LOADS, server, SHAREGPT, _LEVELS, metric, limit)
        for metric, name, limit in ((PER_TOKEN, "per output token", SLO_S), (JCT, "mean JCT", None))
        for title, server in (
            ("levels up to a prefill", OPT_13B),
            ("more levels", replace(OPT_13B, max_model_len=_LONG_CONTEXT_TOKENS)),
        )
    ),
    columns=2,
)

FIGURES = (STARVATION, CHARGE, LEVELS)
