"""What is made of live and simulated figures: how far off, met or missed, tables and a picture."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.live_against_simulated import ASKED, PAIRS, draw, drift, put_in_place, simulated_anew
from benchmarks.parts import ALL_PARTS, PARTS, SEPARATE
from benchmarks.run import chosen
from benchmarks.settings import BenchError
from benchmarks.simulated_runs import (
    SLOWDOWNS,
    Figures,
    Iterated,
    ServedBy,
    as_a_file_holds_it,
    figures_of,
    fitted_slowdown,
    iterated_by_slowdown,
    simulated_figures,
    trace_for,
    trace_of,
)
from benchmarks.truth_comparison import compared, goals, ratios_to_fcfs, tables
from services.domain.copying import LinkSpeed
from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.mixed_cost import MixedCost
from services.kvmanager.policies.kv_config import KV_POLICY_NAMES
from services.runtime.profile_file import Profile, profile_text, read_profile, write_profile
from services.scheduler.scheduler_config import PolicyName
from services.workloads.calibration import Need
from services.workloads.workload import Workload

BY = ServedBy(max_batch=4, device_tokens=512, host_tokens=16_384)
SHAPE = Workload(jobs=1, rate=1.0, cv=1.0, theta=1.2, max_prompt_tokens=100, max_output_tokens=100, seed=3)
PROFILE = Profile(
    cost=CostProfile(
        (PrefillCost(16, 0.004), PrefillCost(256, 0.02)),
        (DecodeCost(1, 64, 0.004), DecodeCost(4, 64, 0.006)),
    ),
    source={"model": "tiny", "threads": 1, "kind": "measured"},
    kv_bytes_per_token=1024,
    link=LinkSpeed(1e9, 1e-5, duplex=False),
    max_model_len=512,
)


def figures(**changed: float) -> Figures:
    names = ("plan_wait_s", "stall_s", "preemptions", "recomputed_tokens", "moved_gb", "duration_s", "p99_jct_s")
    times = {"mean_jct_s": 1.0, "mean_ttft_s": 0.2, "mean_per_output_token_s": 0.1, "busy_s": 10.0}
    return {**dict.fromkeys(names, 0.0), "iterations": 1000.0, **times, **changed}


def result(loads: dict[str, float], runs: list[dict[str, Any]]) -> dict[str, Any]:
    work = asdict(replace(SHAPE, jobs=20, rate=5.0))
    return {
        "model": "M",
        "threads": 1,
        "server": asdict(BY),
        "profile": json.loads(profile_text(PROFILE)),
        "profile_drift": 0.01,
        "traces": [
            {
                "name": name,
                "load": load,
                "fcfs_capacity_per_s": 7.0,
                "slowdown": 1.0,
                "load_met": load,
                "cv": 1.0,
                "span_s": 4.0,
                "peak_need_tokens": 900,
                "workload": work,
            }
            for name, load in loads.items()
        ],
        "runs": runs,
    }


def run(trace: str, pair: tuple[str, str], live: list[Figures], simulated: Figures) -> dict[str, Any]:
    return {"trace": trace, "pair": list(pair), "live": live, "simulated": simulated}


FCFS, FASTSERVE = PAIRS[0], PAIRS[1]


@pytest.fixture
def measured() -> dict[str, Any]:
    """Two traces under two pairs; only FastServe's busy time on the second one is off by more than 3 %."""
    return result(
        {"calm": 0.5, "full": 0.9},
        [
            run("calm", FCFS, [figures(mean_jct_s=0.9), figures(mean_jct_s=1.1)], figures(mean_jct_s=1.09)),
            run("calm", FASTSERVE, [figures(mean_jct_s=0.5)] * 2, figures(mean_jct_s=0.5)),
            run("full", FCFS, [figures(mean_jct_s=4.0), figures(mean_jct_s=5.0)], figures(mean_jct_s=9.0)),
            run(
                "full",
                FASTSERVE,
                [figures(mean_jct_s=2.0), figures(mean_jct_s=2.5)],
                figures(mean_jct_s=4.0, busy_s=9.6),
            ),
        ],
    )


def test_the_long_parts_are_measured_only_when_they_are_named() -> None:
    assert {"best_fcfs", "live_against_simulated", "foreknowledge"} <= {part.name for part in SEPARATE}
    assert chosen(None) == list(PARTS)
    assert not set(SEPARATE) & set(PARTS)
    assert [part.name for part in chosen("live_against_simulated,decisions")] == ["decisions", "live_against_simulated"]
    assert len({part.name for part in ALL_PARTS}) == len(PARTS) + len(SEPARATE)
    with pytest.raises(BenchError, match=r"parts are .*live_against_simulated"):
        chosen("truth")


def test_four_traces_and_four_pairs_are_asked_for_of_policies_that_there_are() -> None:
    assert len(ASKED) >= 4
    assert len(set(PAIRS)) >= 4
    assert {policy for policy, _ in PAIRS} <= {name.value for name in PolicyName}
    assert {kv_policy for _, kv_policy in PAIRS} <= set(KV_POLICY_NAMES)
    assert sum(asked.pools_in_peak >= 1 for asked in ASKED) >= 2
    assert len({asked.name for asked in ASKED}) == len(ASKED)


def test_a_figure_is_compared_with_the_mean_of_the_live_runs_and_their_range_is_the_noise(
    measured: dict[str, Any],
) -> None:
    first = compared(measured, "mean_jct_s")[0]
    assert first.name == "calm: fcfs + recompute"
    assert first.live_mean == pytest.approx(1.0)
    assert first.spread == pytest.approx(0.2)
    assert first.off == pytest.approx(0.09)


def test_a_figure_that_never_was_is_off_only_if_the_other_side_has_it() -> None:
    runs = [
        run("calm", FCFS, [figures(stall_s=0.0)], figures(stall_s=0.0)),
        run("calm", FASTSERVE, [figures(stall_s=0.0)], figures(stall_s=0.1)),
    ]
    both, simulated_only = compared(result({"calm": 0.5}, runs), "stall_s")
    assert (both.off, both.spread) == (0.0, 0.0)
    assert simulated_only.off == float("inf")


def test_ratios_to_fcfs_are_of_the_same_trace_and_repeat(measured: dict[str, Any]) -> None:
    calm, full = ratios_to_fcfs(measured)
    assert calm.live == pytest.approx((0.5 / 0.9, 0.5 / 1.1))
    assert full.live == pytest.approx((0.5, 0.5))
    assert full.simulated == pytest.approx(4 / 9)
    assert full.pair == FASTSERVE


def test_goals_tell_the_worst_and_hold_each_load_to_its_own(measured: dict[str, Any]) -> None:
    busy, jct, ratio = goals(measured)
    assert not busy.met
    assert "3 of 4 within; worst full: skip-join-mlfq + proactive" in busy.text
    assert (busy.asked, busy.measured) == ("<= 3%", "4%")
    assert jct.met  # FCFS at load 0.9 is off by 100 %, and not asked
    assert "2 of 2 within; worst calm: fcfs + recompute" in jct.text
    assert not ratio.met
    assert ratio.measured == "11.11%"  # 4/9 against 1/2
    assert "0 of 1 within" in ratio.text


def test_too_little_counts_as_much_as_too_much() -> None:
    runs = [run("calm", FCFS, [figures()], figures(busy_s=9.0)), run("calm", PAIRS[3], [figures()], figures(busy_s=11))]
    busy = goals(result({"calm": 0.5}, runs))[0]
    assert "0 of 2 within" in busy.text
    assert busy.measured == "10%"


def test_a_goal_of_loads_that_were_not_measured_is_left_out() -> None:
    runs = [run("calm", FCFS, [figures()], figures())]
    assert [goal.text.partition(",")[0] for goal in goals(result({"calm": 0.5}, runs))] == [
        "simulated busy time",
        "simulated mean JCT at load 0.7 or less",
    ]


def test_tables_have_a_row_for_every_run_and_show_the_picture(measured: dict[str, Any]) -> None:
    traces, busy, jct, ratios, *others, on_the_way = tables(measured)
    assert "live_against_simulated.svg" in traces.note
    assert [row[0] for row in traces.rows] == ["calm", "full"]
    assert jct.rows[0] == ("calm: fcfs + recompute", "1", "20.0%", "1.09", "+9.0%")
    assert busy.rows[3][-1] == "-4.0%"
    assert [row[0] for row in ratios.rows] == [f"{trace}: skip-join-mlfq + proactive" for trace in ("calm", "full")]
    assert on_the_way.rows[3][1:3] == ("1000 / 1000", "10.000 / 9.600")
    for table in (traces, busy, jct, ratios, *others, on_the_way):
        assert all(len(row) == len(table.heading) for row in table.rows)


def test_the_picture_is_the_same_bytes_for_the_same_result(measured: dict[str, Any], tmp_path: Path) -> None:
    first, again = (tmp_path / name for name in ("first", "again"))
    for folder in (first, again):
        folder.mkdir()
        drawn = draw(measured, folder)
        assert [path.name for path in drawn] == ["live_against_simulated.svg"]
    assert (first / drawn[0].name).read_bytes() == (again / drawn[0].name).read_bytes()
    text = (first / "live_against_simulated.svg").read_text()
    assert all(named in text for named in ("calm", "full", "fcfs + recompute", "skip-join-mlfq + proactive"))


def test_a_worker_reckons_with_the_profile_that_was_put_in_the_place_of_its_own(tmp_path: Path) -> None:
    other = CostProfile((PrefillCost(8, 0.5),), (DecodeCost(1, 8, 0.5),))
    same_kind, more_threads = tmp_path / "same.json", tmp_path / "threads.json"
    checked = (MixedCost(8, 1, 8, 1.0, 0.5),)
    write_profile(same_kind, Profile(other, {"model": "tiny", "threads": 1}, mixed=checked))
    write_profile(more_threads, Profile(other, {"model": "tiny", "threads": 2}))
    assert put_in_place(PROFILE, tmp_path) == 1
    assert read_profile(same_kind).cost == PROFILE.cost
    assert read_profile(same_kind).mixed == PROFILE.mixed != checked
    assert read_profile(same_kind).source == {"model": "tiny", "threads": 1}
    assert read_profile(more_threads).cost == other


def test_drift_is_that_of_the_median_point_measured_both_times() -> None:
    before = CostProfile((PrefillCost(8, 1.0), PrefillCost(16, 2.0)), (DecodeCost(1, 8, 1.0),))
    after = CostProfile((PrefillCost(8, 1.1), PrefillCost(16, 2.0)), (DecodeCost(1, 8, 1.5), DecodeCost(2, 8, 9.0)))
    assert drift(before, after) == pytest.approx(0.1)


def test_what_is_simulated_is_the_trace_as_its_file_holds_it_at_the_load_that_was_asked() -> None:
    capacity, loaded = trace_for(BY, PROFILE, SHAPE, Need(0.5, 50, 2.0, BY.device_tokens, 0.0))
    assert loaded.rate == pytest.approx(0.5 * capacity)
    jobs = trace_of(Workload(**json.loads(json.dumps(asdict(loaded.workload)))))
    assert jobs == as_a_file_holds_it(loaded.jobs)
    simulated = simulated_figures(BY, PROFILE, FCFS, jobs)
    assert simulated["mean_jct_s"] > simulated["mean_ttft_s"] > 0
    assert 0.35 < simulated["busy_s"] / simulated["duration_s"] < 1  # half the batch's capacity is more than half busy


def test_the_slowdown_is_the_one_at_which_simulated_iterations_take_as_long_as_live_ones() -> None:
    _, loaded = trace_for(BY, PROFILE, SHAPE, Need(0.5, 50, 2.0, BY.device_tokens, 0.0))
    live = Iterated.of(simulated_figures(replace(BY, slowdown=1.2), PROFILE, FCFS, loaded.jobs))
    at = iterated_by_slowdown(BY, PROFILE, FCFS, loaded.jobs)
    assert fitted_slowdown([at], [live]) == pytest.approx(1.2)
    assert fitted_slowdown([at, at], [at[0], at[2]]) == pytest.approx(1.0, abs=0.02)  # between 0.9 and 1.1
    assert fitted_slowdown([at], [Iterated(2 * at[-1].busy_s, at[-1].iterations)]) > 1.5


def test_a_worker_that_makes_up_for_its_slowness_by_fuller_batches_is_found_to_be_slow() -> None:
    """It was busy hardly longer, with fewer iterations, each of which took longer."""
    at = [Iterated(10.0 + 0.01 * number, 1000 - 100 * number) for number in range(len(SLOWDOWNS))]
    assert fitted_slowdown([at], [Iterated(10.0, 800)]) == pytest.approx(SLOWDOWNS[2], rel=0.01)


def test_each_run_counts_with_its_iterations_in_the_mean() -> None:
    long, short = (tuple(Iterated(each * count, 1000 * each) for count in SLOWDOWNS) for each in (1.0, 3.0))
    assert fitted_slowdown([long, short], [Iterated(1.1, 1000), Iterated(3.9, 3000)]) == pytest.approx(1.25)


def test_policies_and_pools_of_the_simulated_server_are_those_of_the_live_one() -> None:
    flags = BY.flags("mlfq", "reactive")
    assert flags[:4] == ["--policy", "mlfq", "--kv-policy", "reactive"]
    assert flags[4:] == ["--kv-device-tokens", "512", "--kv-host-tokens", "16384"]
    setup = BY.setup(PROFILE, "mlfq", "reactive")
    assert (setup.scheduler.policy, setup.scheduler.max_batch) == (PolicyName.MLFQ, 4)
    assert (setup.device_tokens, setup.host_tokens, setup.kv.policy.name) == (512, 16_384, "reactive")
    assert setup.cost == PROFILE.cost
    assert (setup.slowdown, replace(BY, slowdown=1.1).setup(PROFILE, "mlfq", "reactive").slowdown) == (1.0, 1.1)


def test_figures_of_a_trace_run_with_failed_jobs_are_refused() -> None:
    with pytest.raises(BenchError, match="2 of 9 jobs failed"):
        figures_of({"failed": 2, "jobs": 9})


def test_a_result_is_simulated_anew_from_its_file_alone(measured: dict[str, Any]) -> None:
    anew = simulated_anew(json.loads(json.dumps(measured)))
    assert [each["live"] for each in anew["runs"]] == [each["live"] for each in measured["runs"]]
    jobs = trace_of(Workload(**measured["traces"][0]["workload"]))
    slowdowns = {trace["name"]: trace["slowdown"] for trace in anew["traces"]}
    for each in anew["runs"]:
        by = replace(BY, slowdown=slowdowns[each["trace"]])
        assert each["simulated"] == simulated_figures(by, PROFILE, tuple(each["pair"]), jobs)


def test_the_slowdown_of_a_trace_is_found_on_the_others(measured: dict[str, Any]) -> None:
    jobs = trace_of(Workload(**measured["traces"][0]["workload"]))
    live = {slowdown: simulated_figures(replace(BY, slowdown=slowdown), PROFILE, FCFS, jobs) for slowdown in (1.1, 1.3)}
    runs = [run("calm", FCFS, [live[1.1]], figures()), run("full", FCFS, [live[1.3]], figures())]
    calm, full = simulated_anew({**measured, "runs": runs})["traces"]
    assert (calm["slowdown"], full["slowdown"]) == (pytest.approx(1.3), pytest.approx(1.1))
    assert calm["load_met"] > full["load_met"] > 0


def test_at_its_own_pace_a_run_is_simulated_as_it_was_however_fast_the_machine_was(measured: dict[str, Any]) -> None:
    jobs = trace_of(Workload(**measured["traces"][0]["workload"]))
    live = [simulated_figures(replace(BY, slowdown=slowdown), PROFILE, FCFS, jobs) for slowdown in (1.1, 1.5)]
    runs = [run(name, FCFS, live, figures()) for name in ("calm", "full")]
    anew = simulated_anew({**measured, "runs": runs})
    made = anew["runs"][0]
    assert [own["slowdown"] for own in made["at_own_pace"]] == [pytest.approx(1.1), pytest.approx(1.5)]
    for own, was in zip(made["at_own_pace"], live, strict=True):
        assert own["mean_jct_s"] == pytest.approx(was["mean_jct_s"], rel=1e-3)
    title = "Each live run, and simulated at its own pace"
    (table,) = (each for each in tables(anew) if each.title == title)
    assert table.rows[0][1:] == ("1.100, 1.500", "+0.0%, +0.0%", "+0.0%, +0.0%", "+0.0%")
    assert title not in {each.title for each in tables({**measured, "runs": runs})}
