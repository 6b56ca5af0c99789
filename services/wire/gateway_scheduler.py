"""Values <-> wire for the stream between gateway and scheduler: jobs, cancels, and the updates of a turn.

Functions come in pairs, `x_to_wire` / `x_from_wire`. Updates cross the wire once per iteration: they are created in
place by `add`, and read without copying the token ids.
"""

from array import array
from collections.abc import Iterable

from fastserve.v1 import inference_pb2
from fastserve.v1 import scheduler_pb2 as wire
from services.domain.errors import FastServeError, ProtocolError
from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.domain.submission import CLIENT_NUMBERS, JobTimings, JobUpdate, ServingLimits, Submission
from services.runtime.error_statuses import ErrorStatus, code_of_number, error_of, number_of_code, status_of
from services.wire.shared_fields import (
    logprob_from_wire,
    logprob_to_wire,
    prompt_logprobs_from_wire,
    prompt_logprobs_to_wire,
    sampling_from_wire,
    sampling_to_wire,
)

MOST_ID_BYTES = 256
MOST_AGE_S = 1e6

FINISH_TO_WIRE = {
    EndReason.STOP: inference_pb2.FINISH_REASON_STOP,
    EndReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
    EndReason.ABORT: inference_pb2.FINISH_REASON_ABORT,
}
FINISH_FROM_WIRE = {number: finish for finish, number in FINISH_TO_WIRE.items()}
_CANCEL_TO_WIRE = {
    EndReason.CANCELLED: wire.CANCEL_REASON_CLIENT_GONE,
    EndReason.STOP: wire.CANCEL_REASON_STOP_STRING,
    EndReason.DEADLINE: wire.CANCEL_REASON_DEADLINE,
}
_CANCEL_FROM_WIRE = {number: reason for reason, number in _CANCEL_TO_WIRE.items()}
_DEFAULT_RETRY_S = 1.0


def submission_from_wire(message: wire.SubmitJob) -> Submission:
    """A job from a gateway. Raises ProtocolError for an invalid id, client number, age, or output so far."""
    if not 0 < len(message.job_id) <= MOST_ID_BYTES:
        raise ProtocolError(f"SubmitJob: job_id must have 1 to {MOST_ID_BYTES} characters")
    if message.client_number >= CLIENT_NUMBERS:
        raise ProtocolError(f"SubmitJob: client_number must be less than {CLIENT_NUMBERS}")
    if not 0.0 <= message.age_s <= MOST_AGE_S:
        raise ProtocolError(f"SubmitJob: age_s must be from 0 to {MOST_AGE_S:g}, got {message.age_s:g}")
    sampling = sampling_from_wire(message.sampling)
    made = len(message.output_token_ids)
    if made > sampling.max_tokens:
        raise ProtocolError(f"SubmitJob: output_token_ids: at most max_tokens, {sampling.max_tokens}, got {made}")
    if len(message.output_logprobs) != (0 if sampling.logprobs is None else made):
        raise ProtocolError("SubmitJob: output_logprobs: one for each output token if they are asked for, else none")
    return Submission(
        JobId(message.job_id),
        message.body_digest,
        array("I", message.prompt_token_ids),
        sampling,
        message.resume_from_token,
        max(0.0, message.deadline_in_s) if message.HasField("deadline_in_s") else None,
        message.client_number,
        message.traceparent,
        array("I", message.output_token_ids),
        tuple(logprob_from_wire(one) for one in message.output_logprobs),
        message.age_s,
    )


def submission_to_wire(submission: Submission) -> wire.SubmitJob:
    """The inverse of submission_from_wire."""
    message = wire.SubmitJob(
        job_id=submission.job_id,
        body_digest=submission.body_digest,
        prompt_token_ids=submission.prompt,
        sampling=sampling_to_wire(submission.sampling),
        resume_from_token=submission.resume_from_token,
        client_number=submission.client_number,
        output_token_ids=submission.output,
        output_logprobs=[logprob_to_wire(one) for one in submission.output_logprobs],
        age_s=min(submission.age_s, MOST_AGE_S),
        traceparent=submission.traceparent,
    )
    if submission.deadline_in_s is not None:
        message.deadline_in_s = submission.deadline_in_s
    return message


def cancel_from_wire(message: wire.CancelJob) -> tuple[JobId, EndReason]:
    """A gateway's cancellation of a job; without a reason, the client is gone."""
    return JobId(message.job_id), _CANCEL_FROM_WIRE.get(message.reason, EndReason.CANCELLED)


def cancel_to_wire(job_id: JobId, reason: EndReason) -> wire.CancelJob:
    """The inverse of cancel_from_wire."""
    return wire.CancelJob(job_id=job_id, reason=_CANCEL_TO_WIRE[reason])


def updates_to_wire(updates: Iterable[JobUpdate]) -> wire.JobUpdates:
    """New output of jobs."""
    message = wire.JobUpdates()
    add = message.jobs.add
    for job_id, first_token_number, token_ids, logprobs, finish, error, timings, is_joined, prompt_logprobs in updates:
        one = add(job_id=job_id, first_token_number=first_token_number, is_joined=is_joined)
        if token_ids:
            one.token_ids.extend(token_ids)
        if logprobs:
            one.logprobs.extend(logprob_to_wire(logprob) for logprob in logprobs)
        if finish is not None:
            one.finish_reason = FINISH_TO_WIRE[finish]
        if error is not None:
            _write_error(one.error, error)
        if timings is not None:
            one.timings.CopyFrom(wire.JobTimings(**timings._asdict()))
        if prompt_logprobs is not None:
            one.prompt_logprobs.CopyFrom(prompt_logprobs_to_wire(prompt_logprobs))
    return message


def updates_from_wire(message: wire.JobUpdates) -> list[JobUpdate]:
    """The inverse of updates_to_wire."""
    return [
        JobUpdate(
            JobId(one.job_id),
            one.first_token_number,
            one.token_ids,
            [logprob_from_wire(logprob) for logprob in one.logprobs] if one.logprobs else (),
            FINISH_FROM_WIRE.get(one.finish_reason),
            _read_error(one.error) if one.HasField("error") else None,
            _read_timings(one.timings) if one.HasField("timings") else None,
            one.is_joined,
            prompt_logprobs_from_wire(one.prompt_logprobs) if one.HasField("prompt_logprobs") else None,
        )
        for one in message.jobs
    ]


def _write_error(message: wire.JobError, error: FastServeError) -> None:
    status = status_of(error)
    message.code = number_of_code(status.code)
    message.message = status.message
    message.field = status.field or ""
    message.retry_after_s = status.retry_after_s or 0.0


def _read_error(message: wire.JobError) -> FastServeError:
    retry_after_s = message.retry_after_s or _DEFAULT_RETRY_S
    return error_of(ErrorStatus(code_of_number(message.code), message.message, message.field or None, retry_after_s))


def _read_timings(message: wire.JobTimings) -> JobTimings:
    return JobTimings(message.queue_s, message.prefill_s, message.decode_s, message.preemptions)


def limits_to_wire(limits: ServingLimits) -> wire.ServingLimits:
    """The limits of a job, for gateways."""
    return wire.ServingLimits(
        ready=limits.ready, max_model_len=limits.max_model_len, device_pool_tokens=limits.device_pool_tokens
    )


def limits_from_wire(message: wire.ServingLimits) -> ServingLimits:
    """The inverse of limits_to_wire."""
    return ServingLimits(message.ready, message.max_model_len, message.device_pool_tokens)


def hello_to_wire(gateway_id: str, model_fingerprint: str) -> wire.GatewayLinkRequest:
    """The first message of a gateway's stream."""
    return wire.GatewayLinkRequest(hello=wire.GatewayHello(gateway_id=gateway_id, model_fingerprint=model_fingerprint))
