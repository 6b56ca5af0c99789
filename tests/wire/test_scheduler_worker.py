"""The conversions between scheduler and worker lose nothing."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastserve.v1 import inference_pb2, scheduler_pb2
from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.errors import InvalidFieldError, ProtocolError
from services.domain.generation import TokenLogprob
from services.domain.guide import Guide, GuideKind
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.iteration import JobSpec, Plan, PlanWork, WorkerCounters, WorkerResult
from services.domain.job_sampling import JobSampling
from services.domain.prompt_logprobs import PromptLogprobs, ScoredPrompt
from services.domain.protocol import IterationResult, PlansGivenBack, SampledToken
from services.domain.submission import JobUpdate, ServingLimits
from services.domain.worker_facts import WorkerDraining, WorkerFacts
from services.wire import gateway_scheduler, scheduler_worker
from services.wire import shared_fields as sampling_wire

counts = st.integers(0, 2**32 - 1)
big_counts = st.integers(0, 2**64 - 1)
singles = st.floats(allow_nan=False, width=32)
seconds = st.floats(0, 1e9, allow_nan=False)
jobs = st.text(max_size=20).map(JobId)
token_ids = st.lists(counts, max_size=8).map(tuple)
logit_biases = st.dictionaries(counts, singles, max_size=5).map(lambda entries: tuple(sorted(entries.items())))

guides = st.one_of(
    st.builds(Guide, st.sampled_from([GuideKind.JSON_SCHEMA, GuideKind.REGEX, GuideKind.GRAMMAR]), st.text(max_size=9)),
    st.just(Guide(GuideKind.JSON_OBJECT)),
    st.lists(st.text(max_size=9), max_size=4).map(lambda texts: Guide(GuideKind.CHOICE, choices=tuple(texts))),
)

samplings = st.builds(
    JobSampling,
    max_tokens=counts,
    seed=st.integers(-(2**63), 2**63 - 1),
    choice=counts,
    min_tokens=counts,
    temperature=singles,
    top_p=singles,
    top_k=counts,
    min_p=singles,
    presence_penalty=singles,
    frequency_penalty=singles,
    repetition_penalty=singles,
    stop_token_ids=token_ids,
    logprobs=st.none() | st.integers(0, 20),
    logit_bias=logit_biases,
    guide=st.none() | guides,
    prompt_logprobs=st.none() | st.integers(0, 20),
)
specs = st.builds(JobSpec, counts, counts, samplings)
works = st.builds(PlanWork, jobs, counts, counts, token_ids, st.none() | specs, st.none() | seconds, st.none() | counts)
plans = st.builds(Plan, big_counts.map(Epoch), big_counts.map(PlanNumber), st.lists(works, max_size=4).map(tuple))
logprobs = st.builds(TokenLogprob, counts, singles, st.lists(st.tuples(counts, singles), max_size=3).map(tuple))
tokens = st.lists(
    st.builds(SampledToken, jobs, counts, st.booleans()), max_size=4, unique_by=lambda token: token.job_id
)
counters = st.builds(WorkerCounters, seconds, seconds, seconds, big_counts, big_counts)


@given(plans)
def test_a_plan_comes_back_as_it_was_sent(plan: Plan) -> None:
    data = scheduler_worker.plan_to_wire(plan.epoch, plan.plan_number, plan.entries).SerializeToString()
    assert scheduler_worker.plan_from_wire(scheduler_pb2.Plan.FromString(data)) == plan


def test_the_tokens_of_a_plan_may_be_an_array() -> None:
    work = PlanWork(JobId("a/0"), 0, 3, array("I", [7, 8, 9]), None, None)
    message = scheduler_worker.plan_to_wire(Epoch(1), PlanNumber(2), [work])
    assert scheduler_worker.plan_from_wire(message).entries[0].token_ids == (7, 8, 9)


def test_plans_travel_together_as_far_as_their_prompts_are_small() -> None:
    half = scheduler_worker.MOST_TOKENS_TOGETHER // 2

    def plan(number: int, tokens: int) -> tuple[PlanNumber, list[PlanWork]]:
        return PlanNumber(number), [PlanWork(JobId("a/0"), 0, tokens, array("I", [7]) * tokens, None, None)]

    sizes = [half, half, 1, 0, 3 * half, 2]
    messages = scheduler_worker.plans_to_wire(Epoch(1), [plan(number, size) for number, size in enumerate(sizes)])
    assert [[one.plan_number for one in message.plans] for message in messages] == [[0, 1], [2, 3], [4], [5]]


@given(st.data(), tokens, counters, seconds)
def test_a_result_comes_back_as_it_was_sent(
    data: st.DataObject, made: list[SampledToken], own: WorkerCounters, duration_s: float
) -> None:
    with_logprob = data.draw(st.sets(st.sampled_from([token.job_id for token in made]))) if made else set()
    result = WorkerResult(
        IterationResult(Epoch(3), PlanNumber(4), tuple(made), (JobId("x/0"),), duration_s),
        {job_id: data.draw(logprobs) for job_id in sorted(with_logprob)},
        own,
        {JobId("y/0"): "needs too many states"},
    )
    wire = scheduler_worker.result_to_wire(result).SerializeToString()
    assert scheduler_worker.result_from_wire(scheduler_pb2.IterationResult.FromString(wire)) == result


@given(big_counts.map(Epoch), st.none() | big_counts.map(PlanNumber))
def test_the_answer_to_a_recall_comes_back_as_it_was_sent(epoch: Epoch, first: PlanNumber | None) -> None:
    wire = scheduler_worker.given_back_to_wire(PlansGivenBack(epoch, first)).SerializeToString()
    assert scheduler_worker.given_back_from_wire(scheduler_pb2.PlansGivenBack.FromString(wire)) == (epoch, first)


@given(logprobs)
def test_a_log_probability_comes_back_as_it_was_sent(logprob: TokenLogprob) -> None:
    wire = sampling_wire.logprob_to_wire(logprob).SerializeToString()
    assert sampling_wire.logprob_from_wire(inference_pb2.TokenLogprob.FromString(wire)) == logprob


PROFILE = CostProfile(
    (PrefillCost(16, 0.01), PrefillCost(512, 0.2)),
    (DecodeCost(1, 16, 0.005), DecodeCost(1, 512, 0.006), DecodeCost(16, 16, 0.007), DecodeCost(16, 512, 0.009)),
)
FACTS = WorkerFacts(
    last_epoch=Epoch((3 << 32) + 17),
    group=0,
    model_fingerprint="f" * 64,
    block_size=16,
    device_blocks=100,
    host_blocks=400,
    max_model_len=2048,
    block_bytes=65536,
    profile=PROFILE,
    device="cpu",
    worker_id="f00",
)


def test_what_a_worker_says_of_itself_comes_back_as_it_was_sent() -> None:
    wire = scheduler_worker.worker_facts_to_wire(FACTS).SerializeToString()
    assert scheduler_worker.worker_facts_from_wire(scheduler_pb2.WorkerHello.FromString(wire)) == FACTS


@pytest.mark.parametrize(("field", "value"), [("worker_id", ""), ("worker_id", "w" * 129), ("last_epoch", (1 << 63))])
def test_a_worker_with_an_id_or_an_epoch_out_of_its_limits_is_refused_by_name(field: str, value: object) -> None:
    message = scheduler_worker.worker_facts_to_wire(FACTS)
    setattr(message, field, value)
    with pytest.raises(InvalidFieldError) as caught:
        scheduler_worker.worker_facts_from_wire(message)
    assert caught.value.field == f"hello.{field}"


def test_a_worker_that_is_about_to_end_says_how_long_it_has() -> None:
    wire = scheduler_worker.draining_to_wire(WorkerDraining(12.5)).SerializeToString()
    assert scheduler_worker.draining_from_wire(scheduler_pb2.WorkerDraining.FromString(wire)) == WorkerDraining(12.5)


@pytest.mark.parametrize("limit_s", [-1.0, 1e9, float("nan")])
def test_a_worker_that_names_no_time_to_end_is_refused(limit_s: float) -> None:
    with pytest.raises(ProtocolError, match="limit_s"):
        scheduler_worker.draining_from_wire(scheduler_pb2.WorkerDraining(limit_s=limit_s))


def test_a_worker_without_a_profile_is_refused_by_the_name_of_the_field() -> None:
    message = scheduler_worker.worker_facts_to_wire(FACTS)
    message.ClearField("profile")
    with pytest.raises(InvalidFieldError) as caught:
        scheduler_worker.worker_facts_from_wire(message)
    assert caught.value.field == "profile"


@given(st.builds(ServingLimits, st.booleans(), counts, counts))
def test_the_limits_of_a_job_come_back_as_they_were_sent(limits: ServingLimits) -> None:
    wire = gateway_scheduler.limits_to_wire(limits).SerializeToString()
    assert gateway_scheduler.limits_from_wire(scheduler_pb2.ServingLimits.FromString(wire)) == limits


def test_log_probabilities_of_a_prompt_come_back_from_the_wire() -> None:
    part = PromptLogprobs(3, array("f", [-1.5, -0.25]), array("I", [7, 8]), array("f", [-0.5, -0.25]))
    sent = scheduler_worker.scored_to_wire(Epoch(4), ScoredPrompt(JobId("a/0"), part))
    assert sent.epoch == 4
    assert scheduler_worker.scored_from_wire(sent) == ScoredPrompt(JobId("a/0"), part)
    (update,) = gateway_scheduler.updates_from_wire(
        gateway_scheduler.updates_to_wire([JobUpdate(JobId("a/0"), 0, (), (), prompt_logprobs=part)])
    )
    assert update.prompt_logprobs == part


@pytest.mark.parametrize(
    "part",
    [
        scheduler_pb2.PromptLogprobs(first_token=0, logprobs=[1.0]),
        scheduler_pb2.PromptLogprobs(first_token=1),
        scheduler_pb2.PromptLogprobs(first_token=1, logprobs=[1.0, 2.0], top_token_ids=[1], top_logprobs=[1.0]),
        scheduler_pb2.PromptLogprobs(first_token=1, logprobs=[1.0], top_token_ids=[1]),
    ],
)
def test_log_probabilities_that_do_not_fit_together_are_a_workers_bug(part: scheduler_pb2.PromptLogprobs) -> None:
    with pytest.raises(ProtocolError, match="PromptLogprobs"):
        scheduler_worker.scored_from_wire(scheduler_pb2.ScoredPrompt(job_id="a/0", part=part))
