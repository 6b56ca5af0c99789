"""The conclusions: every number that a sentence states is what the results say."""

import pytest

from evaluation.claims import Verdict
from evaluation.conclusions import CONCLUSIONS, Tie, as_published, contradictions, read_aloud, sentences, ties, untied
from evaluation.fact_kinds import (
    Always,
    Fact,
    Growing,
    Judged,
    LeastOf,
    MostOf,
    ResultLine,
    SustainedLoad,
    ours_of_claim,
    papers,
    value_at,
)
from evaluation.facts import FACTS
from evaluation.paper_n26 import MEAN_LATENCY
from evaluation.paper_v1 import OVERALL
from evaluation.results import Evaluation
from evaluation.systems import FCFS, SKIP_JOIN
from evaluation.values import MAIN, Run
from tests.evaluation.made_evaluations import made

MOST_LINES = 100
"""One page."""
GAIN = ResultLine(OVERALL, ("rate, mean",), "jct_s.mean", FCFS, SKIP_JOIN)


def growing(run: Run) -> float:
    """FCFS takes ten times the load in seconds, FastServe one."""
    return 10.0 * (run.traffic.load or 0.0) if run.system == FCFS else 1.0


@pytest.fixture(scope="module")
def text() -> str:
    return CONCLUSIONS.read_text(encoding="utf-8")


def test_every_number_of_the_conclusions_is_what_the_committed_results_say(text: str, committed: Evaluation) -> None:
    assert [str(contradiction) for contradiction in contradictions(text, committed)] == []


def test_every_number_of_the_conclusions_is_tied_to_a_fact(text: str) -> None:
    assert untied(text) == []


def test_every_fact_is_stated(text: str) -> None:
    assert {tie.fact for tie in ties(text)} == set(FACTS)


def test_the_conclusions_are_one_page_whose_first_screen_answers_four_questions(text: str) -> None:
    first_screen = text.partition("\n## ")[0]
    for question in ("When does it pay?", "By how much?", "What does it cost?", "Against which baseline?"):
        assert f"\n**{question}** " in first_screen
    assert len(first_screen.splitlines()) <= 25
    assert len(text.splitlines()) <= MOST_LINES


def test_a_difference_names_the_sentence_its_number_and_the_one_that_it_is_now() -> None:
    facts: dict[str, Fact] = {"gain-1": value_at(GAIN, 1.0, "{value:.1f}x at load {x:g}")}
    text = "Some words first. The gain\nis [9.0x at load 1]{gain-1} here. More words."
    (contradiction,) = contradictions(text, made(MAIN, (OVERALL,), growing), facts)
    assert contradiction.tie == Tie("9.0x at load 1", "gain-1", "The gain is 9.0x at load 1 here.")
    assert str(contradiction) == (
        "'The gain is 9.0x at load 1 here.' states 9.0x at load 1 for gain-1; it is 10.0x at load 1"
    )
    assert contradictions(text.replace("9.0x", "10.0x"), made(MAIN, (OVERALL,), growing), facts) == []


def test_a_tie_to_a_fact_that_nobody_knows_is_a_difference() -> None:
    (contradiction,) = contradictions("It is [3]{no-such-fact}.", made(MAIN, (OVERALL,), growing), {})
    assert contradiction.now == "no fact of that name"


@pytest.mark.parametrize(
    ("sentence", "numbers"),
    [
        ("The gain is 3.7x.", ["3.7x"]),
        ("It takes twice as long.", ["twice"]),
        ("Half of the jobs, ten at most.", ["Half", "ten"]),
        ("The gain is [3.7x]{gain} at load 1.6.", ["1.6"]),
        ("GPT-175B and OPT-13B on an A100-40GB, P95, v1, N26.", []),
        ("See [the numbers](n26-11-mean-latency.csv) and `make figures FULL=1`.", []),
        ("A job waits; one of them is promoted.", []),
    ],
)
def test_numbers_in_digits_or_words_need_a_fact_and_names_do_not(sentence: str, numbers: list[str]) -> None:
    assert [told.partition(" in '")[0] for told in untied(sentence)] == numbers


def test_sentences_end_at_a_stop_and_at_a_list_item() -> None:
    text = "# Title\n\n**Why?** One [0.5 s]{a} here. Two\nends.\n- *Three.* Four\n  goes on.\n- Five"
    assert sentences(text) == [
        "# Title",
        "**Why?** One [0.5 s]{a} here.",
        "Two ends.",
        "- *Three.* Four goes on.",
        "- Five",
    ]


def test_readers_see_numbers_without_ties() -> None:
    assert read_aloud("The gain is [3.7x]{gain-most}; [see](x.csv).") == "The gain is 3.7x; [see](x.csv)."


def test_the_published_page_has_full_lines_and_keeps_its_paragraphs() -> None:
    words = "word " * 30
    text = f"# A title\n\nShort\nlines [1x]{{a}}.\n\n- An item of\n  two.\n- {words}end.\n\nThe end.\n"
    first, second = ("word " * 23).strip(), ("word " * 7).strip()
    assert as_published(text) == (
        f"# A title\n\nShort lines 1x.\n\n- An item of two.\n- {first}\n  {second} end.\n\nThe end.\n"
    )


@pytest.mark.parametrize(
    ("fact", "told"),
    [
        (value_at(GAIN, 0.6, "{value:.1f}x at load {x:g}"), "6.0x at load 0.6"),
        (MostOf(GAIN, "{value:.1f}x at load {x:g}"), "13.0x at load 1.3"),
        (MostOf(GAIN, "{value:.1f}x", (0.0, 0.6)), "6.0x"),
        (LeastOf(GAIN, "{value:.1f}x at load {x:g}"), "3.0x at load 0.3"),
        (LeastOf(ResultLine(OVERALL, ("rate, mean",), "jct_s.mean", FCFS), "{value:.0f} s"), "3 s"),
        (Growing(GAIN, "with the load"), "with the load"),
        (
            Growing(ResultLine(OVERALL, ("rate, mean",), "jct_s.mean", SKIP_JOIN, FCFS), "with the load"),
            "not so at 0.6, where the value falls from 0.333 to 0.167",
        ),
        (Always(GAIN, "at least 3x", at_least=2.9), "at least 3x"),
        (Always(GAIN, "at most 8x", at_most=8.0), "not so at 1, where the value is 10"),
        (papers("v1-cv-fcfs"), "2.3-5.1x"),
        (ours_of_claim("v1-rate-fcfs", "{low:.1f} to {high:.1f}"), "3.0 to 13.0"),
        (Judged("v1-rate-fcfs", Verdict.MET, "holds"), "holds"),
        (Judged("v1-rate-fcfs", Verdict.MISSED, "does not hold"), "not so: the verdict is 'met'"),
    ],
)
def test_a_fact_tells_what_the_results_say(fact: Fact, told: str) -> None:
    assert fact.told(made(MAIN, (OVERALL,), growing)) == told


def test_a_sustained_load_is_the_least_and_the_most_of_its_panels() -> None:
    def rule(run: Run) -> float:
        kept = 1.0 if run.server.profile.startswith("opt-66b") else 0.5
        return 0.03 if (run.traffic.load or 0.0) <= kept else 3.0

    titles = ("OPT-13B, ShareGPT", "OPT-66B, ShareGPT")
    fact = SustainedLoad(MEAN_LATENCY, titles, FCFS, 0.3, "{least:.2f} to {most:.2f}")
    assert fact.told(made(MAIN, (MEAN_LATENCY,), rule)) == "0.65 to 1.10"
