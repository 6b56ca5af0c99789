"""Values <-> wire for the stream between scheduler and worker, and the parts of it that gateways use too.

Every pair is `x_to_wire` / `x_from_wire`. A plan and a result cross the wire once per iteration, so their entries are
made in place by `add`, which costs a quarter of making messages and copying them in. The readers check what only a
peer's bug can break and raise ProtocolError; a cost profile out of its limits raises InvalidFieldError. Sampling
parameters are single precision on the wire.
"""

from collections.abc import Iterable

from fastserve.v1 import scheduler_pb2 as wire
from fastserve.v1.inference_pb2 import TokenLogprob as WireTokenLogprob
from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.errors import ProtocolError
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.protocol import IterationResult, SampledToken
from services.domain.sampling import JobSampling
from services.domain.work import (
    JobSpec,
    Plan,
    PlanWork,
    ServingLimits,
    TokenLogprob,
    WorkerCounters,
    WorkerFacts,
    WorkerResult,
)


def sampling_to_wire(sampling: JobSampling) -> wire.JobSampling:
    """JobSampling for SubmitJob and JobSpec."""
    message = wire.JobSampling(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        choice=sampling.choice,
        stop_token_ids=sampling.stop_token_ids,
    )
    if sampling.logprobs is not None:
        message.logprobs = sampling.logprobs
    if sampling.logit_bias:
        message.logit_bias.update(dict(sampling.logit_bias))
    return message


def sampling_from_wire(message: wire.JobSampling) -> JobSampling:
    """The inverse of sampling_to_wire."""
    return JobSampling(
        max_tokens=message.max_tokens,
        seed=message.seed,
        choice=message.choice,
        min_tokens=message.min_tokens,
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        stop_token_ids=tuple(message.stop_token_ids),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        logit_bias=tuple(sorted(message.logit_bias.items())),
    )


def logprob_to_wire(logprob: TokenLogprob) -> WireTokenLogprob:
    """TokenLogprob, as workers, scheduler and gateway pass it on."""
    message = WireTokenLogprob(token_id=logprob.token_id, logprob=logprob.logprob)
    for token_id, value in logprob.top:
        message.top.add(token_id=token_id, logprob=value)
    return message


def logprob_from_wire(message: WireTokenLogprob) -> TokenLogprob:
    """The inverse of logprob_to_wire."""
    return TokenLogprob(message.token_id, message.logprob, tuple((one.token_id, one.logprob) for one in message.top))


def spec_to_wire(spec: JobSpec) -> wire.JobSpec:
    """JobSpec of a plan entry that starts at position 0."""
    return wire.JobSpec(
        prompt_tokens=spec.prompt_tokens, known_tokens=spec.known_tokens, sampling=sampling_to_wire(spec.sampling)
    )


def spec_from_wire(message: wire.JobSpec) -> JobSpec:
    """The inverse of spec_to_wire."""
    return JobSpec(message.prompt_tokens, message.known_tokens, sampling_from_wire(message.sampling))


def plan_to_wire(epoch: Epoch, number: PlanNumber, entries: Iterable[PlanWork]) -> wire.Plan:
    """A plan for the worker of `epoch`. `token_ids` of an entry may be any sequence of ids, array('I') among them."""
    message = wire.Plan(epoch=epoch, plan_number=number)
    add = message.entries.add
    for job, from_token, to_token, token_ids, spec, cut_after_s in entries:
        entry = add(job_id=job, from_token=from_token, to_token=to_token)
        if token_ids:
            entry.token_ids.extend(token_ids)
        if spec is not None:
            entry.spec.CopyFrom(spec_to_wire(spec))
        if cut_after_s is not None:
            entry.cut_after_s = cut_after_s
    return message


def plan_from_wire(message: wire.Plan) -> Plan:
    """The inverse of plan_to_wire. `token_ids` come as tuples."""
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
            )
            for entry in message.entries
        ),
    )


def result_to_wire(result: WorkerResult) -> wire.IterationResult:
    """The result of one iteration."""
    made = result.result
    message = wire.IterationResult(
        epoch=made.epoch, plan_number=made.plan, cut_job_ids=made.cut, duration_s=made.duration_s
    )
    add, logprobs = message.tokens.add, result.logprobs
    for job, token_id, end_of_sequence in made.tokens:
        token = add(job_id=job, token_id=token_id, end_of_sequence=end_of_sequence)
        if logprobs and job in logprobs:
            token.logprob.CopyFrom(logprob_to_wire(logprobs[job]))
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
        job = JobId(token.job_id)
        tokens.append(SampledToken(job, token.token_id, token.end_of_sequence))
        if token.HasField("logprob"):
            logprobs[job] = logprob_from_wire(token.logprob)
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
    )


def profile_to_wire(profile: CostProfile) -> wire.CostProfile:
    """The measured cost model."""
    message = wire.CostProfile()
    for prefill in profile.prefill:
        message.prefill.add(tokens=prefill.tokens, seconds=prefill.seconds)
    for decode in profile.decode:
        message.decode.add(batch=decode.batch, context_tokens=decode.context_tokens, seconds=decode.seconds)
    return message


def profile_from_wire(message: wire.CostProfile) -> CostProfile:
    """The inverse of profile_to_wire. Raises InvalidFieldError for a profile that is none."""
    return CostProfile(
        tuple(PrefillCost(point.tokens, point.seconds) for point in message.prefill),
        tuple(DecodeCost(point.batch, point.context_tokens, point.seconds) for point in message.decode),
    )


def worker_facts_to_wire(facts: WorkerFacts) -> wire.WorkerHello:
    """The first message of a worker."""
    return wire.WorkerHello(
        epoch=facts.epoch,
        group=facts.group,
        model_fingerprint=facts.model_fingerprint,
        block_size=facts.block_size,
        device_blocks=facts.device_blocks,
        host_blocks=facts.host_blocks,
        max_model_len=facts.max_model_len,
        block_bytes=facts.block_bytes,
        profile=profile_to_wire(facts.profile),
        device=facts.device,
    )


def worker_facts_from_wire(message: wire.WorkerHello) -> WorkerFacts:
    """The inverse of worker_facts_to_wire. Raises ProtocolError without an epoch, InvalidFieldError for a profile."""
    if message.epoch == 0:
        raise ProtocolError("WorkerHello names no epoch")
    return WorkerFacts(
        epoch=Epoch(message.epoch),
        group=message.group,
        model_fingerprint=message.model_fingerprint,
        block_size=message.block_size,
        device_blocks=message.device_blocks,
        host_blocks=message.host_blocks,
        max_model_len=message.max_model_len,
        block_bytes=message.block_bytes,
        profile=profile_from_wire(message.profile),
        device=message.device,
    )


def limits_to_wire(limits: ServingLimits) -> wire.ServingLimits:
    """What a job may be, for gateways."""
    return wire.ServingLimits(
        ready=limits.ready, max_model_len=limits.max_model_len, device_pool_tokens=limits.device_pool_tokens
    )


def limits_from_wire(message: wire.ServingLimits) -> ServingLimits:
    """The inverse of limits_to_wire."""
    return ServingLimits(message.ready, message.max_model_len, message.device_pool_tokens)
