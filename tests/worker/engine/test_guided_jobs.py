"""A job with a guide: its output keeps to it, ends with it, and is the same however the job is run."""

import json
import random
import threading

import pytest
from llguidance import LLMatcher

from models.make_random import byte_level_tokenizer
from services.domain.guide import Guide, GuideKind
from services.domain.ids import Epoch, JobId
from services.domain.job_sampling import JobSampling
from services.runtime.guide_compiler import GuideCompiler
from services.worker.engine.engine import Engine
from tests.worker.fake_kv_commands import FakeKvCommands
from tests.worker.fake_scheduler_plans import FakeSchedulerPlans
from tests.worker.random_swaps import swap_at_random
from tests.worker.tiny_engine import alone, new_engine, prompt_of, sampling, tiny_compiler

SCHEMA = {
    "type": "object",
    "properties": {
        "number": {"type": "integer", "minimum": 0, "maximum": 999},
        "text": {"type": "string", "maxLength": 9},
    },
    "required": ["number", "text"],
    "additionalProperties": False,
}
GUIDES = (
    Guide(GuideKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    Guide(GuideKind.REGEX, "[a-z]{5}-[0-9]{5}"),
    Guide(GuideKind.GRAMMAR, 'start: "<" word ("," word)~3 ">"\nword: /[a-d]{2,4}/'),
    Guide(GuideKind.CHOICE, choices=('first "one"', "second\\", "third\n/é")),
    Guide(GuideKind.JSON_OBJECT),
)
MOST_TOKENS = 60


def guided(number: int, **how: object) -> JobSampling:
    """Greedy and seeded ones, with the guides in turn."""
    fields = {"temperature": 0.0 if number % 2 else 0.9, "seed": number, **how}
    return sampling(max_tokens=MOST_TOKENS, guide=GUIDES[number % len(GUIDES)], **fields)  # type: ignore[arg-type]


def text_of(token_ids: list[int]) -> str:
    return str(byte_level_tokenizer(512).decode(token_ids))


def as_alone(runner: FakeSchedulerPlans, jobs: list[JobId]) -> None:
    for number, job_id in enumerate(jobs):
        assert runner.outputs[job_id] == alone(prompt_of(number, 6 + number), guided(number)), number


def begun(runner: FakeSchedulerPlans, count: int = 5) -> list[JobId]:
    return [runner.add(f"{number}/0", prompt_of(number, 6 + number), guided(number)) for number in range(count)]


@pytest.mark.parametrize("temperature", [0.0, 0.9, 2.0])
def test_an_output_is_what_its_guide_says_and_ends_with_it_whatever_min_tokens_say(
    temperature: float, runner: FakeSchedulerPlans
) -> None:
    how = guided(0, temperature=temperature, min_tokens=MOST_TOKENS, stop_token_ids=(1,))
    job_id = runner.add("a/0", prompt_of(3, 9), how)
    runner.finish(job_id)
    output = runner.outputs[job_id]
    assert len(output) < MOST_TOKENS
    found = json.loads(text_of(output))
    assert list(found) == ["number", "text"]
    assert 0 <= found["number"] <= 999
    assert len(found["text"]) <= 9


def test_a_choice_is_made_among_the_texts_letter_by_letter(runner: FakeSchedulerPlans) -> None:
    seeds = range(8)
    jobs = [runner.add(f"{seed}/0", prompt_of(1, 5), guided(3, temperature=2.0, seed=seed)) for seed in seeds]
    runner.finish(*jobs)
    made = {text_of(runner.outputs[job_id]) for job_id in jobs}
    assert made <= set(GUIDES[3].choices)
    assert len(made) > 1


def test_in_a_batch_with_and_without_guides_each_gives_what_it_gives_alone(runner: FakeSchedulerPlans) -> None:
    jobs = begun(runner)
    free = runner.add("free/0", prompt_of(9, 7), sampling(max_tokens=12))
    runner.finish(*jobs, free)
    as_alone(runner, jobs)
    assert runner.outputs[free] == alone(prompt_of(9, 7), sampling(max_tokens=12))


def test_swapped_all_the_time_each_gives_what_it_gives_alone() -> None:
    engine = new_engine(device_blocks=24, host_blocks=48)
    runner = FakeSchedulerPlans(FakeKvCommands(engine))
    jobs = begun(runner)
    assert swap_at_random(runner, jobs, random.Random(5)) > 10
    engine.close()
    as_alone(runner, jobs)


@pytest.mark.parametrize("chunk_tokens", [None, 3])
def test_started_again_from_its_tokens_each_goes_on_as_if_nothing_had_happened(
    chunk_tokens: int | None, runner: FakeSchedulerPlans, engine: Engine
) -> None:
    """KV dropped (blocks released), or lost with the worker (a new epoch). The guide does not see the prompt."""
    jobs = begun(runner)
    for turn in range(2):
        for _ in range(4):
            if left := [job_id for job_id in jobs if job_id not in runner.ended]:
                runner.run(*(runner.entry(job_id) for job_id in left))
        for job_id in jobs:
            if turn == 0:
                runner.kv.release(job_id)
            runner.planned[job_id] = 0
        if turn == 1:
            runner.kv = FakeKvCommands(engine, epoch=2)
        for job_id in jobs:
            while job_id not in runner.ended and runner.planned[job_id] < runner.known(job_id) - 1:
                end = None if chunk_tokens is None else runner.planned[job_id] + chunk_tokens
                whole = runner.known(job_id)
                runner.run(runner.entry(job_id, None if end is None or end >= whole else end))
    runner.finish(*jobs)
    as_alone(runner, jobs)


def test_an_entry_made_before_the_guide_was_known_to_be_complete_is_passed_over(
    runner: FakeSchedulerPlans, engine: Engine
) -> None:
    job_id = runner.add("a/0", prompt_of(1, 6), guided(1))
    runner.run(runner.entry(job_id))
    while job_id not in runner.ended:
        results = [engine.run(plan) for plan in [runner.plan(runner.entry(job_id)) for _ in range(2)]]
        for result in results:
            runner.take(result)
    assert [len(result.result.tokens) for result in results] in ([1, 1], [1, 0])
    assert engine.run(runner.plan(runner.entry(job_id))).result.tokens == ()
    assert runner.outputs[job_id] == alone(prompt_of(1, 6), guided(1))


class HeldCompiler:
    """Compiles when it is let."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def compile(self, guide: Guide) -> LLMatcher:
        assert self.go_on.wait(60.0)
        return tiny_compiler().compile(guide)


def test_while_a_guide_is_compiled_its_job_is_passed_over_and_the_others_run() -> None:
    compiler = HeldCompiler()
    engine = new_engine(compiler=compiler)
    runner = FakeSchedulerPlans(FakeKvCommands(engine))
    free = runner.add("free/0", prompt_of(9, 7), sampling(max_tokens=12))
    waiting = runner.add("waiting/0", prompt_of(1, 6), guided(1))
    first = engine.run(runner.plan(runner.entry(free), runner.entry(waiting)))
    runner.planned[waiting] = 0
    alone_there = engine.run(runner.plan(runner.entry(waiting)))
    assert [token.job_id for token in first.result.tokens] == [free]
    assert first.result.cut_job_ids == alone_there.result.cut_job_ids == (waiting,)
    compiler.go_on.set()
    runner.take(first)
    runner.planned[waiting] = 0
    runner.finish(free, waiting)
    engine.close()
    assert runner.outputs[waiting] == alone(prompt_of(1, 6), guided(1))
    assert runner.outputs[free] == alone(prompt_of(9, 7), sampling(max_tokens=12))


def test_a_job_whose_guide_cannot_be_followed_ends_and_says_why(runner: FakeSchedulerPlans) -> None:
    how = sampling(max_tokens=20, guide=Guide(GuideKind.REGEX, "(unclosed"))
    job_id = runner.add("a/0", prompt_of(1, 6), how)
    free = runner.add("free/0", prompt_of(9, 7), sampling(max_tokens=12))
    result = runner.run(runner.entry(job_id), runner.entry(free))
    assert result.failures.keys() == {job_id}
    assert "unclosed group" in result.failures[job_id]
    assert job_id in runner.ended
    runner.finish(free)
    assert runner.outputs[free] == alone(prompt_of(9, 7), sampling(max_tokens=12))


def test_a_new_epoch_forgets_the_guides_of_the_one_before(engine: Engine, runner: FakeSchedulerPlans) -> None:
    job_id = runner.add("a/0", prompt_of(1, 6), guided(1))
    engine.prepare_guides(runner.plan(runner.entry(job_id)))
    engine.guides.wait_any((job_id,), 20.0)
    assert engine.guides.is_ready(job_id)
    engine.begin_epoch(Epoch(2), lambda _: None)
    assert not engine.guides.is_ready(job_id)


def test_the_compiler_keeps_to_the_models_vocabulary() -> None:
    assert isinstance(tiny_compiler(), GuideCompiler)
    assert tiny_compiler().vocabulary_size == 512
