"""Values <-> wire for what the gateway says to clients and to the scheduler. The pairs used by others too are in
services.runtime.scheduler_link.
"""

import hashlib
from array import array
from collections.abc import Iterable
from typing import Any

from fastserve.v1 import admin_pb2, inference_pb2
from fastserve.v1 import scheduler_pb2 as wire
from services.domain.errors import FastServeError
from services.domain.ids import JobId
from services.gateway.policy.messages import CancelReason, FinishReason, JobTimings, JobUpdate, Submission, Usage
from services.gateway.policy.output import Piece
from services.gateway.policy.request import Request, SamplingRequest
from services.gateway.policy.status import GroupLoad, IterationTokens, SchedulerLoad
from services.runtime.scheduler_link.convert import logprob_from_wire, logprob_to_wire, sampling_from_wire
from services.runtime.scheduler_link.convert import sampling_to_wire as job_sampling_to_wire
from services.runtime.status import ErrorStatus, code_of_number, error_of, number_of_code, status_of

_FINISH_TO_WIRE = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: inference_pb2.FINISH_REASON_ABORT,
}
_FINISH_FROM_WIRE = {number: finish for finish, number in _FINISH_TO_WIRE.items()}
_CANCEL_TO_WIRE = {
    CancelReason.CLIENT_GONE: wire.CANCEL_REASON_CLIENT_GONE,
    CancelReason.STOP_STRING: wire.CANCEL_REASON_STOP_STRING,
    CancelReason.DEADLINE: wire.CANCEL_REASON_DEADLINE,
}
_CANCEL_FROM_WIRE = {number: reason for reason, number in _CANCEL_TO_WIRE.items()}
_DEFAULT_RETRY_S = 1.0
_OPTIONAL_SAMPLING_FIELDS = tuple(
    field.name for field in inference_pb2.SamplingParams.DESCRIPTOR.fields if field.has_presence
)


# --- clients ---------------------------------------------------------------------------------------------------------


def request_from_wire(message: inference_pb2.GenerateRequest) -> Request:
    """A request as the client put it. Nothing is checked; `token_ids` is the message's own list."""
    prompt = message.WhichOneof("prompt")
    return Request(
        model=message.model,
        request_id=message.request_id or None,
        text=message.text if prompt == "text" else None,
        token_ids=message.token_ids.ids if prompt == "token_ids" else None,
        sampling=sampling_from_client(message.sampling),
        resume_from_token=message.resume_from_token if message.HasField("resume_from_token") else None,
    )


def request_to_wire(request: Request) -> inference_pb2.GenerateRequest:
    """The inverse of request_from_wire."""
    message = inference_pb2.GenerateRequest(model=request.model, request_id=request.request_id or "")
    if request.text is not None:
        message.text = request.text
    if request.token_ids is not None:
        message.token_ids.ids.extend(request.token_ids)
        message.token_ids.SetInParent()
    message.sampling.CopyFrom(sampling_to_client(request.sampling))
    if request.resume_from_token is not None:
        message.resume_from_token = request.resume_from_token
    return message


def sampling_from_client(message: inference_pb2.SamplingParams) -> SamplingRequest:
    """SamplingParams, absent fields as None."""
    optional: dict[str, Any] = {
        name: getattr(message, name)
        for name in _OPTIONAL_SAMPLING_FIELDS
        if message.HasField(name)  # type: ignore[arg-type]
    }
    return SamplingRequest(
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        logit_bias=dict(message.logit_bias),
        **optional,
    )


def sampling_to_client(sampling: SamplingRequest) -> inference_pb2.SamplingParams:
    """The inverse of sampling_from_client."""
    return inference_pb2.SamplingParams(
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        logit_bias=dict(sampling.logit_bias),
        **{name: getattr(sampling, name) for name in _OPTIONAL_SAMPLING_FIELDS},
    )


def body_digest(message: inference_pb2.GenerateRequest, served_model: str) -> bytes:
    """Stands for model, prompt and sampling: what must be equal for two requests with one id to be the same."""
    body = inference_pb2.GenerateRequest()
    body.CopyFrom(message)
    body.model = served_model
    body.ClearField("request_id")
    body.ClearField("resume_from_token")
    return hashlib.sha256(body.SerializeToString(deterministic=True)).digest()


def piece_to_wire(request_id: str, piece: Piece, usage: Usage | None) -> inference_pb2.GenerateResponse:
    """One message of a stream."""
    choice, first_token_number, token_ids, text, logprobs, finish = piece
    message = inference_pb2.GenerateResponse(
        request_id=request_id, index=choice, first_token_number=first_token_number, token_ids=token_ids, text=text
    )
    if logprobs:
        message.logprobs.extend(logprob_to_wire(one) for one in logprobs)
    if finish is not None:
        message.finish_reason = _FINISH_TO_WIRE[finish]
    if usage is not None:
        message.usage.prompt_tokens = usage.prompt_tokens
        message.usage.completion_tokens = usage.completion_tokens
        message.usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
        message.usage.preemptions = usage.preemptions
    return message


def model_to_wire(
    name: str, created_s: int, max_model_len: int, vocabulary_size: int
) -> inference_pb2.ListModelsResponse:
    """The one served model."""
    response = inference_pb2.ListModelsResponse()
    response.models.add(
        id=name, created=created_s, owned_by="fastserve", max_model_len=max_model_len, vocabulary_size=vocabulary_size
    )
    return response


# --- the scheduler ---------------------------------------------------------------------------------------------------


def hello_to_wire(gateway_id: str, model_fingerprint: str) -> wire.GatewayLinkRequest:
    """First on the stream."""
    return wire.GatewayLinkRequest(hello=wire.GatewayHello(gateway_id=gateway_id, model_fingerprint=model_fingerprint))


def submission_to_wire(submission: Submission) -> wire.GatewayLinkRequest:
    """A job for the scheduler."""
    submit = wire.SubmitJob(
        job_id=submission.job,
        body_digest=submission.body_digest,
        prompt_token_ids=submission.prompt,
        sampling=job_sampling_to_wire(submission.sampling),
    )
    if submission.deadline_in_s is not None:
        submit.deadline_in_s = submission.deadline_in_s
    return wire.GatewayLinkRequest(submit=submit)


def submission_from_wire(message: wire.SubmitJob) -> Submission:
    """The inverse of submission_to_wire."""
    return Submission(
        job=JobId(message.job_id),
        body_digest=message.body_digest,
        prompt=array("I", message.prompt_token_ids),
        sampling=sampling_from_wire(message.sampling),
        deadline_in_s=message.deadline_in_s if message.HasField("deadline_in_s") else None,
    )


def cancel_to_wire(job: JobId, reason: CancelReason) -> wire.GatewayLinkRequest:
    """The end of the gateway's interest in a job."""
    return wire.GatewayLinkRequest(cancel=wire.CancelJob(job_id=job, reason=_CANCEL_TO_WIRE[reason]))


def cancel_from_wire(message: wire.CancelJob) -> tuple[JobId, CancelReason]:
    """The inverse of cancel_to_wire."""
    return JobId(message.job_id), _CANCEL_FROM_WIRE[message.reason]


def updates_from_wire(message: wire.JobUpdates) -> list[JobUpdate]:
    """Everything new about this gateway's jobs in one turn."""
    return [_update_from_wire(update) for update in message.jobs]


def _update_from_wire(update: wire.JobUpdate) -> JobUpdate:
    finish = _FINISH_FROM_WIRE.get(update.finish_reason) if update.finish_reason else None
    return JobUpdate(
        JobId(update.job_id),
        update.first_token_number,
        update.token_ids,
        [logprob_from_wire(one) for one in update.logprobs] if update.logprobs else (),
        finish,
        _error_from_wire(update.error) if update.HasField("error") else None,
        _timings_from_wire(update.timings) if finish is not None else None,
    )


def updates_to_wire(updates: Iterable[JobUpdate]) -> wire.JobUpdates:
    """The inverse of updates_from_wire."""
    message = wire.JobUpdates()
    for update in updates:
        one = message.jobs.add(
            job_id=update.job, first_token_number=update.first_token_number, token_ids=update.token_ids
        )
        one.logprobs.extend(logprob_to_wire(logprob) for logprob in update.logprobs)
        if update.finish is not None:
            one.finish_reason = _FINISH_TO_WIRE[update.finish]
        if update.error is not None:
            one.error.CopyFrom(_error_to_wire(update.error))
        if update.timings is not None:
            one.timings.CopyFrom(wire.JobTimings(**update.timings._asdict()))
    return message


def _timings_from_wire(message: wire.JobTimings) -> JobTimings:
    return JobTimings(message.queue_s, message.prefill_s, message.decode_s, message.preemptions)


def _error_from_wire(message: wire.JobError) -> FastServeError:
    retry_after_s = message.retry_after_s or _DEFAULT_RETRY_S
    return error_of(ErrorStatus(code_of_number(message.code), message.message, message.field or None, retry_after_s))


def _error_to_wire(error: FastServeError) -> wire.JobError:
    status = status_of(error)
    return wire.JobError(
        code=number_of_code(status.code),
        message=status.message,
        field=status.field or "",
        retry_after_s=status.retry_after_s or 0.0,
    )


def load_from_wire(status: admin_pb2.Status) -> SchedulerLoad:
    """What the metrics show of the scheduler's state."""
    tokens = status.iteration_tokens
    return SchedulerLoad(
        groups=tuple(
            GroupLoad(
                group=group.group,
                running=group.running,
                waiting=group.waiting,
                swapped_out=group.swapped_out,
                device_blocks_total=group.device_blocks_total,
                device_blocks_free=group.device_blocks_free,
                host_blocks_total=group.host_blocks_total,
                host_blocks_free=group.host_blocks_free,
            )
            for group in status.groups
        ),
        preemptions=status.counters.preemptions,
        admission_rejections=status.admission_rejections,
        iteration_tokens=IterationTokens(tuple(tokens.bounds), tuple(tokens.counts), tokens.sum),
    )
