"""The parts of the benchmarks, in the order in which they are measured and shown. Those of SEPARATE take as long as all
others together, each, or do not depend on the machine, and are measured only when named.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import (
    best_fcfs,
    copy_bandwidth,
    decisions,
    drain_forecast,
    foreknowledge,
    guides,
    int8_weights,
    kernels,
    live_against_simulated,
    live_scaling,
    memory,
    peer_figures,
    pipeline,
    policies,
    ranks,
    rest,
    sampling,
    scaling,
    side_by_side,
    simulator_speed,
    single_stream,
    spans,
    streams,
    throughput,
    tracing,
    truth_comparison,
)
from benchmarks.goals_and_tables import Goal, Table
from benchmarks.settings import BenchSettings

Measured = dict[str, Any]


def _no_goals(_: Measured) -> list[Goal]:
    """For figures without goals."""
    return []


def _no_pictures(_: Measured, __: Path) -> list[Path]:
    """For figures that are only shown in tables."""
    return []


@dataclass(frozen=True, slots=True)
class Part:
    """A part: how it is measured and how it is shown. `draw` writes pictures into the folder of the results."""

    name: str
    measure: Callable[[BenchSettings], Measured]
    tables: Callable[[Measured], list[Table]]
    goals: Callable[[Measured], list[Goal]] = _no_goals
    draw: Callable[[Measured, Path], list[Path]] = _no_pictures


PARTS = (
    Part("throughput", throughput.measure, throughput.tables, throughput.goals),
    Part("single_stream", single_stream.measure, single_stream.tables),
    Part("policies", policies.measure, policies.tables),
    Part("copy_bandwidth", copy_bandwidth.measure, copy_bandwidth.tables),
    Part("decisions", decisions.measure, decisions.tables, decisions.goals),
    Part("simulator_speed", simulator_speed.measure, simulator_speed.tables, simulator_speed.goals),
    Part("memory", memory.measure, memory.tables, memory.goals),
    Part("streams", streams.measure, streams.tables, streams.goals),
    Part("rest", rest.measure, rest.tables, rest.goals),
)
SEPARATE = (
    Part("best_fcfs", best_fcfs.measure, best_fcfs.tables, best_fcfs.goals),
    Part(
        "live_against_simulated",
        live_against_simulated.measure,
        truth_comparison.tables,
        truth_comparison.goals,
        live_against_simulated.draw,
    ),
    Part("drain_forecast", drain_forecast.measure, drain_forecast.tables, drain_forecast.goals),
    Part("pipeline", pipeline.measure, pipeline.tables, pipeline.goals),
    Part("ranks", ranks.measure, ranks.tables, ranks.goals, ranks.draw),
    Part("kernels", kernels.measure, kernels.tables, kernels.goals),
    Part("int8_weights", int8_weights.measure, int8_weights.tables, int8_weights.goals),
    Part("tracing", tracing.measure, tracing.tables, tracing.goals),
    Part("spans", spans.measure, spans.tables, spans.goals),
    Part("peers", side_by_side.measure, peer_figures.tables, peer_figures.goals),
    Part("sampling", sampling.measure, sampling.tables),
    Part("guides", guides.measure, guides.tables, guides.goals),
    Part("scaling", scaling.measure, scaling.tables, scaling.goals, scaling.draw),
    Part("live_scaling", live_scaling.measure, live_scaling.tables, _no_goals, live_scaling.draw),
    Part("foreknowledge", foreknowledge.measure, foreknowledge.tables, foreknowledge.goals),
)
ALL_PARTS = (*PARTS, *SEPARATE)
