"""The figures, declared as the papers' evaluation has them."""

from dataclasses import replace

from evaluation.catalogue import FIGURES
from evaluation.paper_n26 import GOODPUT, MEAN_LATENCY, TAIL_LATENCY
from evaluation.results import Evaluation
from evaluation.simulating import forms_of, server_setup
from evaluation.systems import COLOURS, FCFS, SKIP_JOIN, SRPT
from evaluation.values import MAIN
from tests.evaluation.tiny_evaluation import FIGURE, TINY

ASKED_FOR = (
    *("v1 Fig. 9", "v1 Fig. 10", "v1 Fig. 11", "v1 Fig. 12"),
    *(f"N26 Fig. {number}" for number in (1, 8, 11, 12, 13, 14, 15, 16, 17, 18)),
)
"""The papers' figures."""


def test_every_figure_that_the_papers_evaluation_has_is_declared() -> None:
    shown = [figure.shows.partition(",")[0] for figure in FIGURES]
    assert [name for name in ASKED_FOR if name not in shown] == []
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)


def test_every_figure_has_the_oracle_and_the_baseline() -> None:
    for figure in FIGURES:
        for panel in figure.panels:
            assert {FCFS, SKIP_JOIN, SRPT} <= set(panel.systems), (figure.name, panel.title)


def test_panels_of_a_figure_have_titles_of_their_own() -> None:
    for figure in FIGURES:
        titles = [panel.title for panel in figure.panels]
        assert len(set(titles)) == len(titles), figure.name


def test_every_system_has_a_colour_of_its_own_within_a_panel() -> None:
    for figure in FIGURES:
        for panel in figure.panels:
            colours = [COLOURS[system.label] for system in panel.systems]
            assert len(set(colours)) == len(colours), (figure.name, panel.title)


def test_every_run_of_the_main_set_names_a_server_that_exists() -> None:
    for server, system in {(run.server, run.system) for figure in FIGURES for run in figure.runs(MAIN)}:
        for form in forms_of(system):
            setup = server_setup(server, replace(system, kv_policy=form))
            assert setup.scheduler.policy is system.policy
            assert setup.kv.policy.name == form
            assert setup.scheduler.max_batch == server.max_batch
            assert setup.scheduler.plans_in_flight == setup.stages + 1
            assert setup.scheduler.starvation_limit_s == system.starvation_limit_s


def test_runs_that_are_equal_are_one_run(evaluation: Evaluation) -> None:
    declared = list(FIGURE.runs(TINY))
    assert len(evaluation.measured) == len(set(declared)) <= len(declared)
    shared = {run for panel in MEAN_LATENCY.panels for run in panel.runs(MAIN)}
    assert set(TAIL_LATENCY.runs(MAIN)) == shared == set(GOODPUT.runs(MAIN))
