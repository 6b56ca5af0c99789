"""The prediction tells jobs apart where their features say something, and hardly where they do not."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from services.domain.ids import JobId
from services.domain.protocol import Rank
from services.domain.submission import CLIENT_NUMBERS
from services.scheduler.job import Job
from services.scheduler.policies.length_prediction import MEMORY_JOBS, MOST_STEPS, STEPS_PER_OCTAVE, OnlineClasses

NOWHERE = Rank(0, 0.0, 0)


def job(prompt_tokens: int = 100, max_tokens: int = 4096, client_number: int = 0) -> Job:
    """A job that arrives."""
    return Job(
        JobId("a"), 0, 0, prompt_tokens, max_tokens, 0.0, None, NOWHERE, NOWHERE, prompt_tokens, prompt_tokens,
        client_number,
    )  # fmt: skip


def about(random: Random, median: float) -> int:
    """A length that varies as those of a client do."""
    return max(1, round(median * 2 ** random.gauss(0.0, 0.6)))


def taught(pairs: Iterator[tuple[Job, int]]) -> OnlineClasses:
    """After these jobs have completed with so many tokens."""
    classes = OnlineClasses()
    for one, output_tokens in pairs:
        classes.class_of(one)
        classes.learn(one, output_tokens)
    return classes


def clients_jobs(random: Random, count: int) -> Iterator[tuple[Job, int]]:
    """Jobs of clients 1 to 5, each of which makes four times as much as the one before."""
    for _ in range(count):
        client_number = random.randrange(1, 6)
        prompt_tokens = random.randrange(1, 2000)
        yield job(prompt_tokens, client_number=client_number), about(random, 4**client_number)


def test_before_anything_has_completed_all_jobs_are_alike() -> None:
    classes = OnlineClasses()
    jobs = [job(prompt_tokens, 10 * prompt_tokens, number) for number, prompt_tokens in enumerate((1, 50, 3000))]
    assert {classes.class_of(one) for one in jobs} == {0}


def test_clients_whose_jobs_differ_are_told_apart_by_as_much() -> None:
    classes = taught(clients_jobs(Random(1), 600))
    steps = [classes.class_of(job(client_number=number)) for number in range(2, 5)]
    assert steps == pytest.approx([steps[1] - 4, steps[1], steps[1] + 4], abs=1), "four half octaves each"


def test_what_is_known_of_prompts_holds_for_a_client_of_whom_nothing_is_known() -> None:
    random = Random(2)

    def jobs() -> Iterator[tuple[Job, int]]:
        for one, output_tokens in clients_jobs(random, 1000):
            yield one, output_tokens * (8 if one.prompt_tokens < 500 else 1)

    classes = taught(jobs())
    short, long = (classes.class_of(job(prompt_tokens, client_number=77)) for prompt_tokens in (300, 1500))
    assert short - long == pytest.approx(3 * STEPS_PER_OCTAVE, abs=2)


def test_max_tokens_tells_as_much_as_it_has_turned_out_to() -> None:
    random = Random(3)
    asked = [2 ** random.randrange(4, 12) for _ in range(1000)]
    classes = taught((job(max_tokens=most), about(random, most / 4)) for most in asked)
    unrelated = taught((job(max_tokens=most), about(random, 100)) for most in asked)
    told, not_told = ([one.class_of(job(max_tokens=2**bits)) for bits in (5, 7, 9)] for one in (classes, unrelated))
    assert told == pytest.approx([told[1] - 4, told[1], told[1] + 4], abs=1)
    assert max(not_told) - min(not_told) <= 1


def test_where_the_features_say_nothing_nearly_all_jobs_are_in_one_class() -> None:
    random = Random(4)

    def drawn() -> Job:
        return job(random.randrange(1, 4000), random.randrange(1, 4000), random.randrange(100))

    classes = taught((drawn(), about(random, 2 ** random.uniform(4, 11))) for _ in range(4000))
    counts = Counter(classes.class_of(drawn()) for _ in range(2000))
    assert sum(count for _, count in counts.most_common(3)) > 0.9 * 2000


def test_a_client_that_changes_is_known_anew_after_as_many_jobs_as_are_remembered() -> None:
    random = Random(5)
    classes = taught(clients_jobs(random, 4000))
    before = classes.class_of(job(client_number=2))
    for one, output_tokens in clients_jobs(random, 5 * 2 * MEMORY_JOBS):
        classes.learn(one, output_tokens * (16 if one.client_number == 2 else 1))
    assert classes.class_of(job(client_number=2)) - before == pytest.approx(8, abs=3)


def test_classes_and_memory_are_bounded_whatever_comes() -> None:
    random = Random(6)
    classes = OnlineClasses()
    seen = set()
    for number in range(20_000):
        one = job(2 ** random.randrange(30), 2 ** random.randrange(30), number % CLIENT_NUMBERS)
        seen.add(classes.class_of(one))
        classes.learn(one, 1 + (one.prompt_tokens * one.max_tokens) % 10_000_000)
    assert seen <= set(range(-MOST_STEPS, MOST_STEPS + 1))
    assert len(classes.state_key()) < CLIENT_NUMBERS + 2 * 32


def test_the_same_jobs_teach_the_same_and_the_state_tells_what_was_learnt() -> None:
    first, second = (taught(clients_jobs(Random(7), 50)) for _ in range(2))
    assert first.state_key() == second.state_key()
    second.learn(job(client_number=1), 5)
    assert first.state_key() != second.state_key()
