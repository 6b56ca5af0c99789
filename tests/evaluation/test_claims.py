"""The papers' claims: their numbers, and how ours are read and judged."""

import pytest

from evaluation.catalogue import FIGURES
from evaluation.claims import CLAIMS, Verdict, claim_of
from evaluation.interpolation import Bound, Known
from evaluation.paper_n26 import SWAPS
from evaluation.paper_v1 import GPT_175B, OVERALL
from evaluation.readings import Finding
from evaluation.systems import FCFS, GITTINS, RESERVING, SKIP_JOIN, STATIC
from evaluation.values import MAIN, Run
from services.scheduler.scheduler_config import PolicyName
from tests.evaluation.made_evaluations import Numbers, Rule, fastserve_wins, made

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
    "proactive-defer-little-kv": "2.3-3.5x",
    "proactive-reactive": "1.4-1.7x",
    "proactive-reactive-little-kv": "1.4-1.7x",
    "proactive-recompute": "2.7x",
    "proactive-recompute-little-kv": "2.7x",
    "swap-share": "under 5%",
    "low-load": "1x",
    "peak-kv": "up to 7x",
}
"""Every number of the papers' evaluation (PAPER 6, and the peak of KV in PAPER 3)."""


def found(key: str, rule: Rule, numbers: Numbers | None = None) -> Finding:
    finding = claim_of(key).ours(made(MAIN, FIGURES, rule, numbers))
    assert finding is not None
    return finding


def test_every_number_of_the_papers_is_a_claim() -> None:
    assert {claim.key: claim.paper for claim in CLAIMS if not claim.key.endswith("-reserves")} == PAPER_TABLE


def test_a_claim_over_fcfs_is_read_over_its_best_form_first_and_then_over_reservation() -> None:
    keys = [claim.key for claim in CLAIMS]
    for number, claim in enumerate(CLAIMS):
        if claim.against == RESERVING.label:
            before = CLAIMS[number - 1]
            assert (claim.key, before.against) == (f"{before.key}-reserves", FCFS.label)
            assert (claim.paper, claim.where, claim.figure) == (before.paper, before.where, before.figure)
    over_fcfs = [claim.key for claim in CLAIMS if claim.against == FCFS.label]
    assert [key for key in over_fcfs if f"{key}-reserves" not in keys] == ["low-load", "peak-kv"]


def test_a_claim_is_read_for_the_papers_policy_and_for_the_default() -> None:
    seconds = {FCFS: 6.0, RESERVING: 12.0, SKIP_JOIN: 3.0, GITTINS: 2.0}
    evaluation = made(MAIN, FIGURES, lambda run: seconds.get(run.system, 1.0))
    found = {
        (key, system): claim_of(key).ours(evaluation, system)
        for key in ("v1-rate-fcfs", "v1-rate-fcfs-reserves")
        for system in (SKIP_JOIN, GITTINS)
    }
    assert [finding and finding.high.value for finding in found.values()] == [2.0, 3.0, 4.0, 6.0]


def test_a_claim_whose_figure_was_not_run_has_no_number_of_ours() -> None:
    evaluation = made(MAIN, (OVERALL,), fastserve_wins(2.0))
    assert {claim.key for claim in CLAIMS if claim.ours(evaluation) is not None} == {
        claim.key for claim in CLAIMS if claim.figure is OVERALL
    }


def test_a_gain_is_read_off_the_runs() -> None:
    finding = found("v1-rate-fcfs", fastserve_wins(3.0))
    assert finding.low.value == finding.high.value == pytest.approx(3.0)
    assert finding.text.startswith("3.00x (load ")


def test_sustained_rates_are_compared_panel_by_panel() -> None:
    def rule(run: Run) -> float:
        load = run.traffic.load or 0.0
        return 0.03 if load <= (0.8 if run.system.policy is PolicyName.FCFS else 1.2) else 3.0

    finding = found("v3-sharegpt-fcfs", rule)
    assert finding.low.value == finding.high.value == pytest.approx((1.2 + 0.15) / (0.8 + 0.1))
    assert finding.text == "1.50x to 1.50x"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (Known(1.0), Known(4.3), Verdict.MET),
        (Known(1.2), Known(5.0), Verdict.MET),
        (Known(1.2), Known(4.0, Bound.AT_LEAST), Verdict.MET),
        (Known(4.5), Known(9.0), Verdict.EXCEEDED),
        (Known(0.8), Known(4.0), Verdict.PARTLY),
        (Known(0.8), Known(5.0), Verdict.PARTLY),
        (Known(0.7), Known(0.9), Verdict.MISSED),
        (Known(1.2, Bound.AT_MOST), Known(4.0), Verdict.OPEN),
        (Known(4.5, Bound.AT_MOST), Known(9.0), Verdict.OPEN),
        (Known(0.8), Known(4.0, Bound.AT_MOST), Verdict.OPEN),
        (Known(0.9, Bound.AT_LEAST), Known(0.9, Bound.AT_LEAST), Verdict.OPEN),
        (Known(1.0, Bound.OPEN), Known(1.0, Bound.OPEN), Verdict.OPEN),
    ],
)
def test_a_claim_is_met_only_where_our_least_number_reaches_it(low: Known, high: Known, verdict: Verdict) -> None:
    assert claim_of("v1-rate-fcfs").verdict(Finding(low, high, "")) is verdict


def test_up_to_speaks_of_the_greatest_number_only() -> None:
    headline = claim_of("v1-headline-mean")
    assert headline.verdict(Finding(Known(0.5), Known(5.1), "")) is Verdict.MET
    assert headline.verdict(Finding(Known(0.5), Known(5.0), "")) is Verdict.MISSED
    assert headline.verdict(Finding(Known(0.5), Known(5.2), "")) is Verdict.EXCEEDED


def test_a_cost_is_met_below_the_papers_bound() -> None:
    assert claim_of("swap-share").verdict(Finding(Known(0.01), Known(0.01), "")) is Verdict.MET
    assert claim_of("swap-share").verdict(Finding(Known(0.06), Known(0.06), "")) is Verdict.MISSED


def test_the_tail_is_read_and_named_as_the_tail() -> None:
    finding = found("v1-headline-tail", lambda run: 3.0 if run.system == FCFS else 1.0, lambda run: {"jct_s.mean": 1.0})
    assert finding.high.value == pytest.approx(3.0)
    assert ", P95, " in finding.text


def slow_static(share: float) -> Numbers:
    """Static batches take the longer for all jobs the higher the load, from `share` on."""
    return lambda run: {
        "duration_s": 5.0 if run.system == STATIC and (run.traffic.load or 0.0) >= share else 1.0,
        "jct_s.mean": 100.0 * (run.traffic.load or 0.0) + 1.0 if run.system == STATIC else 1.0,
    }


def test_static_batches_are_compared_only_where_they_keep_up() -> None:
    finding = found("v1-rate-static", fastserve_wins(2.0), slow_static(0.05))
    assert (finding.low.value, finding.high.value) == pytest.approx((3.0, 5.0))


def test_static_batches_that_keep_up_nowhere_are_not_comparable() -> None:
    finding = found("v1-cv-static", fastserve_wins(2.0), slow_static(0.0))
    assert claim_of("v1-cv-static").verdict(finding) is Verdict.INCOMPARABLE


def test_a_ratio_that_may_be_greater_than_the_greatest_decides_nothing() -> None:
    def rule(run: Run) -> float:
        load = run.traffic.load or 0.0
        if run.server == GPT_175B:
            return 0.1 if run.system == SKIP_JOIN or load <= 1.2 else 1.0
        return 0.1 if load <= (0.8 if run.system == SKIP_JOIN else 0.5) else 1.0

    finding = found("v3-sharegpt-fcfs", rule)
    assert finding.high.bound is Bound.AT_LEAST
    assert claim_of("v3-sharegpt-fcfs").verdict(finding) is Verdict.OPEN


def test_the_cost_of_swapping_is_the_time_in_which_kv_is_brought_back() -> None:
    def upload(run: Run) -> dict[str, float]:
        return {"upload_share": 0.2 if run.traffic.load == 1.0 else 0.0, "swap_share": 0.0}

    finding = claim_of("swap-share").ours(made(MAIN, (SWAPS,), fastserve_wins(1.0), upload))
    assert finding is not None
    assert finding.text == "up to 20.00% (load 1)"
