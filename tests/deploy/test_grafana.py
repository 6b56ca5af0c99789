"""Dashboard and rules speak of metrics that there are, and every alert is tested and explained. What Prometheus itself
says of them is asked by `make monitoring`.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from deploy.grafana.live_check import filled_in, panels
from deploy.grafana.picture import legend_of
from deploy.grafana.prometheus_process import RULES, shortened
from deploy.grafana.write import DASHBOARD, text
from tests.builders.metrics_page import PAGE, described_metrics

METRIC = re.compile(r"fastserve:[a-z0-9_]+(?:_total|_bucket|_sum|_count)?(?::[a-z0-9_]+)?")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def exported() -> set[str]:
    """The series of the page that need no switch."""
    rows = [row for row in described_metrics() if not row.switch]
    return {row.family + suffix for row in rows for suffix in SUFFIXES[row.type]}


def expressions() -> Iterator[str]:
    yield from (query.expr for panel in panels() for query in panel.queries)
    yield from (rule["expr"] for rule in rules())


def test_the_dashboard_is_made_of_its_panels() -> None:
    assert DASHBOARD.read_text() == text(), "run `python -m deploy.grafana.write`"


def test_what_is_asked_of_prometheus_is_exported_or_recorded() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    asked = {name for expr in expressions() for name in METRIC.findall(expr)}
    assert len(asked) > 30
    assert asked - exported() - recorded == set()


def test_every_new_metric_of_queues_and_kv_is_on_the_dashboard() -> None:
    shown = {name for panel in panels() for query in panel.queries for name in METRIC.findall(query.expr)}
    counters = ("num_promotions", "num_demotions", "kv_offloaded_bytes", "kv_uploaded_bytes", "worker_stall_seconds")
    wanted = ("jobs", "worker_plan_wait_share", "enst_error_seconds_bucket", *(f"{name}_total" for name in counters))
    assert {f"fastserve:{name}" for name in wanted} <= shown


def test_no_variable_is_left_in_a_query_that_is_filled_in() -> None:
    assert not [query.expr for panel in panels() for query in panel.queries if "$" in filled_in(query)]


def test_every_alert_is_tested_silent_and_firing_and_says_what_to_do() -> None:
    tests = yaml.safe_load(RULES.with_name("rules_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", ())]
    page = PAGE.read_text()
    for name in (rule["alert"] for rule in rules() if "alert" in rule):
        expected = [bool(case["exp_alerts"]) for case in cases if case["alertname"] == name]
        assert set(expected) == {True, False}, name
        assert f"| `{name}` |" in page, name


def test_a_live_run_shortens_times_and_changes_nothing_else() -> None:
    long, short = yaml.safe_load(RULES.read_text()), yaml.safe_load(shortened(RULES.read_text()))
    for before, after in zip(long["groups"], short["groups"], strict=True):
        for one, other in zip(before["rules"], after["rules"], strict=True):
            assert one.keys() == other.keys()
            assert one["expr"].replace("[5m]", "[10s]") == other["expr"]
            assert {key for key in one if one[key] != other[key]} <= {"expr", "for"}


@pytest.mark.parametrize(
    ("template", "legend"), [("{{state}}", "running"), ("level {{level}}", "level"), ("p95", "p95")]
)
def test_a_legend_is_filled_in_with_labels(template: str, legend: str) -> None:
    assert legend_of(template, {"state": "running"}) == legend
