"""The report: its claims and its reasons say what the results say."""

import pytest

from evaluation.catalogue import FIGURES
from evaluation.claims import CLAIMS, Claim, Verdict
from evaluation.drawing import gaps_owner
from evaluation.findings import Finding
from evaluation.interpolation import Bound, Known
from evaluation.lessons import GAIN, VANISHES, told
from evaluation.paper_n26 import SWAPS
from evaluation.paper_v1 import GPT_175B, OVERALL
from evaluation.reasons import why
from evaluation.report_text import report
from evaluation.systems import DEFER, FASTSERVE, FCFS, REACTIVE, RECOMPUTE, SRPT, STATIC
from evaluation.values import MAIN, Figure, Run
from services.scheduler.scheduler_config import PolicyName
from tests.cli.made_evaluations import Numbers, Rule, fastserve_wins, made

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


def claim(key: str) -> Claim:
    return next(claim for claim in CLAIMS if claim.key == key)


def one(low: Known, high: Known | None = None) -> Finding:
    return Finding(low, high or low, "")


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
        (Known(1.0), Known(4.3), Verdict.WITHIN),
        (Known(1.2), Known(5.0), Verdict.TO_ABOVE),
        (Known(0.8), Known(4.0), Verdict.FROM_BELOW),
        (Known(0.8), Known(5.0), Verdict.BOTH),
        (Known(1.2), Known(4.0, Bound.AT_LEAST), Verdict.OPEN),
        (Known(1.2, Bound.AT_MOST), Known(4.0), Verdict.OPEN),
        (Known(0.7), Known(0.9), Verdict.SMALLER),
        (Known(4.5), Known(9.0), Verdict.LARGER),
        (Known(0.9, Bound.AT_LEAST), Known(0.9, Bound.AT_LEAST), Verdict.OPEN),
        (Known(1.0, Bound.OPEN), Known(1.0, Bound.OPEN), Verdict.OPEN),
    ],
)
def test_only_a_range_inside_the_papers_range_is_within_it(low: Known, high: Known, verdict: Verdict) -> None:
    assert claim("v1-rate-fcfs").verdict(one(low, high)) is verdict


def test_a_cost_below_the_papers_bound_is_within_it() -> None:
    assert claim("swap-share").verdict(one(Known(0.01))) is Verdict.WITHIN
    assert claim("swap-share").verdict(one(Known(0.06))) is Verdict.LARGER


def test_another_engine_is_named_wherever_the_papers_compare_with_one() -> None:
    text = report(made(MAIN, FIGURES, fastserve_wins(2.0)))
    for each in CLAIMS:
        if each.engine:
            assert f"{each.engine} is another engine" in text


def reason(key: str, rule: Rule, numbers: Numbers | None = None, figures: tuple[Figure, ...] = FIGURES) -> str:
    evaluation = made(MAIN, figures, rule, numbers)
    finding = claim(key).ours(evaluation)
    assert finding is not None
    return why(claim(key), evaluation, finding, claim(key).verdict(finding))


def test_where_ours_is_smaller_the_oracles_gain_and_its_load_tell_how_much_was_to_be_had() -> None:
    little = reason("v1-cv-fcfs", fastserve_wins(1.5))
    assert "SRPT, which knows lengths, gains up to 1.50x (CV 8, load 0.9): that is below the papers' too" in little

    def srpt_knows(run: Run) -> float:
        return 0.1 if run.system == SRPT else 1.0

    much = reason("v1-headline-tail", srpt_knows)
    assert "gains up to 10.0x (theta 1.8, load 0.9): on these jobs the papers' number takes knowing" in much


def test_a_range_that_is_left_on_both_sides_has_a_reason_for_each() -> None:
    def rule(run: Run) -> float:
        return (run.traffic.load or 0.0) * 10 if run.system == DEFER else 1.0

    told = reason("proactive-defer-little-kv", rule, lambda run: {"offloaded_gb": 0.0})
    assert "Ours is greatest at load 1.3: from load 1 on queues" in told
    even = reason(
        "proactive-defer-little-kv",
        lambda run: (4.0 if run.traffic.load == 1.3 else 1.0) if run.system == DEFER else 1.0,
        lambda run: {"offloaded_gb": 0.0},
    )
    assert "At load 0.3 all KV fits, none is moved: there the policies differ in nothing." in even
    assert "Ours is greatest at load 1.3" in even


@pytest.mark.parametrize("times", [0.3, 1.5, 40.0])
def test_every_row_that_differs_has_a_reason_beside_the_other_engine(times: float) -> None:
    evaluation = made(MAIN, FIGURES, fastserve_wins(times))
    for each in CLAIMS:
        finding = each.ours(evaluation)
        assert finding is not None
        verdict = each.verdict(finding)
        told = why(each, evaluation, finding, verdict)
        if each.engine:
            told = told.partition("here only its order.")[2]
        if verdict is not Verdict.WITHIN and not each.percent:
            assert len(told) > 20, each.key


def test_the_tail_is_read_and_named_as_the_tail() -> None:
    def rule(run: Run) -> float:
        return 3.0 if run.system == FCFS else 1.0

    finding = claim("v1-headline-tail").ours(made(MAIN, (OVERALL,), rule, lambda run: {"jct_s.mean": 1.0}))
    assert finding is not None
    assert finding.high.value == pytest.approx(3.0)
    assert ", P95, " in finding.text


def slow_static(share: float) -> Numbers:
    """Static batches take the longer for all jobs the higher the load, from `share` on."""
    return lambda run: {
        "duration_s": 5.0 if run.system == STATIC and (run.traffic.load or 0.0) >= share else 1.0,
        "jct_s.mean": 100.0 * (run.traffic.load or 0.0) + 1.0 if run.system == STATIC else 1.0,
    }


def test_static_batches_are_compared_only_where_they_keep_up() -> None:
    evaluation = made(MAIN, FIGURES, fastserve_wins(2.0), slow_static(0.05))
    finding = claim("v1-rate-static").ours(evaluation)
    assert finding is not None
    assert (finding.low.value, finding.high.value) == pytest.approx((3.0, 5.0))
    told = reason("v1-rate-static", fastserve_wins(2.0), slow_static(0.05))
    assert "from load 0.06 on in v1-09-static-batches, the jobs take up to 5.00x as long" in told


def test_static_batches_that_keep_up_nowhere_are_not_comparable() -> None:
    evaluation = made(MAIN, FIGURES, fastserve_wins(2.0), slow_static(0.0))
    finding = claim("v1-cv-static").ours(evaluation)
    assert finding is not None
    assert claim("v1-cv-static").verdict(finding) is Verdict.INCOMPARABLE
    row = next(line for line in report(evaluation).splitlines() if "burstiness" in line and "static batches" in line)
    assert "| [not comparable](v1-09-static-batches.csv) | not comparable." in row


def test_a_ratio_that_may_be_greater_than_the_greatest_decides_nothing() -> None:
    def rule(run: Run) -> float:
        load = run.traffic.load or 0.0
        if run.server == GPT_175B:
            return 0.1 if run.system == FASTSERVE or load <= 1.2 else 1.0
        return 0.1 if load <= (0.8 if run.system == FASTSERVE else 0.5) else 1.0

    finding = claim("v3-sharegpt-fcfs").ours(made(MAIN, FIGURES, rule))
    assert finding is not None
    assert [each.times.bound for each in finding.sustained] == [Bound.EXACT, Bound.EXACT, Bound.AT_LEAST]
    assert finding.high.value == finding.sustained[0].times.value
    assert finding.high.bound is Bound.AT_LEAST
    told = reason("v3-sharegpt-vllm", rule)
    assert "FastServe: all rates that were run are within the limit (OPT-175B, ShareGPT)." in told


def test_a_limit_is_told_in_token_times_of_each_panels_own_model() -> None:
    def token(run: Run) -> dict[str, float]:
        return {"gap_s.p50": 0.02 if run.server.profile.startswith("opt-13b") else 0.1}

    told = reason("v3-sharegpt-fcfs", fastserve_wins(1.0), token)
    assert "0.3 s is 15.0, 3.0, 3.0 times a token's time under FCFS at load 0.2" in told
    assert "0.05 s is 0.5, 0.5 times" in reason("n26-batches-fcfs", fastserve_wins(1.0), token)


def test_what_a_lasting_rate_leaves_is_told_of_the_panels_whose_baseline_stays_below_load_1() -> None:
    def rule(run: Run) -> float:
        load, model = run.traffic.load or 0.0, run.server.profile
        kept = 1.2 if run.system == FASTSERVE or model.startswith("opt-13b") else 0.5
        return 0.03 if load <= kept else 3.0

    told = reason("v3-sharegpt-fcfs", rule)
    assert "Up to load 1 that leaves at most 1.54x, 1.54x (OPT-66B, ShareGPT; OPT-175B, ShareGPT)." in told
    assert "FastServe's rates reach load 1.35; those above load 1 can't last." in told


def test_the_cost_of_swapping_is_read_from_the_time_in_which_kv_is_brought_back() -> None:
    def upload(run: Run) -> dict[str, float]:
        return {"upload_share": 0.2 if run.traffic.load == 1.0 else 0.0, "swap_share": 0.0, "offloaded_gb": 7.0}

    evaluation = made(MAIN, (SWAPS,), fastserve_wins(1.0), upload)
    finding = claim("swap-share").ours(evaluation)
    assert finding is not None
    assert finding.text == "up to 20.00% (load 1)"
    assert claim("swap-share").verdict(finding) is Verdict.LARGER


def test_reactive_swapping_is_judged_by_how_long_copies_keep_jobs_waiting() -> None:
    def upload(run: Run) -> dict[str, float]:
        return {"upload_s": 0.25 if run.system == REACTIVE else 0.05}

    told = reason("proactive-reactive", fastserve_wins(1.0), upload)
    assert "for 0.25 s on average with skip-join + reactive and for 0.05 s with FastServe" in told
    assert "20.0% of the mean JCT less. No iteration" in told


def test_recomputing_is_told_with_the_computing_that_it_costs() -> None:
    def busy(run: Run) -> dict[str, float]:
        return {"busy_s": 2.0 if run.system == RECOMPUTE and run.traffic.load == 1.5 else 1.0}

    told = reason("proactive-recompute", fastserve_wins(1.0), busy)
    assert "at most 2.00x as long as FastServe (load 1.5)" in told


def test_deferring_that_is_better_is_said_to_be() -> None:
    def rule(run: Run) -> float:
        return 2.0 if run.system == FASTSERVE else 1.0

    assert "At load 0.2 proactive is the worse one" in reason("proactive-defer", rule)
    lost = told(made(MAIN, (SWAPS,), rule), VANISHES)
    assert any("2.00x longer than with skip-join + defer" in each for each in lost)
    assert any("mean JCT is 2.00x longer than under FCFS" in each for each in lost)
    assert not any("longer" in each for each in told(made(MAIN, (SWAPS,), rule), GAIN) if "oracle" not in each)


def test_the_peak_is_told_over_the_loads_and_where_the_papers_number_lies() -> None:
    def peak(run: Run) -> dict[str, float]:
        return {"peak_kv_gb": (run.traffic.rate_per_s or 0.0) / 8 if run.system == FASTSERVE else 1.0}

    told = reason("peak-kv", fastserve_wins(1.0), peak)
    assert "The ratio rises with the load: 2.00x at load 8.00" in told
    assert "theirs lies between load 24.00 and 32.00 of this server" in told


def test_a_limit_that_the_baseline_keeps_in_overload_is_called_lax() -> None:
    def rule(run: Run) -> float:
        return 0.1 if (run.traffic.load or 0.0) <= 1.2 else 3.0

    told = reason("v3-sharegpt-fcfs", rule)
    assert "0.3 s is 3.0, 3.0, 3.0 times a token's time under FCFS at load 0.2" in told
    assert "All at load 1 or above, more than FCFS can serve for long" in told
    assert "Up to load 1" not in told


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
