"""The systems that the papers compare, and those that their weaknesses suggest, each under one name in every figure."""

from dataclasses import replace

from evaluation.values import BEST_FORM, DEFAULT_STARVATION_LIMIT_S, System
from services.scheduler.scheduler_config import Charge, PolicyName

CHUNK_TOKENS = 256

STATIC = System("static batches", PolicyName.STATIC, "defer")
"""FasterTransformer: a batch is filled once and runs until its last job ends."""

FCFS = System("FCFS", PolicyName.FCFS, BEST_FORM)
"""Iteration-level, run to completion, in the form that is best for the run: KV that grows and, when it does not fit, is
recomputed (vLLM) or moved to the host, or that is reserved at admission.
"""

RESERVING = System("FCFS, reserves", PolicyName.FCFS, "defer")
"""Orca: a job's whole KV is reserved at admission. It is told the job's true length."""

SKIP_JOIN = System("skip-join MLFQ", PolicyName.SKIP_JOIN_MLFQ, "proactive")
"""FastServe as the papers have it."""

GITTINS = System("gittins", PolicyName.GITTINS, "proactive")
"""FastServe's default, but that it lends a first token after the time that the figures ask for (simulating.py)."""

SRPT = System("SRPT oracle", PolicyName.SRPT, "proactive")
MLFQ = System("naive MLFQ", PolicyName.MLFQ, "proactive")
MLFQ_KILL = System("naive MLFQ, cuts prefills", PolicyName.MLFQ_KILL, "proactive")
FIXED_PRIORITY = System("fixed priority", PolicyName.FIXED_PRIORITY, "proactive")

DEFER = System("skip-join + defer", PolicyName.SKIP_JOIN_MLFQ, "defer")
RECOMPUTE = System("skip-join + recompute", PolicyName.SKIP_JOIN_MLFQ, "recompute")
REACTIVE = System("skip-join + reactive", PolicyName.SKIP_JOIN_MLFQ, "reactive")

FCFS_CHUNKED = replace(FCFS, label="FCFS, chunked prefill", prefill_chunk_tokens=CHUNK_TOKENS)
SKIP_JOIN_CHUNKED = replace(SKIP_JOIN, label="skip-join, chunked prefill", prefill_chunk_tokens=CHUNK_TOKENS)
GITTINS_CHUNKED = replace(GITTINS, label="gittins, chunked prefill", prefill_chunk_tokens=CHUNK_TOKENS)
SKIP_JOIN_MARGINAL = replace(SKIP_JOIN, label="skip-join, marginal charge", charge=Charge.MARGINAL)

LIMIT_PAPER = replace(SKIP_JOIN, label="limit 300 ms", starvation_limit_s=0.3)
LIMIT_3S = replace(SKIP_JOIN, label="limit 3 s", starvation_limit_s=3.0)
LIMIT_OFF = replace(SKIP_JOIN, label="no promotion", starvation_limit_s=None)
LIMIT_DEFAULT_LABEL = f"skip-join (limit {DEFAULT_STARVATION_LIMIT_S:g} s)"

COLOURS = {
    STATIC.label: "#9a8c98",
    FCFS.label: "#4a4e57",
    RESERVING.label: "#b07d2b",
    SKIP_JOIN.label: "#1d7a8c",
    GITTINS.label: "#d1495b",
    SRPT.label: "#3d9970",
    MLFQ.label: "#30638e",
    MLFQ_KILL.label: "#8e5aa8",
    FIXED_PRIORITY.label: "#edae49",
    DEFER.label: "#8c6d46",
    RECOMPUTE.label: "#8e5aa8",
    REACTIVE.label: "#30638e",
    FCFS_CHUNKED.label: "#7ca5b8",
    SKIP_JOIN_CHUNKED.label: "#83b8c2",
    GITTINS_CHUNKED.label: "#f08a4b",
    SKIP_JOIN_MARGINAL.label: "#f08a4b",
    LIMIT_PAPER.label: "#8e5aa8",
    LIMIT_3S.label: "#edae49",
    LIMIT_OFF.label: "#30638e",
}
"""One colour a system in all pictures."""

DASHED = frozenset({SRPT.label})
"""A yardstick, not a system that one could run: it knows lengths."""
