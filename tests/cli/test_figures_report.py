"""The report: its claims, its reasons and its lessons say what the results say."""

from collections.abc import Callable

import pytest

from services.cli.figures.beyond import LEVELS, STARVATION
from services.cli.figures.catalogue import FIGURES
from services.cli.figures.claims import CLAIMS, Claim, Verdict
from services.cli.figures.drawing import gaps_owner
from services.cli.figures.evaluation import Evaluation
from services.cli.figures.findings import Finding
from services.cli.figures.interpolation import Bound, Known
from services.cli.figures.lessons import GAIN, VANISHES, WEAKNESSES, told
from services.cli.figures.paper_n26 import BATCHES, CHUNKED, PEAK, SWAPS
from services.cli.figures.paper_v1 import OVERALL
from services.cli.figures.report_text import report
from services.cli.figures.systems import FASTSERVE, LIMIT_PAPER, STATIC
from services.cli.figures.values import MAIN, Figure, Run
from services.scheduler.policy.config import PolicyName
from tests.cli.made_evaluations import Rule, made

PAPER_TABLE = {
    "v1-rate-static": "1.9-11.4x",
    "v1-rate-fcfs": "1-4.3x",
    "v1-cv-static": "7.4-12.2x",
    "v1-cv-fcfs": "2.3-5.1x",
    "v1-theta-static": "3.6-10.6x",
    "v1-theta-fcfs": "1.9-3.9x",
    "v1-headline-mean": "up to 5.1x",
    "v1-headline-tail": "up to 6.4x",
    "v3-sharegpt-static": "31.5-74.9x",
    "v3-alpaca-static": "9.5-15.8x",
    "v3-sharegpt-vllm": "up to 18.3x",
    "v3-alpaca-vllm": "up to 31.4x",
    "v3-vllm-tail": "up to 17.9x",
    "v3-sharegpt-fcfs": "2-4x",
    "v3-alpaca-fcfs": "1.6-2x",
    "n26-vllm": "up to 6.1x",
    "n26-vllm-tail": "up to 8.1x",
    "n26-batch-64-vllm": "1.43x",
    "n26-batch-128-vllm": "1.51x",
    "n26-batches-fcfs": "1.2-1.3x",
    "n26-chunked": "1.5x",
    "ablation-fcfs": "up to 8.9x",
    "ablation-mlfq": "up to 1.87x",
    "ablation-fixed-priority": "up to 13.9x",
    "proactive-defer": "2.3-3.5x",
    "proactive-reactive": "1.4-1.7x",
    "proactive-recompute": "2.7x",
    "swap-share": "under 5%",
    "low-load": "1x",
    "peak-kv": "up to 7x",
}
"""Every number of the papers' evaluation (PAPER 6, and the peak of KV in PAPER 3)."""


def fastserve_wins(times: float) -> Rule:
    """Everything takes `times` seconds under FCFS and static batches, one otherwise; ten times that above load 1."""

    def rule(run: Run) -> float:
        slow = run.system.policy in (PolicyName.FCFS, PolicyName.STATIC)
        overload = run.traffic.load is not None and run.traffic.load > 1
        return (times if slow else 1.0) * (10.0 if overload else 1.0)

    return rule


def claim(key: str) -> Claim:
    return next(claim for claim in CLAIMS if claim.key == key)


def one(low: Known, high: Known | None = None) -> Finding:
    return Finding(low, high or low, "", (0.5, 0.9))


def sentence(figures: tuple[Figure, ...], rule: Callable[[Run], float], of: str) -> str:
    told_all = told(made(MAIN, figures, rule), (*GAIN, *VANISHES, *WEAKNESSES))
    return next(each for each in told_all if of in each)


def test_every_number_of_the_papers_is_a_claim() -> None:
    assert {claim.key: claim.paper for claim in CLAIMS} == PAPER_TABLE


def test_every_claim_has_a_row_with_the_papers_number_and_ours() -> None:
    text = report(made(MAIN, FIGURES, fastserve_wins(2.0)))
    rows = [line for line in text.splitlines() if line.startswith("| ") and "](" in line and ".csv)" in line]
    assert len(rows) == len(CLAIMS)
    for each, row in zip(CLAIMS, rows, strict=True):
        assert f"| {each.where} | " in row
        assert f" | {each.paper} | [" in row
    assert "not run" not in text


def test_a_claim_whose_figure_was_not_run_says_so() -> None:
    text = report(made(MAIN, (OVERALL,), fastserve_wins(2.0)))
    assert text.count("| not run |") == sum(claim.figure is not OVERALL for claim in CLAIMS)


def test_a_gain_is_read_off_the_runs() -> None:
    evaluation = made(MAIN, FIGURES, fastserve_wins(3.0))
    finding = claim("v1-rate-fcfs").ours(evaluation)
    assert finding is not None
    assert finding.low.value == finding.high.value == pytest.approx(3.0)
    assert finding.text.startswith("3.00x (load ")


def test_sustained_rates_are_compared_panel_by_panel() -> None:
    def rule(run: Run) -> float:
        load = run.traffic.load or 0.0
        return 0.03 if load <= (0.8 if run.system.policy is PolicyName.FCFS else 1.2) else 3.0

    finding = claim("v3-sharegpt-fcfs").ours(made(MAIN, FIGURES, rule))
    assert finding is not None
    assert finding.low.value == finding.high.value == pytest.approx((1.2 + 0.15) / (0.8 + 0.1))
    assert finding.text.count("OPT-") == 3


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (Known(1.2), Known(5.0), Verdict.WITHIN),
        (Known(0.7), Known(0.9), Verdict.SMALLER),
        (Known(4.5), Known(9.0), Verdict.LARGER),
        (Known(0.9, Bound.AT_LEAST), Known(0.9, Bound.AT_LEAST), Verdict.OPEN),
        (Known(1.0, Bound.OPEN), Known(1.0, Bound.OPEN), Verdict.OPEN),
    ],
)
def test_ranges_that_overlap_agree(low: Known, high: Known, verdict: Verdict) -> None:
    assert claim("v1-rate-fcfs").verdict(one(low, high)) is verdict


def test_a_cost_below_the_papers_bound_is_within_it() -> None:
    assert claim("swap-share").verdict(one(Known(0.01))) is Verdict.WITHIN
    assert claim("swap-share").verdict(one(Known(0.06))) is Verdict.LARGER


def test_another_engine_is_named_wherever_the_papers_compare_with_one() -> None:
    text = report(made(MAIN, FIGURES, fastserve_wins(2.0)))
    for each in CLAIMS:
        if each.engine:
            assert f"{each.engine} is another engine" in text


def test_where_ours_is_smaller_the_oracles_gain_tells_how_much_was_to_be_had() -> None:
    assert "SRPT, which knows lengths, gains up to 1.50x here." in report(made(MAIN, FIGURES, fastserve_wins(1.5)))


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


def test_jobs_that_are_all_alike_lose_only_where_they_do() -> None:
    worse = sentence((PEAK,), lambda run: 3.0 if run.system == FASTSERVE else 1.0, "all alike")
    assert worse.startswith("Jobs that are all alike lose:")
    assert "3.00x longer than under FCFS" in worse
    assert sentence((PEAK,), fastserve_wins(2.0), "all alike").startswith("Jobs that are all alike do not lose:")


def test_a_limit_that_the_baseline_keeps_in_overload_is_called_lax() -> None:
    def rule(run: Run) -> float:
        return 0.1 if (run.traffic.load or 0.0) <= 1.2 else 3.0

    text = report(made(MAIN, FIGURES, rule))
    assert "more than it can serve for long. 0.3 s is 3.0x a token's time" in text
    assert "an order that stays below load 1" not in text


def test_a_lesson_whose_figure_was_not_run_is_left_out() -> None:
    evaluation: Evaluation = made(MAIN, (CHUNKED,), fastserve_wins(2.0))
    assert [lesson[:25] for lesson in told(evaluation, (*GAIN, *VANISHES, *WEAKNESSES))] == [
        "*A long prompt stalls a w"
    ]


def test_the_report_tells_the_gaps_of_every_figure_and_how_to_repeat_it() -> None:
    text = report(made(MAIN, FIGURES, fastserve_wins(2.0)))
    gaps = text.partition("## Gaps inside streams")[2].partition("## Figures")[0]
    for figure in FIGURES:
        assert f"]({figure.name}.svg)" in text
        assert f"[{gaps_owner(figure, FIGURES).name}](" in gaps
    assert "Repeat it with `make figures`." in text


def test_the_report_has_no_number_when_nothing_was_run_but_the_papers() -> None:
    text = report(made(MAIN, (), fastserve_wins(2.0)))
    assert "x (" not in text
    assert text.count("| not run |") == len(CLAIMS)
