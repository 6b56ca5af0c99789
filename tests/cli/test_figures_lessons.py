"""What was learnt: sentences that say what the results say."""

from collections.abc import Callable

import pytest

from evaluation.beyond import LEVELS, STARVATION
from evaluation.evaluation import Evaluation
from evaluation.lessons import GAIN, VANISHES, WEAKNESSES, told
from evaluation.paper_n26 import BATCHES, CHUNKED, PEAK, RATIO, SWAPS
from evaluation.paper_v1 import OVERALL
from evaluation.systems import FASTSERVE, FCFS, LIMIT_PAPER, MLFQ, STATIC
from evaluation.values import MAIN, Figure, Run
from services.scheduler.scheduler_config import PolicyName
from tests.cli.made_evaluations import Rule, fastserve_wins, made


def sentence(figures: tuple[Figure, ...], rule: Callable[[Run], float], of: str) -> str:
    told_all = told(made(MAIN, figures, rule), (*GAIN, *VANISHES, *WEAKNESSES))
    return next(each for each in told_all if of in each)


@pytest.mark.parametrize(
    ("figures", "about", "yes", "no"),
    [
        ((SWAPS,), "without queues", fastserve_wins(1.0), None),
        (
            (BATCHES,),
            "*The gain shrinks with the batch* shows",
            lambda run: 4.0 if run.system.policy is PolicyName.FCFS and run.server.max_batch == 16 else 1.0,
            fastserve_wins(2.0),
        ),
        (
            (STARVATION,),
            "*Promotion after 300 ms collapses the order* shows",
            lambda run: 4.0 if run.system == LIMIT_PAPER else 1.0,
            fastserve_wins(2.0),
        ),
        (
            (SWAPS,),
            "*Latency per output token hides stalls inside streams* shows",
            lambda run: 4.0 if run.system == FASTSERVE else 1.0,
            fastserve_wins(2.0),
        ),
        (
            (LEVELS,),
            "reorders too little",
            lambda run: 1.0 if run.server.max_model_len else 2.0,
            fastserve_wins(2.0),
        ),
    ],
)
def test_a_lesson_says_what_the_results_say(
    figures: tuple[Figure, ...], about: str, yes: Rule, no: Rule | None
) -> None:
    sentence(figures, yes, about)
    if no is not None:
        with pytest.raises(StopIteration):
            sentence(figures, no, about)


def test_words_follow_the_numbers() -> None:
    better = sentence((OVERALL,), lambda run: 1.0 + (run.system == STATIC), "P95 of JCT")
    worse = sentence((OVERALL,), lambda run: 2.0 if run.system == FASTSERVE else 1.0, "P95 of JCT")
    assert "about as long as under FCFS" in better
    assert worse.startswith("Long jobs pay")
    assert "2.00x longer than under FCFS" in worse


def test_jobs_of_about_one_length_lose_only_where_they_do() -> None:
    worse = sentence((PEAK,), lambda run: 3.0 if run.system == FASTSERVE else 1.0, "much longer than the others")
    assert "FastServe loses: with outputs of 1 to 20 and prompts of 1 to 512 tokens, all equally likely" in worse
    assert "3.00x longer than under FCFS" in worse
    assert "does not lose" in sentence((PEAK,), fastserve_wins(2.0), "much longer than the others")


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ((1.0, 1.2, 1.5, 2.0), "grows with the CV of arrivals: 1.00x at 1, 2.00x at 8"),
        ((1.5, 1.1, 1.5, 2.0), "not in one direction: least 1.10x at 2, greatest 2.00x at 8"),
        ((2.0, 1.5, 1.2, 1.0), "shrinks with the CV of arrivals"),
        ((1.0, 1.01, 1.0, 1.02), "hardly changes with the CV of arrivals"),
    ],
)
def test_a_gain_grows_only_if_it_grows_from_each_point_to_the_next(gains: tuple[float, ...], words: str) -> None:
    by_cv = dict(zip((1.0, 2.0, 4.0, 8.0), gains, strict=True))

    def rule(run: Run) -> float:
        return by_cv[run.traffic.cv] if run.system == FCFS else 1.0

    assert words in sentence((OVERALL,), rule, "the CV of arrivals")


def test_skipping_levels_gains_at_the_ratios_where_it_does() -> None:
    def rule(run: Run) -> float:
        return 3.0 if run.system == MLFQ and run.traffic.lengths.ratio == 64 else 1.0

    assert "is 3.00x at 64 (" in sentence((RATIO,), rule, "Skipping levels gains at these ratios")
    nothing = sentence((RATIO,), rule, "Skipping levels gains nothing")
    assert "1.00x at 16" in nothing
    assert "at 64" not in nothing


def test_the_starvation_limit_is_judged_by_both_panels() -> None:
    def one_panel(run: Run) -> float:
        return 4.0 if run.system == LIMIT_PAPER and run.server.device_tokens is None else 1.0

    told = sentence((STARVATION,), one_panel, "Promotion after 300 ms")
    assert "*Promotion after 300 ms collapses the order* shows in part" in told
    assert "With ShareGPT lengths and 300 ms mean JCT is 4.00x longer than with the default at load" in told
    assert "With little KV and 300 ms mean JCT is about as long at all loads" in told


def test_a_lesson_whose_figure_was_not_run_is_left_out() -> None:
    evaluation: Evaluation = made(MAIN, (CHUNKED,), fastserve_wins(2.0))
    assert [lesson[:25] for lesson in told(evaluation, (*GAIN, *VANISHES, *WEAKNESSES))] == [
        "*A long prompt stalls a w"
    ]
