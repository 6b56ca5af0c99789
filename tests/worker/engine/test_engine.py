"""The engine runs what plans say, and a job's tokens do not depend on how it is run."""

import math
import random

import pytest
import torch
from torch import Tensor

from services.domain.errors import ProtocolError
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.iteration import JobSpec, Plan, PlanWork
from services.domain.job_sampling import JobSampling
from services.domain.protocol import Assign
from services.worker.engine.engine import Engine
from services.worker.model.prefill_cut import PrefillCut
from services.worker.model.served_decoder import ServedDecoder
from tests.worker.fake_kv_commands import FakeKvCommands
from tests.worker.fake_scheduler_plans import FakeSchedulerPlans
from tests.worker.random_swaps import swap_at_random
from tests.worker.tiny_engine import alone, native_tiny_model, new_engine, prompt_of, sampling, tiny_model


@pytest.fixture(params=[tiny_model, native_tiny_model], ids=["torch", "native"])
def model(request: pytest.FixtureRequest) -> ServedDecoder:
    return request.param()  # type: ignore[no-any-return]


only_torch = pytest.mark.parametrize("model", [tiny_model], ids=["torch"], indirect=True)
"""For what is observed by hooks of torch's modules."""


def spoil_first_row(_: object, __: object, logits: Tensor) -> Tensor:
    spoilt = logits.clone()
    spoilt[0] = math.inf
    return spoilt


def varied(number: int) -> JobSampling:
    """Greedy, plainly sampled, and sampled with everything on, in turn."""
    kinds: list[dict[str, object]] = [
        {},
        {"temperature": 1.0},
        {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.4, "logprobs": 2},
    ]
    return sampling(max_tokens=10 + number, seed=number, **kinds[number % len(kinds)])  # type: ignore[arg-type]


def test_jobs_in_one_batch_give_what_each_gives_alone(runner: FakeSchedulerPlans) -> None:
    jobs = [runner.add(f"{number}/0", prompt_of(number, 3 + 5 * number), varied(number)) for number in range(5)]
    runner.finish(*jobs)
    for number, job_id in enumerate(jobs):
        assert runner.outputs[job_id] == alone(prompt_of(number, 3 + 5 * number), varied(number))


def test_prefill_and_decode_mix_in_one_plan(runner: FakeSchedulerPlans) -> None:
    first = runner.add("a/0", prompt_of(1, 9), sampling())
    runner.run(runner.entry(first))
    second = runner.add("b/0", prompt_of(2, 1), sampling())
    result = runner.run(runner.entry(second), runner.entry(first))
    assert {token.job_id for token in result.result.tokens} == {first, second}
    runner.finish(first, second)
    assert runner.outputs[first] == alone(prompt_of(1, 9), sampling())
    assert runner.outputs[second] == alone(prompt_of(2, 1), sampling())


def test_a_chunked_prefill_samples_once_at_its_end(runner: FakeSchedulerPlans) -> None:
    job_id = runner.add("a/0", prompt_of(3, 11), sampling(seed=5, temperature=1.0))
    assert runner.run(runner.entry(job_id, to_token=4)).result.tokens == ()
    assert runner.run(runner.entry(job_id, to_token=10)).result.tokens == ()
    assert len(runner.run(runner.entry(job_id)).result.tokens) == 1
    runner.finish(job_id)
    assert runner.outputs[job_id] == alone(prompt_of(3, 11), sampling(seed=5, temperature=1.0))


def test_a_job_prefilled_again_with_its_output_goes_on_as_if_nothing_had_happened(runner: FakeSchedulerPlans) -> None:
    how = sampling(max_tokens=20, seed=1, temperature=1.0, presence_penalty=2.0)
    job_id = runner.add("a/0", prompt_of(4, 6), how)
    for _ in range(4):
        runner.run(runner.entry(job_id))
    runner.kv.release(job_id)
    runner.planned[job_id] = 0
    runner.finish(job_id)
    assert runner.outputs[job_id] == alone(prompt_of(4, 6), how)


def test_a_new_epoch_starts_empty_and_a_job_goes_on_from_its_last_token(
    engine: Engine, runner: FakeSchedulerPlans
) -> None:
    how = varied(1)
    job_id = runner.add("a/0", prompt_of(4, 6), how)
    for _ in range(4):
        runner.run(runner.entry(job_id))
    later = FakeSchedulerPlans(FakeKvCommands(engine, epoch=2))
    later.add("a/0", prompt_of(4, 6), how)
    later.outputs[job_id] = runner.outputs[job_id]
    later.finish(job_id)
    assert later.outputs[job_id] == alone(prompt_of(4, 6), how)


def test_an_entry_behind_the_end_of_a_job_is_passed_over(runner: FakeSchedulerPlans) -> None:
    prompt = prompt_of(5, 7)
    second_token = alone(prompt, sampling())[1]
    job_id = runner.add("a/0", prompt, sampling(stop_token_ids=(second_token,)))
    other = runner.add("b/0", prompt_of(6, 3), sampling())
    runner.run(runner.entry(job_id), runner.entry(other))
    made = runner.run(runner.entry(job_id), runner.entry(other)).result.tokens
    assert [token.end_of_sequence for token in made] == [True, False]
    beyond = PlanWork(job_id, len(prompt) + 1, len(prompt) + 2, (), None, None)
    runner.kv.grow(job_id, len(prompt) + 2)
    assert [token.job_id for token in runner.run(beyond, runner.entry(other)).result.tokens] == [other]


def test_a_prefill_is_cut_at_its_limit_and_costs_the_others_nothing(runner: FakeSchedulerPlans) -> None:
    other = runner.add("b/0", prompt_of(6, 3), sampling())
    runner.run(runner.entry(other))
    job_id = runner.add("a/0", prompt_of(7, 40), sampling())
    result = runner.run(runner.entry(job_id, cut_after_s=0.0), runner.entry(other)).result
    assert result.cut_job_ids == (job_id,)
    assert [token.job_id for token in result.tokens] == [other]
    runner.planned[job_id] = 0
    result = runner.run(runner.entry(job_id, cut_after_s=60.0), runner.entry(other)).result
    assert result.cut_job_ids == ()
    runner.finish(job_id, other)
    assert runner.outputs[job_id] == alone(prompt_of(7, 40), sampling())
    assert runner.outputs[other] == alone(prompt_of(6, 3), sampling())


def test_a_chunk_that_is_cut_is_computed_again_and_the_chunks_before_it_are_not(runner: FakeSchedulerPlans) -> None:
    how = sampling(max_tokens=20, seed=1, temperature=1.0, presence_penalty=2.0)
    job_id = runner.add("a/0", prompt_of(7, 40), how)
    runner.run(runner.entry(job_id, to_token=16))
    assert runner.run(runner.entry(job_id, cut_after_s=0.0)).result.cut_job_ids == (job_id,)
    runner.planned[job_id] = 16
    runner.finish(job_id)
    assert runner.outputs[job_id] == alone(prompt_of(7, 40), how)


@only_torch
def test_an_engine_that_gives_up_abandons_its_iteration_between_two_layers(
    runner: FakeSchedulerPlans, engine: Engine
) -> None:
    job_id = runner.add("a/0", prompt_of(1, 40), sampling())
    asked: list[int] = []
    hooks = [
        tiny_model().layers[0].register_forward_hook(lambda *_: engine.give_up()),
        tiny_model().layers[1].register_forward_hook(lambda *_: asked.append(1)),
    ]
    try:
        with pytest.raises(PrefillCut):
            runner.run(runner.entry(job_id))
    finally:
        for hook in hooks:
            hook.remove()
    assert asked == []


@only_torch
def test_an_engine_that_gives_up_abandons_a_prefill_with_a_limit_too(
    runner: FakeSchedulerPlans, engine: Engine
) -> None:
    job_id = runner.add("a/0", prompt_of(1, 40), sampling())
    hook = tiny_model().layers[0].register_forward_hook(lambda *_: engine.give_up())
    try:
        with pytest.raises(PrefillCut):
            runner.run(runner.entry(job_id, cut_after_s=60.0))
    finally:
        hook.remove()


@only_torch
def test_a_job_beyond_the_range_of_float16_is_named_once_and_the_others_go_on(
    runner: FakeSchedulerPlans, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loud = runner.add("loud/0", prompt_of(1, 9), sampling())
    quiet = runner.add("quiet/0", prompt_of(2, 9), sampling())
    monkeypatch.setattr(engine.model, "dtype", torch.float16)
    hook = tiny_model().register_forward_hook(spoil_first_row)
    try:
        for _ in range(3):
            runner.run(runner.entry(loud), runner.entry(quiet))
    finally:
        hook.remove()
    (record,) = caplog.records
    assert "job loud/0, tokens up to 9: its numbers exceed the range of float16" in record.getMessage()
    assert (vars(record)["request_id"], vars(record)["job_id"]) == ("loud", "loud/0")
    assert runner.outputs[quiet] == alone(prompt_of(2, 9), sampling())[:3]


def test_jobs_that_swap_all_the_time_give_what_each_gives_alone(model: ServedDecoder) -> None:
    engine = new_engine(device_blocks=24, host_blocks=48, model=model)
    runner = FakeSchedulerPlans(FakeKvCommands(engine))
    jobs = [runner.add(f"{number}/0", prompt_of(number, 6 + number), varied(number)) for number in range(6)]
    moves = swap_at_random(runner, jobs, random.Random(7))
    engine.check()
    engine.close()
    assert moves > 30
    for number, job_id in enumerate(jobs):
        assert runner.outputs[job_id] == alone(prompt_of(number, 6 + number), varied(number))


class TestAPlanThatCanNotBeRightIsRefusedLoudly:
    def refused(self, runner: FakeSchedulerPlans, entry: PlanWork, why: str) -> None:
        with pytest.raises(ProtocolError, match=why):
            runner.run(entry)

    def test_beyond_the_table(self, runner: FakeSchedulerPlans) -> None:
        job_id = runner.add("a/0", prompt_of(1, 9), sampling())
        runner.kv.grow(job_id, 8)
        spec = JobSpec(9, 9, sampling())
        self.refused(runner, PlanWork(job_id, 0, 9, prompt_of(1, 9), spec, None), "beyond the job's table of 2 blocks")

    def test_of_a_job_without_blocks(self, runner: FakeSchedulerPlans) -> None:
        self.refused(runner, PlanWork(JobId("x/0"), 4, 5, (), None, None), "has no blocks")

    def test_from_a_position_whose_past_is_not_valid(self, runner: FakeSchedulerPlans) -> None:
        job_id = runner.add("a/0", prompt_of(1, 9), sampling())
        runner.run(runner.entry(job_id, to_token=4))
        self.refused(runner, PlanWork(job_id, 5, 9, prompt_of(1, 9)[5:], None, None), "KV of 4 tokens is valid")

    def test_with_a_job_that_was_never_described(self, runner: FakeSchedulerPlans) -> None:
        runner.kv.grow(JobId("a/0"), 9)
        self.refused(runner, PlanWork(JobId("a/0"), 0, 4, (1, 2, 3, 4), None, None), "how to sample")
        self.refused(runner, PlanWork(JobId("a/0"), 4, 5, (), None, None), "the job is unknown")

    def test_with_a_token_out_of_the_vocabulary(self, runner: FakeSchedulerPlans) -> None:
        job_id = runner.add("a/0", (3, 512), sampling())
        self.refused(runner, runner.entry(job_id), "outside the vocabulary of 512")

    def test_out_of_order(self, runner: FakeSchedulerPlans) -> None:
        job_id = runner.add("a/0", prompt_of(1, 9), sampling())
        entry = runner.entry(job_id)
        runner.run(entry)
        with pytest.raises(ProtocolError, match="comes after"):
            runner.kv.engine.run(Plan(Epoch(1), PlanNumber(1), (entry,)))

    def test_and_nothing_of_it_was_computed(self, runner: FakeSchedulerPlans) -> None:
        good = runner.add("a/0", prompt_of(1, 9), sampling())
        entry = runner.entry(good)
        with pytest.raises(ProtocolError):
            runner.run(entry, PlanWork(JobId("x/0"), 4, 5, (), None, None))
        runner.planned[good] = 0
        runner.finish(good)
        assert runner.outputs[good] == alone(prompt_of(1, 9), sampling())


def test_counters_tell_what_was_done(runner: FakeSchedulerPlans, engine: Engine) -> None:
    job_id = runner.add("a/0", prompt_of(1, 9), sampling())
    runner.run(runner.entry(job_id))
    runner.kv.wait_done(runner.kv.offload(job_id, 9))
    runner.kv.wait_done(runner.kv.upload(job_id, 9))
    counters = engine.counters()
    assert counters.offloaded_bytes == counters.uploaded_bytes == 3 * engine.pools.shape.block_bytes
    assert counters.busy_s > 0
    assert engine.has_unfinished_jobs()
    engine.apply(Assign(runner.kv.number(), JobId("b/0"), ()))
    runner.finish(job_id)
    assert not engine.has_unfinished_jobs()
