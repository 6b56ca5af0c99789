"""Values <-> wire for the scheduler's gateways and for AdminService. What workers and others use too is in
services.runtime.scheduler_link.
"""

from array import array
from collections.abc import Iterable

from fastserve.v1 import admin_pb2, inference_pb2
from fastserve.v1 import scheduler_pb2 as wire
from services.domain.errors import FastServeError, InvalidFieldError, ProtocolError
from services.domain.ids import JobId
from services.runtime.scheduler_link.convert import (
    logprob_from_wire,
    logprob_to_wire,
    sampling_from_wire,
    sampling_to_wire,
)
from services.runtime.status import ErrorStatus, code_of_number, error_of, number_of_code, status_of
from services.scheduler.messages import CancelReason, Finish, JobTimings, JobUpdate, Submission
from services.scheduler.policy.counters import ITERATION_TOKEN_BOUNDS
from services.scheduler.report import GroupReport, ServerReport

MOST_ID_BYTES = 256

_FINISH_TO_WIRE = {
    Finish.STOP: inference_pb2.FINISH_REASON_STOP,
    Finish.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
    Finish.ABORT: inference_pb2.FINISH_REASON_ABORT,
}
_FINISH_FROM_WIRE = {number: finish for finish, number in _FINISH_TO_WIRE.items()}
_CANCEL_TO_WIRE = {
    CancelReason.CLIENT_GONE: wire.CANCEL_REASON_CLIENT_GONE,
    CancelReason.STOP_STRING: wire.CANCEL_REASON_STOP_STRING,
    CancelReason.DEADLINE: wire.CANCEL_REASON_DEADLINE,
}
_CANCEL_FROM_WIRE = {number: reason for reason, number in _CANCEL_TO_WIRE.items()}


def submission_from_wire(message: wire.SubmitJob) -> Submission:
    """A job of a gateway. Raises ProtocolError for an id that is none."""
    if not 0 < len(message.job_id) <= MOST_ID_BYTES:
        raise ProtocolError(f"SubmitJob: job_id must have 1 to {MOST_ID_BYTES} characters")
    return Submission(
        JobId(message.job_id),
        message.body_digest,
        array("I", message.prompt_token_ids),
        sampling_from_wire(message.sampling),
        message.resume_from_token,
        max(0.0, message.deadline_in_s) if message.HasField("deadline_in_s") else None,
    )


def submission_to_wire(submission: Submission) -> wire.SubmitJob:
    """The inverse of submission_from_wire."""
    message = wire.SubmitJob(
        job_id=submission.job,
        body_digest=submission.body_digest,
        prompt_token_ids=submission.prompt,
        sampling=sampling_to_wire(submission.sampling),
        resume_from_token=submission.resume_from_token,
    )
    if submission.deadline_in_s is not None:
        message.deadline_in_s = submission.deadline_in_s
    return message


def cancel_from_wire(message: wire.CancelJob) -> tuple[JobId, CancelReason]:
    """The end of a gateway's interest; without a reason the client is gone."""
    return JobId(message.job_id), _CANCEL_FROM_WIRE.get(message.reason, CancelReason.CLIENT_GONE)


def cancel_to_wire(job: JobId, reason: CancelReason) -> wire.CancelJob:
    """The inverse of cancel_from_wire."""
    return wire.CancelJob(job_id=job, reason=_CANCEL_TO_WIRE[reason])


def updates_to_wire(updates: Iterable[JobUpdate]) -> wire.JobUpdates:
    """News of jobs."""
    message = wire.JobUpdates()
    add = message.jobs.add
    for job, first_token_number, token_ids, logprobs, finish, error, timings in updates:
        one = add(job_id=job, first_token_number=first_token_number)
        if token_ids:
            one.token_ids.extend(token_ids)
        if logprobs:
            one.logprobs.extend(logprob_to_wire(logprob) for logprob in logprobs)
        if finish is not None:
            one.finish_reason = _FINISH_TO_WIRE[finish]
        if error is not None:
            _write_error(one.error, error)
        if timings is not None:
            one.timings.CopyFrom(wire.JobTimings(**timings._asdict()))
    return message


def updates_from_wire(message: wire.JobUpdates) -> list[JobUpdate]:
    """The inverse of updates_to_wire."""
    return [
        JobUpdate(
            JobId(one.job_id),
            one.first_token_number,
            array("I", one.token_ids),
            [logprob_from_wire(logprob) for logprob in one.logprobs],
            _FINISH_FROM_WIRE[one.finish_reason] if one.finish_reason else None,
            _read_error(one.error) if one.HasField("error") else None,
            _read_timings(one.timings) if one.HasField("timings") else None,
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
    code = code_of_number(message.code)
    return error_of(ErrorStatus(code, message.message, message.field or None, message.retry_after_s or None))


def _read_timings(message: wire.JobTimings) -> JobTimings:
    return JobTimings(message.queue_s, message.prefill_s, message.decode_s, message.preemptions)


def check_interval(request: admin_pb2.WatchStatusRequest) -> float:
    """Seconds between snapshots. Raises InvalidFieldError."""
    if not request.HasField("interval_s"):
        return 1.0
    if not 0.05 <= request.interval_s <= 60:
        raise InvalidFieldError("interval_s", f"must be 0.05 to 60 seconds, got {request.interval_s:g}")
    return request.interval_s


def report_to_wire(report: ServerReport) -> admin_pb2.Status:
    """A snapshot of the server."""
    counters, worker = report.counters, report.worker
    return admin_pb2.Status(
        model=report.model,
        policy=report.policy,
        kv_policy=report.kv_policy,
        groups=[_group_to_wire(group) for group in report.groups],
        counters=admin_pb2.Counters(
            preemptions=counters.preemptions,
            promotions=counters.promotions,
            demotions=counters.demotions,
            iterations=counters.iterations,
            offloaded_bytes=worker.offloaded_bytes,
            uploaded_bytes=worker.uploaded_bytes,
            recomputed_tokens=counters.recomputed_tokens,
            stall_s=worker.stall_s,
            busy_s=worker.busy_s,
            plan_wait_s=worker.plan_wait_s,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            jobs_admitted=counters.jobs_admitted,
            jobs_finished=counters.jobs_finished,
        ),
        uptime_s=report.uptime_s,
        max_queued_jobs=report.max_queued_jobs,
        admission_rejections=counters.rejections.get("full", 0),
        iteration_tokens=admin_pb2.IterationTokens(
            bounds=ITERATION_TOKEN_BOUNDS, counts=counters.iteration_token_counts, sum=counters.iteration_token_sum
        ),
    )


def _group_to_wire(group: GroupReport) -> admin_pb2.GroupStatus:
    return admin_pb2.GroupStatus(
        group=group.group,
        ready=group.ready,
        levels=[
            admin_pb2.LevelStatus(
                level=level.level,
                quantum_s=level.quantum_s,
                running=level.running,
                waiting=level.waiting,
                swapped_out=level.swapped_out,
            )
            for level in group.levels
        ],
        running=group.running,
        waiting=group.waiting,
        swapped_out=group.swapped_out,
        device_blocks_total=group.device_blocks_total,
        device_blocks_free=group.device_blocks_free,
        host_blocks_total=group.host_blocks_total,
        host_blocks_free=group.host_blocks_free,
        block_size=group.block_size,
        device=group.device,
        worker_joins=group.worker_joins,
    )
