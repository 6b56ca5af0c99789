"""The server's status as metric families, named like vLLM's metrics but with our prefix, so that dashboards are easy to
adapt.

Each figure is exported by the one service that knows it best, so that a sum over all services counts nothing twice
(docs/observability.md): jobs by the scheduler, pools by the KV manager. The gateways repeat them only where they are
told to, and then ask the scheduler during the scrape.
"""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from services.domain.server_status import GroupStatus, IterationTokens, PoolUsage

PREFIX = "fastserve:"
VLLM_PREFIX = "vllm:"
LABELS = ("model_name", "group")

JOB_LABELS = ("level", "state")
JOB_STATES = ("running", "waiting", "swapped_out")
"""Every job is in exactly one (see GroupStatus)."""

_JOB_GAUGES: tuple[tuple[str, str, Callable[[GroupStatus], float]], ...] = (
    ("num_requests_running", "Number of jobs in an iteration under way.", lambda group: group.running),
    (
        "num_requests_waiting",
        "Number of jobs waiting for an iteration, including those in host memory.",
        lambda group: group.waiting + group.swapped_out,
    ),
    (
        "num_requests_swapped",
        "Number of waiting jobs whose KV cache is in host memory.",
        lambda group: group.swapped_out,
    ),
)
_POOL_GAUGES: tuple[tuple[str, str, Callable[[PoolUsage], float]], ...] = (
    (
        "kv_cache_usage_perc",
        "Share of the device's KV pool that is in use, from 0 to 1.",
        lambda pools: pools.device_share,
    ),
    (
        "kv_offload_cpu_cache_usage_perc",
        "Share of the host's KV pool that is in use, from 0 to 1.",
        lambda pools: pools.host_share,
    ),
)


def job_gauges(model_name: str, groups: Sequence[GroupStatus]) -> Iterator[Metric]:
    """Jobs of each group."""
    for name, text, value in _JOB_GAUGES:
        yield group_gauge(name, text, [(model_name, group.group, value(group)) for group in groups])


def level_gauge(model_name: str, groups: Sequence[GroupStatus]) -> Metric:
    """Jobs of each group by level and state; a policy without quanta has level 0 alone."""
    family = GaugeMetricFamily(
        PREFIX + "jobs", "Number of jobs, by the level of their queue and their state.", labels=(*LABELS, *JOB_LABELS)
    )
    for group in groups:
        for level in group.levels:
            for state in JOB_STATES:
                family.add_metric((model_name, str(group.group), str(level.level), state), getattr(level, state))
    return family


def pool_gauges(model_name: str, pools_by_group: Sequence[tuple[int, PoolUsage]]) -> Iterator[Metric]:
    """Pools of each group."""
    for name, text, value in _POOL_GAUGES:
        yield group_gauge(name, text, [(model_name, group, value(pools)) for group, pools in pools_by_group])


def vllm_gauges(model_name: str, groups: Sequence[GroupStatus]) -> Iterator[Metric]:
    """The three that endpoint pickers of the Gateway API Inference Extension read, under vLLM's own names: one sample
    each, of all groups together.
    """
    pools = [group.pools for group in groups]
    blocks = sum(one.device_blocks_total for one in pools)
    used = blocks - sum(one.device_blocks_free for one in pools)
    for name, text, value in (
        ("num_requests_running", "Number of jobs in an iteration under way.", sum(one.running for one in groups)),
        (
            "num_requests_waiting",
            "Number of jobs waiting for an iteration, including those in host memory.",
            sum(one.waiting + one.swapped_out for one in groups),
        ),
        (
            "kv_cache_usage_perc",
            "Share of the device's KV pool that is in use, from 0 to 1.",
            used / blocks if blocks else 0.0,
        ),
    ):
        family = GaugeMetricFamily(VLLM_PREFIX + name, text, labels=("model_name",))
        family.add_metric((model_name,), value)
        yield family


def iteration_token_histogram(model_name: str, tokens_by_group: Sequence[tuple[int, IterationTokens]]) -> Metric:
    """Tokens per iteration of each group, prefill and decode together."""
    family = HistogramMetricFamily(PREFIX + "iteration_tokens", "Number of tokens per iteration.", labels=LABELS)
    for group, tokens in tokens_by_group:
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*map(float, tokens.bounds), float("inf")), tokens.counts, strict=False):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
        if buckets:
            family.add_metric((model_name, str(group)), buckets, sum_value=tokens.sum)
    return family


def group_gauge(name: str, text: str, rows: Sequence[tuple[str, int, float]]) -> GaugeMetricFamily:
    """A gauge with a value for each group; a row is the model's name, the group's number and the value."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=LABELS)
    for model_name, group, value in rows:
        family.add_metric((model_name, str(group)), value)
    return family
