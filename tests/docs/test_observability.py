"""docs/observability.md lists every metric: who exports it, its type, its labels, and how many series it can have."""

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from services.domain.generation import EndReason
from services.domain.iteration import WorkerCounters
from services.domain.server_status import (
    GroupStatus,
    IterationTokens,
    LevelStatus,
    PoolUsage,
    ServerCounters,
    ServerStatus,
)
from services.domain.submission import JobTimings
from services.gateway.metrics import GatewayMetrics, ServerStatusCollector
from services.kvmanager.metrics import EnstErrorHistogram, PoolCollector
from services.scheduler.demand_watch import DemandCollector
from services.scheduler.machine.scheduler_events import RejectKind
from services.scheduler.metrics import SchedulerCollector
from services.scheduler.policies.group_demand import Demand
from services.scheduler.policies.mlfq import MOST_LEVELS
from services.worker.metrics import EngineCollector
from tests.builders.metrics_page import DescribedMetric, described_metrics

GROUPS = 3
POOLS = PoolUsage(8, 2, 10, 10)
USUAL_LABELS = {"model_name", "group"}


def fullest_status() -> ServerStatus:
    """Every level of every group, and every reason to refuse."""
    levels = tuple(LevelStatus(level, 0.1, 1, 2, 3) for level in range(MOST_LEVELS))
    groups = tuple(
        GroupStatus(number, True, levels, POOLS, 16, "cpu", 1, 16, ServerCounters(), IterationTokens())
        for number in range(GROUPS)
    )
    rejections = {kind.value: 1 for kind in RejectKind}
    return ServerStatus("m", "skip-join-mlfq", "proactive", groups, ServerCounters(), 1.0, 10, rejections)


def registry_of(service: str, *, old_metrics: bool, vllm_metrics: bool) -> CollectorRegistry:
    """What a service exports once everything has happened to it, without its process."""
    registry, status = CollectorRegistry(), fullest_status()
    if service == "gateway":
        metrics = GatewayMetrics(registry, "m")
        metrics.choice_ended(EndReason.STOP, 2, 1.0, 0.5, JobTimings(0.1, 0.1, 0.5, 1))
        registry.register(
            ServerStatusCollector("m", lambda: status, lambda: 0, old_metrics=old_metrics, vllm_metrics=vllm_metrics)
        )
    elif service == "scheduler":
        registry.register(SchedulerCollector(lambda: status, old_metrics=old_metrics))
        registry.register(DemandCollector("m", lambda: (Demand(1, 1.0, 1.0), 1)))
    elif service == "kvmanager":
        registry.register(PoolCollector("m", lambda: [(group, POOLS) for group in range(GROUPS)]))
        errors = EnstErrorHistogram(registry, "m")
        for group in range(GROUPS):
            errors.judged(group, 1.0, 2.0)
            errors.judged(group, 2.0, 1.0)
    else:
        registry.register(EngineCollector("m", 0, WorkerCounters, lambda: 1, old_metrics=old_metrics))
    return registry


def families(service: str, *, old_metrics: bool = False, vllm_metrics: bool = False) -> Iterator[Metric]:
    return iter(registry_of(service, old_metrics=old_metrics, vllm_metrics=vllm_metrics).collect())


def rows(service: str, switches: frozenset[str] = frozenset()) -> dict[str, list[DescribedMetric]]:
    """The page's rows of a service, by family."""
    found: dict[str, list[DescribedMetric]] = {}
    for row in described_metrics():
        if row.service == service and row.switch in {"", *switches}:
            found.setdefault(row.family, []).append(row)
    return found


SERVICES = ("gateway", "scheduler", "kvmanager", "worker")


@pytest.mark.parametrize("service", SERVICES)
def test_the_page_lists_what_a_service_exports_and_nothing_else(service: str) -> None:
    assert sorted(family.name for family in families(service)) == sorted(rows(service))


@pytest.mark.parametrize("service", SERVICES)
def test_the_page_lists_what_the_switches_add(service: str) -> None:
    shown = [family.name for family in families(service, old_metrics=True, vllm_metrics=True)]
    assert sorted(shown) == sorted(rows(service, frozenset({"--old-metrics", "--vllm-metrics"})))
    assert len(shown) == len(set(shown))


@pytest.mark.parametrize("service", SERVICES)
def test_types_labels_and_the_number_of_series_are_as_the_page_says(service: str) -> None:
    described = rows(service, frozenset({"--old-metrics", "--vllm-metrics"}))
    for family in families(service, old_metrics=True, vllm_metrics=True):
        own = described[family.name]
        assert {row.type for row in own} == {family.type}, family.name
        labels = {label for sample in family.samples for label in sample.labels} - USUAL_LABELS - {"le"}
        assert labels == frozenset[str]().union(*(row.labels for row in own)), family.name
        assert len(family.samples) == sum(row.series(GROUPS) for row in own), family.name


def test_no_two_services_export_the_same_series() -> None:
    names = [
        (sample.name, tuple(sorted(sample.labels.items())))
        for service in SERVICES
        for family in families(service)
        for sample in family.samples
    ]
    assert len(names) == len(set(names))


def test_a_metric_of_two_services_has_another_reason_in_each() -> None:
    owners: dict[str, set[str]] = {}
    for service in SERVICES:
        for family in families(service):
            owners.setdefault(family.name, set()).add(service)
    shared = {name: services for name, services in owners.items() if len(services) > 1}
    assert shared == {"fastserve:admission_rejections": {"gateway", "scheduler"}}
