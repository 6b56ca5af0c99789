"""The systems that the papers compare, and those that their weaknesses suggest, each under one name in every figure."""

from dataclasses import replace

from evaluation.values import DEFAULT_STARVATION_LIMIT_S, System
from services.scheduler.scheduler_config import Charge, PolicyName

CHUNK_TOKENS = 256

STATIC = System("static batches", PolicyName.STATIC, "defer")
"""FasterTransformer: a batch is filled once and runs until its last job ends."""

FCFS = System("FCFS", PolicyName.FCFS, "defer")
"""Orca: iteration-level, run to completion, a job's whole KV is reserved at admission."""

FCFS_ON_DEMAND = System("FCFS, KV on demand", PolicyName.FCFS, "recompute")
"""vLLM's order: KV grows as it is needed, the youngest job gives its blocks up and recomputes."""

FASTSERVE = System("FastServe", PolicyName.SKIP_JOIN_MLFQ, "proactive")
SRPT = System("SRPT oracle", PolicyName.SRPT, "proactive")
MLFQ = System("naive MLFQ", PolicyName.MLFQ, "proactive")
MLFQ_KILL = System("naive MLFQ, cuts prefills", PolicyName.MLFQ_KILL, "proactive")
FIXED_PRIORITY = System("fixed priority", PolicyName.FIXED_PRIORITY, "proactive")

DEFER = System("skip-join + defer", PolicyName.SKIP_JOIN_MLFQ, "defer")
RECOMPUTE = System("skip-join + recompute", PolicyName.SKIP_JOIN_MLFQ, "recompute")
REACTIVE = System("skip-join + reactive", PolicyName.SKIP_JOIN_MLFQ, "reactive")

FCFS_CHUNKED = replace(FCFS, label="FCFS, chunked prefill", prefill_chunk_tokens=CHUNK_TOKENS)
FASTSERVE_CHUNKED = replace(FASTSERVE, label="FastServe, chunked prefill", prefill_chunk_tokens=CHUNK_TOKENS)
FASTSERVE_MARGINAL = replace(FASTSERVE, label="FastServe, marginal charge", charge=Charge.MARGINAL)

LIMIT_PAPER = replace(FASTSERVE, label="limit 300 ms", starvation_limit_s=0.3)
LIMIT_3S = replace(FASTSERVE, label="limit 3 s", starvation_limit_s=3.0)
LIMIT_OFF = replace(FASTSERVE, label="no promotion", starvation_limit_s=None)
LIMIT_DEFAULT_LABEL = f"FastServe (limit {DEFAULT_STARVATION_LIMIT_S:g} s)"

COLOURS = {
    STATIC.label: "#9a8c98",
    FCFS.label: "#4a4e57",
    FCFS_ON_DEMAND.label: "#b07d2b",
    FASTSERVE.label: "#d1495b",
    SRPT.label: "#3d9970",
    MLFQ.label: "#30638e",
    MLFQ_KILL.label: "#8e5aa8",
    FIXED_PRIORITY.label: "#edae49",
    DEFER.label: "#8c6d46",
    RECOMPUTE.label: "#8e5aa8",
    REACTIVE.label: "#30638e",
    FCFS_CHUNKED.label: "#7ca5b8",
    FASTSERVE_CHUNKED.label: "#f08a4b",
    FASTSERVE_MARGINAL.label: "#f08a4b",
    LIMIT_PAPER.label: "#8e5aa8",
    LIMIT_3S.label: "#edae49",
    LIMIT_OFF.label: "#30638e",
}
"""One colour a system in all pictures."""

DASHED = frozenset({SRPT.label})
"""A yardstick, not a system that one could run: it knows lengths."""
