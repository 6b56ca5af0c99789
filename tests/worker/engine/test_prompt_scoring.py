"""Log probabilities of a prompt are those of the model, however the prompt is read."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from services.domain.errors import ProtocolError
from services.domain.ids import JobId
from services.domain.iteration import JobSpec, PlanWork
from services.domain.prompt_logprobs import PromptLogprobs
from services.worker.engine import prompt_scoring
from services.worker.model.served_decoder import ServedDecoder
from services.worker.parallel.stage_pass import StagePass
from services.worker.sampling.sampler import most_probable
from tests.worker.fake_scheduler_plans import FakeSchedulerPlans
from tests.worker.model.reference_models import VOCABULARY, native_pair, plain_pair, reference_logits
from tests.worker.random_swaps import chunked_mixed_and_recomputed, swap_at_random
from tests.worker.tiny_engine import sampling

TOLERANCE = 1e-4
"""Between our sums and transformers' in float32."""


@pytest.fixture(params=[plain_pair, native_pair], ids=["torch", "native"])
def pair(request: pytest.FixtureRequest) -> tuple[object, ServedDecoder]:
    """A model of transformers, and the decoder with its weights."""
    return request.param()  # type: ignore[no-any-return]


@pytest.fixture
def model(pair: tuple[object, ServedDecoder]) -> ServedDecoder:
    return pair[1]


@pytest.fixture
def block_counts() -> tuple[int, int]:
    return 24, 48


def prompt_of(number: int, tokens: int) -> tuple[int, ...]:
    return tuple((number * 37 + position * 31) % VOCABULARY for position in range(tokens))


def scored_alone(runner: FakeSchedulerPlans, number: int, tokens: int, alternatives: int) -> PromptLogprobs:
    """What a prompt gives when it is read at once."""
    job_id = runner.add(f"alone-{number}/0", prompt_of(number, tokens), sampling(prompt_logprobs=alternatives))
    runner.run(runner.entry(job_id))
    runner.kv.release(job_id)
    return runner.scores[job_id].known


def reference(model: object, prompt: tuple[int, ...]) -> Tensor:
    return reference_logits(model, torch.tensor(prompt)).log_softmax(-1)


@pytest.mark.parametrize("alternatives", [0, 3, 20])
def test_they_are_the_log_softmax_of_transformers_logits(
    alternatives: int, pair: tuple[object, ServedDecoder], runner: FakeSchedulerPlans
) -> None:
    prompt = prompt_of(1, 23)
    expected_TV = reference(pair[0], prompt)
    found = scored_alone(runner, 1, 23, alternatives)
    assert (found.first_token, found.token_count, found.alternatives) == (1, 22, alternatives)
    for number, one in enumerate(found.of(prompt)):
        row_V = expected_TV[number]
        assert one.token_id == prompt[number + 1]
        assert one.logprob == pytest.approx(float(row_V[one.token_id]), abs=TOLERANCE)
        best = row_V.topk(alternatives).values.tolist() if alternatives else []
        assert [value for _, value in one.top] == pytest.approx(best, abs=TOLERANCE)
        assert [float(row_V[token_id]) for token_id, _ in one.top] == pytest.approx(best, abs=TOLERANCE)


def test_jobs_in_chunks_mixed_recomputed_and_swapped_have_the_bits_of_each_alone(
    runner: FakeSchedulerPlans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is scored once; what is computed again is the same (see FakeSchedulerPlans)."""
    alone = [scored_alone(runner, number, 6 + number, number) for number in range(6)]
    monkeypatch.setattr(prompt_scoring, "MOST_ROWS", 3)
    jobs = [
        runner.add(f"{number}/0", prompt_of(number, 6 + number), sampling(seed=number, prompt_logprobs=number))
        for number in range(6)
    ]
    chunked_mixed_and_recomputed(runner, jobs)
    assert swap_at_random(runner, jobs, random.Random(7)) > 10
    assert [runner.scores[job_id].known for job_id in jobs] == alone
    assert all(runner.scores[job_id].are_complete for job_id in jobs)


def test_rows_whose_logits_take_too_much_room_are_computed_in_several_passes(
    runner: FakeSchedulerPlans, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = scored_alone(runner, 2, 20, 2)
    monkeypatch.setattr(prompt_scoring, "MOST_LOGIT_BYTES", 4 * VOCABULARY * 4)
    job_id = runner.add("a/0", prompt_of(2, 20), sampling(prompt_logprobs=2))
    result = runner.run(runner.entry(job_id))
    assert [(one.part.first_token, one.part.token_count) for one in result.scored] == [
        (1, 4), (5, 4), (9, 4), (13, 4), (17, 3),
    ]  # fmt: skip
    assert runner.scores[job_id].known == whole
    assert len(result.result.tokens) == 1


def test_a_prefill_that_is_cut_tells_nothing(runner: FakeSchedulerPlans) -> None:
    whole = scored_alone(runner, 3, 20, 1)
    job_id = runner.add("a/0", prompt_of(3, 20), sampling(prompt_logprobs=1))
    runner.run(runner.entry(job_id, to_token=8))
    cut = runner.run(runner.entry(job_id, cut_after_s=0.0))
    assert (cut.result.cut_job_ids, cut.scored) == ((job_id,), ())
    runner.planned[job_id] = 8
    runner.run(runner.entry(job_id, cut_after_s=60.0))
    assert runner.scores[job_id].known == whole


def test_the_tokens_are_those_of_a_job_that_is_not_scored_and_others_go_on_beside_it(
    runner: FakeSchedulerPlans,
) -> None:
    plain = runner.add("plain/0", prompt_of(4, 9), sampling())
    runner.finish(plain)
    scored = runner.add("scored/0", prompt_of(4, 9), sampling(prompt_logprobs=0))
    other = runner.add("other/0", prompt_of(4, 9), sampling())
    runner.finish(scored, other)
    assert runner.outputs[scored] == runner.outputs[other] == runner.outputs[plain]
    assert other not in runner.scores


def test_a_prompt_of_one_token_has_none(runner: FakeSchedulerPlans) -> None:
    job_id = runner.add("a/0", (5,), sampling(prompt_logprobs=3))
    assert runner.run(runner.entry(job_id)).scored == ()


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_prompt_beyond_the_range_of_numbers_ends_no_step(
    broken: float, pair: tuple[object, ServedDecoder], runner: FakeSchedulerPlans, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = StagePass.run

    def spoilt(self: StagePass, *given: Any) -> Tensor | None:
        logits_SV = forward(self, *given)
        return None if logits_SV is None else logits_SV.clone().index_fill_(1, torch.tensor([3, 5]), broken)

    monkeypatch.setattr(StagePass, "run", spoilt)
    job_id = runner.add("a/0", prompt_of(1, 9), sampling(prompt_logprobs=4))
    runner.run(runner.entry(job_id))
    assert runner.scores[job_id].are_complete


def test_equals_are_named_by_the_lower_id() -> None:
    logits_RV = torch.tensor([[0.0, 2.0, 1.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0, 4.0]])
    assert most_probable(logits_RV, 3).tolist() == [[1, 3, 2], [4, 0, 1]]


@pytest.mark.parametrize("after", [None, VOCABULARY])
def test_a_part_without_the_token_after_it_is_refused(after: int | None, runner: FakeSchedulerPlans) -> None:
    job_id = JobId("a/0")
    runner.kv.grow(job_id, 4)
    spec = JobSpec(9, 9, sampling(prompt_logprobs=0))
    with pytest.raises(ProtocolError, match="the token after it is"):
        runner.run(PlanWork(job_id, 0, 4, prompt_of(1, 4), spec, None, after))
