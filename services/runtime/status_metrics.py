"""The server's status as metric families, named like vLLM's metrics but with our prefix, so that dashboards are easy to
adapt. Used by the scheduler, which has the status, and by the gateways, which ask for it during a scrape.
"""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from services.domain.server_status import GroupStatus, IterationTokens, PoolUsage

PREFIX = "fastserve:"
LABELS = ("model_name", "group")

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


def group_gauges(model_name: str, groups: Sequence[GroupStatus]) -> Iterator[Metric]:
    """Jobs and pools of each group."""
    for name, text, value in _JOB_GAUGES:
        yield _gauge(name, text, [(model_name, group.group, value(group)) for group in groups])
    yield from pool_gauges(model_name, [(group.group, group.pools) for group in groups])


def pool_gauges(model_name: str, pools_by_group: Sequence[tuple[int, PoolUsage]]) -> Iterator[Metric]:
    """Pools of each group."""
    for name, text, value in _POOL_GAUGES:
        yield _gauge(name, text, [(model_name, group, value(pools)) for group, pools in pools_by_group])


def iteration_token_histogram(model_name: str, group: int, tokens: IterationTokens) -> Metric:
    """Tokens per iteration, prefill and decode together."""
    family = HistogramMetricFamily(PREFIX + "iteration_tokens", "Number of tokens per iteration.", labels=LABELS)
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(float, tokens.bounds), float("inf")), tokens.counts, strict=False):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
    if buckets:
        family.add_metric((model_name, str(group)), buckets, sum_value=tokens.sum)
    return family


def _gauge(name: str, text: str, rows: Sequence[tuple[str, int, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, text, labels=LABELS)
    for model_name, group, value in rows:
        family.add_metric((model_name, str(group)), value)
    return family
