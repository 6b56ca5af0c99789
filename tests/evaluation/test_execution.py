"""Running the simulations of an evaluation."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation import execution
from evaluation.measures import NUMBERS
from evaluation.paper_v1 import OPT_13B
from evaluation.results import Evaluation
from evaluation.simulating import capacity_per_s, simulate_run
from evaluation.systems import FCFS, SKIP_JOIN
from evaluation.values import CapacityOf, Lengths, Run, Traffic
from services.runtime.command_line import CommandError
from services.simulator.fcfs_capacity import FCFS_FORMS
from services.simulator.simulation import StuckError
from services.workloads.workload import WorkloadKind
from tests.evaluation.tiny_evaluation import FIGURE, TINY, evaluated


def test_more_processes_change_no_number(evaluation: Evaluation, tmp_path: Path) -> None:
    assert evaluated(tmp_path, processes=2).measured == evaluation.measured


def test_a_server_that_gets_stuck_is_told_in_one_line_with_a_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_stuck(*_: object) -> None:
        raise StuckError("99 turns were taken (at 1.5 s)\ngroup 0: plans without a result [7]")

    monkeypatch.setattr(execution, "simulate_run", get_stuck)
    with pytest.raises(CommandError, match=r"on opt-13b-a100-40gb got stuck; .*: 99 turns were taken") as told:
        evaluated(tmp_path)
    story = re.search(r"stuck; (\S+) tells", str(told.value))
    assert story is not None
    assert "group 0: plans without a result [7]" in Path(story[1]).read_text()


def test_loads_are_multiples_of_what_fcfs_serves(evaluation: Evaluation) -> None:
    panel = FIGURE.panels[0]
    for x in TINY.of(panel.points):
        for measured in evaluation.at(panel, SKIP_JOIN, x):
            assert measured.load == pytest.approx(x)
            assert measured.rate_per_s == pytest.approx(x * measured.capacity_per_s)


def test_fcfs_is_run_in_the_form_with_the_least_mean_completion_time(tmp_path: Path) -> None:
    tight = replace(OPT_13B, device_tokens=256, host_tokens=256)
    lengths = Lengths(WorkloadKind.ZIPF, theta=0.5, max_prompt_tokens=96, max_output_tokens=96)
    run = Run(tight, FCFS, Traffic(lengths, cv=4.0, jobs=40), seed=0)
    capacity = capacity_per_s(CapacityOf(tight, lengths))
    means = {
        form: simulate_run(replace(run, system=replace(FCFS, kv_policy=form)), capacity).numbers["jct_s.mean"]
        for form in FCFS_FORMS
    }
    assert len(set(means.values())) == len(FCFS_FORMS), "the forms differ, or the best says nothing"
    best = simulate_run(run, capacity)
    assert best.kv_policy == min(means, key=means.__getitem__)
    assert best.numbers["jct_s.mean"] == min(means.values())


def test_every_run_has_every_number_and_no_job_fails(evaluation: Evaluation) -> None:
    for measured in evaluation.measured.values():
        assert tuple(measured.numbers) == NUMBERS
        assert measured.numbers["jobs"] == TINY.jobs
        assert measured.numbers["failed"] == 0
