"""The benchmark of two stages: what is compared, and when it is near enough."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pipeline import PAIR, SHAPE, fitted, goals, kept_profile, points_off, simulated_anew, tables
from benchmarks.settings import BenchError, BenchSettings
from benchmarks.simulated_runs import ServedBy, simulated_figures, trace_of
from services.domain.copying import LinkSpeed
from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.pipeline import Pipeline
from services.runtime.profile_file import Profile, profile_text, write_profile
from services.workloads.workload import TraceJob

PROFILE = Profile(
    cost=CostProfile((PrefillCost(16, 0.004), PrefillCost(256, 0.02)), (DecodeCost(1, 64, 0.004),)),
    source={"model": "tiny", "pp": 2},
    kv_bytes_per_token=1024,
    link=LinkSpeed(1e9, 1e-5),
    stages=2,
    max_model_len=512,
    pipeline=Pipeline((0.5, 0.5), (0.25, 0.75), 1e-4, 1e-6),
)


def figures(busy_s: float) -> dict[str, float]:
    return {"busy_s": busy_s, "duration_s": 10.0, "mean_jct_s": 1.0, "plan_wait_s": 0.5}


def measured(*runs: tuple[float, float]) -> dict[str, Any]:
    return {
        "model": "M",
        "pair": list(PAIR),
        "server": {"slowdown": 1.1, "overhead_s": 0.003, "hop_s": 0.002},
        "profile": json.loads(profile_text(PROFILE)),
        "runs": [
            {"trace": f"{n}", "workload": {"jobs": 9}, "live": figures(live), "simulated": figures(simulated)}
            for n, (live, simulated) in enumerate(runs)
        ],
    }


def test_the_trace_that_is_furthest_off_counts_whichever_way() -> None:
    near, far = measured((5.0, 5.4), (8.0, 7.6)), measured((5.0, 5.4), (8.0, 7.4))
    assert [round(points_off(run), 6) for run in far["runs"]] == [4.0, -6.0]
    assert [goal.met for goal in (*goals(near), *goals(far))] == [True, False]
    (table,) = tables(far)
    assert len(table.rows) == 2
    assert {len(row) for row in table.rows} == {len(table.heading)}
    assert "decode 0.250 + 0.750" in table.note


def test_slowdown_and_hop_are_those_of_a_simulation_that_is_like_the_live_run() -> None:
    trace = [TraceJob(f"{number}/0", 0.0, 16, 40) for number in range(8)]
    truth = ServedBy(2, 4096, 4096, slowdown=1.2, hop_s=0.003)
    seen = [(trace, simulated_figures(truth, PROFILE, PAIR, trace))]
    found = fitted(ServedBy(2, 4096, 4096), PROFILE, seen)
    assert found.slowdown == pytest.approx(1.2, rel=0.01)
    assert found.hop_s == pytest.approx(0.003, rel=0.15)


def test_slowdown_and_overhead_are_told_apart_by_runs_of_long_and_of_short_iterations() -> None:
    truth = ServedBy(8, 4096, 4096, slowdown=1.1, overhead_s=0.002, hop_s=0.003)
    traces = [
        [TraceJob(f"{number}/0", 0.0, prompt_tokens, output_tokens) for number in range(8)]
        for prompt_tokens, output_tokens in ((256, 2), (16, 40))
    ]
    seen = [(trace, simulated_figures(truth, PROFILE, PAIR, trace)) for trace in traces]
    found = fitted(ServedBy(8, 4096, 4096), PROFILE, seen)
    assert found.slowdown == pytest.approx(1.1, rel=0.05)
    assert found.overhead_s == pytest.approx(0.002, rel=0.15)


def test_traces_are_simulated_with_what_was_found_on_the_calibrations() -> None:
    by = ServedBy(4, 4096, 4096)
    shapes = [replace(SHAPE, jobs=6, rate=5.0, seed=seed, max_prompt_tokens=64) for seed in range(2)]
    calibration, run = (
        {"workload": asdict(shape), "live": simulated_figures(truth, PROFILE, PAIR, trace_of(shape))}
        for shape, truth in zip(shapes, (replace(by, slowdown=1.1), replace(by, slowdown=1.4)), strict=True)
    )
    given = {"server": asdict(by), "profile": json.loads(profile_text(PROFILE)), "runs": [run]}
    anew = simulated_anew({**given, "calibrations": [calibration]})
    assert anew["server"]["slowdown"] == pytest.approx(1.1, rel=0.05)
    assert anew["runs"][0]["live"] == run["live"]
    assert anew["runs"][0]["simulated"]["busy_s"] / run["live"]["busy_s"] == pytest.approx(1.1 / 1.4, rel=0.05)


def test_only_a_profile_of_stages_is_taken_and_the_simulator_uses_its_shares(tmp_path: Path) -> None:
    settings = BenchSettings(tmp_path)
    with pytest.raises(BenchError, match="kept no profile"):
        kept_profile(settings)
    write_profile(settings.folder("state", "profiles") / "kept.json", PROFILE)
    profile = kept_profile(settings)
    assert profile == PROFILE
    simulated = simulated_figures(ServedBy(1, 4096, 4096), profile, PAIR, [TraceJob("job/0", 0.0, 1, 40)])
    # One job alone: a decode of 4 ms, its hidden states, and a message back, for each token.
    assert simulated["duration_s"] == pytest.approx(40 * 0.0044, rel=0.1)
    assert simulated["busy_s"] == pytest.approx(40 * 0.004 / 2)
