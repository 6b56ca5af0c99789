"""Values <-> wire for the stream between scheduler and worker.

Functions come in pairs, `x_to_wire` / `x_from_wire`. A plan and a result cross the wire once per iteration, so their
entries are created in place by `add`, which takes a quarter of the time of creating messages and copying them. The
readers raise ProtocolError for what only a bug of the peer can cause; an invalid cost profile raises InvalidFieldError.
Sampling parameters are single precision on the wire.
"""

from collections.abc import Iterable, Iterator, Sequence

from fastserve.v1 import scheduler_pb2 as wire
from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.errors import InvalidFieldError, ProtocolError
from services.domain.generation import TokenLogprob
from services.domain.ids import MOST_EPOCH, Epoch, JobId, PlanNumber
from services.domain.iteration import JobSpec, Plan, PlanWork, WorkerCounters, WorkerResult
from services.domain.prompt_logprobs import ScoredPrompt
from services.domain.protocol import IterationResult, PlansGivenBack, SampledToken
from services.domain.worker_facts import WorkerDraining, WorkerFacts
from services.wire.shared_fields import (
    logprob_from_wire,
    logprob_to_wire,
    prompt_logprobs_from_wire,
    prompt_logprobs_to_wire,
    sampling_from_wire,
    sampling_to_wire,
)

MOST_WORKER_ID = 128
MOST_DRAIN_S = 3600.0
MOST_TOKENS_TOGETHER = 65_536
"""Of the prompts in one message of plans: a third of a megabyte."""


def spec_to_wire(spec: JobSpec) -> wire.JobSpec:
    """The JobSpec of a plan entry that starts at position 0."""
    return wire.JobSpec(
        prompt_tokens=spec.prompt_tokens, known_tokens=spec.known_tokens, sampling=sampling_to_wire(spec.sampling)
    )


def spec_from_wire(message: wire.JobSpec) -> JobSpec:
    """The inverse of spec_to_wire."""
    return JobSpec(message.prompt_tokens, message.known_tokens, sampling_from_wire(message.sampling))


def plan_to_wire(epoch: Epoch, number: PlanNumber, entries: Iterable[PlanWork]) -> wire.Plan:
    """A plan for the worker of `epoch`. The `token_ids` of an entry may be any sequence, such as array('I')."""
    message = wire.Plan(epoch=epoch, plan_number=number)
    add = message.entries.add
    for job_id, from_token, to_token, token_ids, spec, cut_after_s, next_token_id in entries:
        entry = add(job_id=job_id, from_token=from_token, to_token=to_token)
        if token_ids:
            entry.token_ids.extend(token_ids)
        if spec is not None:
            entry.spec.CopyFrom(spec_to_wire(spec))
        if cut_after_s is not None:
            entry.cut_after_s = cut_after_s
        if next_token_id is not None:
            entry.next_token_id = next_token_id
    return message


def plans_to_wire(epoch: Epoch, plans: Sequence[tuple[PlanNumber, Sequence[PlanWork]]]) -> Iterator[wire.Plans]:
    """The plans in order, as few messages as hold at most MOST_TOKENS_TOGETHER tokens of prompts each; a plan that has
    more is alone.
    """
    together, tokens = wire.Plans(), 0
    for number, entries in plans:
        more = sum(len(entry.token_ids) for entry in entries)
        if together.plans and tokens + more > MOST_TOKENS_TOGETHER:
            yield together
            together, tokens = wire.Plans(), 0
        together.plans.append(plan_to_wire(epoch, number, entries))
        tokens += more
    if together.plans:
        yield together


def plan_from_wire(message: wire.Plan) -> Plan:
    """The inverse of plan_to_wire, with `token_ids` as tuples."""
    return Plan(
        Epoch(message.epoch),
        PlanNumber(message.plan_number),
        tuple(
            PlanWork(
                JobId(entry.job_id),
                entry.from_token,
                entry.to_token,
                tuple(entry.token_ids),
                spec_from_wire(entry.spec) if entry.HasField("spec") else None,
                entry.cut_after_s if entry.HasField("cut_after_s") else None,
                entry.next_token_id if entry.HasField("next_token_id") else None,
            )
            for entry in message.entries
        ),
    )


def result_to_wire(result: WorkerResult) -> wire.IterationResult:
    """The result of one iteration, without the log probabilities of prompts: they have messages of their own."""
    made = result.result
    message = wire.IterationResult(
        epoch=made.epoch, plan_number=made.plan_number, cut_job_ids=made.cut_job_ids, duration_s=made.duration_s
    )
    for job_id, reason in result.failures.items():
        message.failures[job_id] = reason
    add, logprobs = message.tokens.add, result.logprobs
    for job_id, token_id, end_of_sequence in made.tokens:
        token = add(job_id=job_id, token_id=token_id, end_of_sequence=end_of_sequence)
        if logprobs and job_id in logprobs:
            token.logprob.CopyFrom(logprob_to_wire(logprobs[job_id]))
    counters, own = message.counters, result.counters
    counters.stall_s = own.stall_s
    counters.busy_s = own.busy_s
    counters.plan_wait_s = own.plan_wait_s
    counters.offloaded_bytes = own.offloaded_bytes
    counters.uploaded_bytes = own.uploaded_bytes
    return message


def result_from_wire(message: wire.IterationResult) -> WorkerResult:
    """The inverse of result_to_wire."""
    tokens: list[SampledToken] = []
    logprobs: dict[JobId, TokenLogprob] = {}
    for token in message.tokens:
        job_id = JobId(token.job_id)
        tokens.append(SampledToken(job_id, token.token_id, token.end_of_sequence))
        if token.HasField("logprob"):
            logprobs[job_id] = logprob_from_wire(token.logprob)
    counters = message.counters
    return WorkerResult(
        IterationResult(
            Epoch(message.epoch),
            PlanNumber(message.plan_number),
            tuple(tokens),
            tuple(JobId(job) for job in message.cut_job_ids),
            message.duration_s,
        ),
        logprobs,
        WorkerCounters(
            counters.stall_s,
            counters.busy_s,
            counters.plan_wait_s,
            counters.offloaded_bytes,
            counters.uploaded_bytes,
        ),
        {JobId(job_id): reason for job_id, reason in message.failures.items()},
    )


def given_back_to_wire(given_back: PlansGivenBack) -> wire.PlansGivenBack:
    """The answer to a recall."""
    return wire.PlansGivenBack(epoch=given_back.epoch, first_plan_number=given_back.first_plan_number)


def given_back_from_wire(message: wire.PlansGivenBack) -> PlansGivenBack:
    """The inverse of given_back_to_wire."""
    first = PlanNumber(message.first_plan_number) if message.HasField("first_plan_number") else None
    return PlansGivenBack(Epoch(message.epoch), first)


def scored_to_wire(epoch: Epoch, scored: ScoredPrompt) -> wire.ScoredPrompt:
    """A part of a prompt whose log probabilities are known."""
    return wire.ScoredPrompt(epoch=epoch, job_id=scored.job_id, part=prompt_logprobs_to_wire(scored.part))


def scored_from_wire(message: wire.ScoredPrompt) -> ScoredPrompt:
    """The inverse of scored_to_wire, without the epoch. Raises ProtocolError."""
    return ScoredPrompt(JobId(message.job_id), prompt_logprobs_from_wire(message.part))


def profile_to_wire(profile: CostProfile) -> wire.CostProfile:
    """The measured cost model."""
    message = wire.CostProfile()
    for prefill in profile.prefill:
        message.prefill.add(tokens=prefill.tokens, seconds=prefill.seconds)
    for decode in profile.decode:
        message.decode.add(batch=decode.batch, context_tokens=decode.context_tokens, seconds=decode.seconds)
    return message


def profile_from_wire(message: wire.CostProfile) -> CostProfile:
    """The inverse of profile_to_wire. Raises InvalidFieldError for an invalid profile."""
    return CostProfile(
        tuple(PrefillCost(point.tokens, point.seconds) for point in message.prefill),
        tuple(DecodeCost(point.batch, point.context_tokens, point.seconds) for point in message.decode),
    )


def draining_to_wire(draining: WorkerDraining) -> wire.WorkerDraining:
    """The word that a worker is about to end."""
    return wire.WorkerDraining(limit_s=draining.limit_s)


def draining_from_wire(message: wire.WorkerDraining) -> WorkerDraining:
    """The inverse of draining_to_wire. Raises ProtocolError."""
    if not 0 <= message.limit_s <= MOST_DRAIN_S:
        raise ProtocolError(f"WorkerDraining: limit_s must be 0 to {MOST_DRAIN_S:g}, but is {message.limit_s:g}")
    return WorkerDraining(message.limit_s)


def worker_facts_to_wire(facts: WorkerFacts) -> wire.WorkerHello:
    """The first message of a worker."""
    return wire.WorkerHello(
        last_epoch=facts.last_epoch,
        group=facts.group,
        model_fingerprint=facts.model_fingerprint,
        block_size=facts.block_size,
        device_blocks=facts.device_blocks,
        host_blocks=facts.host_blocks,
        max_model_len=facts.max_model_len,
        block_bytes=facts.block_bytes,
        profile=profile_to_wire(facts.profile),
        device=facts.device,
        stages=facts.stage_count,
        ranks=facts.rank_count,
        worker_id=facts.worker_id,
    )


def worker_facts_from_wire(message: wire.WorkerHello) -> WorkerFacts:
    """The inverse of worker_facts_to_wire. Raises InvalidFieldError for an id or an epoch out of its limits, and for an
    invalid profile.
    """
    if not 0 < len(message.worker_id) <= MOST_WORKER_ID:
        raise InvalidFieldError("hello.worker_id", f"must have 1 to {MOST_WORKER_ID} characters")
    if message.last_epoch > MOST_EPOCH:
        raise InvalidFieldError("hello.last_epoch", f"must be at most {MOST_EPOCH}")
    return WorkerFacts(
        last_epoch=Epoch(message.last_epoch),
        group=message.group,
        model_fingerprint=message.model_fingerprint,
        block_size=message.block_size,
        device_blocks=message.device_blocks,
        host_blocks=message.host_blocks,
        max_model_len=message.max_model_len,
        block_bytes=message.block_bytes,
        profile=profile_from_wire(message.profile),
        device=message.device,
        stage_count=max(message.stages, 1),
        rank_count=max(message.ranks, 1),
        worker_id=message.worker_id,
    )
