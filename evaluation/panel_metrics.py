"""What the panels draw."""

from evaluation.measures import within_name
from evaluation.values import Metric

JCT = Metric("jct_s.mean", "mean JCT, s")
JCT_P95 = Metric("jct_s.p95", "P95 of JCT, s")
PER_TOKEN = Metric("per_output_token_s.mean", "mean of latency / output tokens, s")
PER_TOKEN_P95 = Metric("per_output_token_s.p95", "P95 of latency / output tokens, s")
TTFT = Metric("ttft_s.mean", "mean TTFT, s")
GAP_P99 = Metric("gap_s.p99", "P99 of gaps between tokens, s")
WORST_GAP = Metric("worst_gap_s.mean", "each job's worst gap, mean, s")
WORST_GAP_P95 = Metric("worst_gap_s.p95", "each job's worst gap, P95, s")
QUEUE_SHARE = Metric("queue_share", "share of JCT before the first iteration", log=False, percent=True)
PEAK_KV = Metric("peak_kv_gb", "peak KV cache, GB")
WITHIN = Metric(within_name(1.0), "share of jobs within both limits", log=False, percent=True)
TIME_SPLIT = Metric("jct_s.mean", "mean seconds of a job", log=False)

GAPS = (GAP_P99, WORST_GAP)
"""What each figure's second picture draws; the papers leave both out."""
