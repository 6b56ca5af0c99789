"""The HPA's stand-in against the examples of Kubernetes' documentation, worked out by hand."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.kubernetes.standin.pod_autoscaler import PodAutoscaler, quantity, replicas_for

UNCHANGED: Mapping[str, Any] = {}


def spec_of(*targets: str, most: int = 10, behavior: Mapping[str, Any] = UNCHANGED) -> dict[str, Any]:
    metrics = [{"external": {"target": {"averageValue": target}}} for target in targets]
    return {"minReplicas": 1, "maxReplicas": most, "metrics": metrics, "behavior": behavior}


def down_after(window_s: int) -> dict[str, Any]:
    return {"scaleDown": {"stabilizationWindowSeconds": window_s}}


@pytest.mark.parametrize(("text", "value"), [("3", 3.0), ("800m", 0.8), ("2k", 2000.0), ("1.5", 1.5)])
def test_quantities_have_suffixes(text: str, value: float) -> None:
    assert quantity(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("value", "target", "present", "wanted"),
    [(3.0, 1.0, 1, 3), (12.5, 5.0, 1, 3), (13.0, 1.0, 12, 12), (14.0, 1.0, 12, 14), (0.0, 1.0, 3, 0)],
)
def test_the_sum_over_the_target_is_wanted_unless_it_is_within_a_tenth(
    value: float, target: float, present: int, wanted: int
) -> None:
    assert replicas_for(value, target, present) == wanted


def test_the_largest_of_several_metrics_counts_within_the_limits() -> None:
    assert PodAutoscaler().replicas(spec_of("1", "5"), 2, [3.0, 20.0], 0.0) == 4
    assert PodAutoscaler().replicas(spec_of("1", most=3), 2, [9.0], 0.0) == 3
    assert PodAutoscaler().replicas(spec_of("1", behavior=down_after(0)), 2, [0.0], 0.0) == 1


def test_what_sleeps_is_left_alone() -> None:
    assert PodAutoscaler().replicas(spec_of("1"), 0, [9.0], 0.0) == 0


def test_up_goes_by_four_pods_or_twice_as_many_in_fifteen_seconds() -> None:
    rule = PodAutoscaler()
    assert rule.replicas(spec_of("1"), 1, [10.0], 0.0) == 5
    assert rule.replicas(spec_of("1"), 5, [10.0], 5.0) == 5
    assert rule.replicas(spec_of("1"), 5, [10.0], 16.0) == 10


def test_down_goes_to_the_most_of_the_window() -> None:
    rule, spec = PodAutoscaler(), spec_of("1", behavior=down_after(60))
    assert rule.replicas(spec, 4, [4.0], 0.0) == 4
    assert rule.replicas(spec, 4, [2.0], 30.0) == 4
    assert rule.replicas(spec, 4, [1.0], 61.0) == 2
    assert rule.replicas(spec, 2, [1.0], 91.0) == 1
