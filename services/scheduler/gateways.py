"""The scheduler's side of its gateways: their streams, what they asked for, and what they are sent.

Translates between gateways, which deal in jobs and tokens, and the machine, which knows only counts. Called by the
driver within a turn.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from services.domain.errors import (
    AdmissionFullError,
    DeadlineError,
    DuplicateRequestError,
    FastServeError,
    InvalidFieldError,
    NotReadyError,
    SupersededError,
)
from services.domain.generation import EndReason, TokenLogprob
from services.domain.ids import JobId, request_id_of
from services.domain.prompt_logprobs import ScoredPrompt
from services.domain.submission import JobTimings, JobUpdate, ServingLimits, Submission
from services.scheduler.job_store import READ_LIMIT_S, JobStore, StoredJob
from services.scheduler.job_traces import JobTraces
from services.scheduler.machine.scheduler_events import Cancel, Emit, End, Reject, RejectKind, Submit
from services.scheduler.outgoing_streams import GatewayStream
from services.scheduler.routing.router import Resumed
from services.scheduler.scheduler_inbox import Cancelled, Submitted
from services.tracing.traceparent import trace_id_of

_log = logging.getLogger(__name__)

MOST_DEFERRED = 1000
NO_TIME = JobTimings(0.0, 0.0, 0.0, 0)
"""Timings of a job that ends for a gateway before it has run."""

_FINISHES = {
    EndReason.STOP: EndReason.STOP,
    EndReason.LENGTH: EndReason.LENGTH,
    EndReason.ABORT: EndReason.ABORT,
}
_CANCELS = {
    EndReason.CANCELLED: EndReason.CANCELLED,
    EndReason.STOP: EndReason.STOP,
    EndReason.DEADLINE: EndReason.DEADLINE,
}


class NewJob(NamedTuple):
    """A job to be routed. `resumed`: another scheduler had it before (PROTOCOL 37)."""

    submit: Submit
    resumed: Resumed | None


def whole_output(submission: Submission) -> EndReason | None:
    """How a job ended whose last token came just before its scheduler was lost; None: it has not ended."""
    output, sampling = submission.output, submission.sampling
    if not output:
        return None
    may_end = len(output) > sampling.min_tokens or sampling.guide is not None
    if output[-1] in sampling.stop_token_ids and may_end:
        return EndReason.STOP
    return EndReason.LENGTH if len(output) >= sampling.max_tokens else None


def error_of_rejection(reject: Reject) -> FastServeError:
    """The typed error for a rejection by the machine."""
    match reject.kind:
        case RejectKind.INVALID:
            return InvalidFieldError(reject.field, reject.message)
        case RejectKind.FULL:
            return AdmissionFullError(reject.message, reject.retry_after_s)
        case RejectKind.NOT_READY:
            return NotReadyError(reject.message, reject.retry_after_s)


def _about(entry: StoredJob) -> dict[str, str | None]:
    """What a record of the log on a job names."""
    return {
        "request_id": request_id_of(entry.job_id),
        "trace_id": trace_id_of(entry.traceparent),
        "job_id": entry.job_id,
    }


class Gateways:
    """Streams by gateway id, and the job book. `traces` hear of each job that begins or ends; None: there are none."""

    def __init__(self, vocabulary_size: int, traces: JobTraces | None = None) -> None:
        self.jobs = JobStore()
        self.draining = False
        self._vocabulary_size = vocabulary_size
        self._traces = traces
        self._peers: dict[str, GatewayStream] = {}
        self._deferred: list[Submitted] = []

    def join(self, peer: GatewayStream, now_s: float) -> None:
        """A stream opened. An older stream of the same gateway is closed."""
        older = self._peers.get(peer.gateway_id)
        if older is not None:
            older.close(SupersededError("a newer stream of this gateway took over"))
            self.leave(older, now_s)
        self._peers[peer.gateway_id] = peer

    def leave(self, peer: GatewayStream, now_s: float) -> None:
        """A stream ended: jobs without other followers continue for a while."""
        if self._peers.get(peer.gateway_id) is not peer:
            return
        del self._peers[peer.gateway_id]
        self._deferred = [item for item in self._deferred if item.stream is not peer]
        for entry in self.jobs.followed_by(peer.gateway_id):
            if self.jobs.unfollow(entry, peer.gateway_id):
                self.jobs.orphan(entry, now_s)

    def tell_limits(self, limits: ServingLimits) -> None:
        """Send the limits to all gateways."""
        for peer in self._peers.values():
            peer.tell_limits(limits)

    def close_all(self, error: FastServeError) -> None:
        for peer in self._peers.values():
            peer.close(error)

    async def flushed(self) -> None:
        """Wait until everything has been sent to all gateways."""
        await asyncio.gather(*(peer.flushed() for peer in self._peers.values()))

    def take_deferred(self) -> list[Submitted]:
        """Submissions that were waiting for an earlier job with the same id to be released, to be tried again."""
        deferred, self._deferred = self._deferred, []
        return deferred

    def can_retry(self, is_leaving: Callable[[JobId], bool]) -> bool:
        """Whether an id that a submission is waiting for has been released."""
        return any(not is_leaving(item.submission.job_id) for item in self._deferred)

    def submit(self, item: Submitted, is_leaving: bool, now_s: float) -> NewJob | None:
        """Take a submission: open a job, join one, or refuse. `is_leaving`: the machine has not released the id yet."""
        peer, submission = item
        if self._peers.get(peer.gateway_id) is not peer:
            return None
        entry = self.jobs.get(submission.job_id)
        if (entry is None and is_leaving) or (entry is not None and entry.is_cancelled):
            self._defer(item)
            return None
        if entry is not None:
            self._follow(entry, peer, submission, now_s)
            return None
        if (error := self._fault(submission)) is not None:
            peer.tell_last_word(JobUpdate(submission.job_id, 0, (), (), error=error))
            return None
        entry = self.jobs.open(submission)
        entry.followers[peer.gateway_id] = submission.resume_from_token
        prompt_tokens = len(submission.prompt)
        _log.debug("submitted by gateway %s, %d prompt tokens", peer.gateway_id, prompt_tokens, extra=_about(entry))
        if (finish := whole_output(submission)) is not None:
            self.jobs.end(entry, finish, NO_TIME, now_s)
            peer.tell_news(entry.job_id)
            return None
        in_s = submission.deadline_in_s
        deadline_s = None if in_s is None else now_s + in_s
        submit = Submit(
            submission.job_id,
            len(submission.prompt),
            submission.sampling.max_tokens,
            deadline_s,
            submission.client_number,
            is_guided=submission.sampling.guide is not None,
        )
        is_resumed = len(submission.output) > 0 or submission.age_s > 0.0
        if self._traces is not None:
            self._traces.submitted(submission, now_s)
        return NewJob(submit, Resumed(len(submission.output), now_s - submission.age_s) if is_resumed else None)

    def cancel(self, item: Cancelled) -> Cancel | None:
        """A gateway no longer wants a job. A stop string ends the job for all followers, as they sent the same body."""
        peer, job_id, reason = item
        if self._withdraw(peer, job_id):
            peer.tell_last_word(JobUpdate(job_id, 0, (), (), EndReason.ABORT, timings=NO_TIME))
            return None
        entry = self.jobs.get(job_id)
        if entry is None or peer.gateway_id not in entry.followers or entry.finish is not None:
            if entry is not None:
                self.jobs.unfollow(entry, peer.gateway_id)
            return None
        if reason is not EndReason.STOP and len(entry.followers) > 1:
            self.jobs.unfollow(entry, peer.gateway_id)
            peer.tell_last_word(JobUpdate(job_id, 0, (), (), EndReason.ABORT, timings=NO_TIME))
            return None
        entry.is_cancelled = True
        return Cancel(job_id, _CANCELS[reason])

    def score(self, scored: Iterable[ScoredPrompt]) -> None:
        """A worker found log probabilities of prompts."""
        for one in scored:
            entry = self.jobs.score(one)
            if entry is not None:
                self._tell(entry)

    def emit(self, emit: Emit, logprob: TokenLogprob | None) -> None:
        """A job made a token."""
        entry = self.jobs.get(emit.job_id)
        assert entry is not None, f"job {emit.job_id} is alive but not in the book"
        self.jobs.append(entry, emit.token_number, emit.token_id, logprob)
        self._tell(entry)

    def end(self, end: End, now_s: float, failure: str | None = None) -> None:
        """A job ended. `failure`: its guide could not be followed any further, and why."""
        entry = self.jobs.get(end.job_id)
        assert entry is not None, f"job {end.job_id} is alive but not in the book"
        self._end_trace(end.job_id, end.reason.value, now_s)
        timings = JobTimings(end.queue_s, end.prefill_s, end.decode_s, end.preemptions)
        _log.debug("ended (%s) after %d preemptions", end.reason.value, end.preemptions, extra=_about(entry))
        if failure is not None:
            self._last_words(entry, error=InvalidFieldError("sampling.guide", failure))
        elif end.reason.completes:
            entry.is_cancelled = False
            self.jobs.end(entry, _FINISHES[end.reason], timings, now_s)
            self._tell(entry)
        elif end.reason is EndReason.DEADLINE:
            self._last_words(entry, error=DeadlineError("the deadline passed before the job ended"))
        else:
            self._last_words(entry, finish=EndReason.ABORT, timings=timings)

    def reject(self, reject: Reject, now_s: float) -> None:
        """A job was refused."""
        self._end_trace(reject.job_id, f"rejected: {reject.kind.value}", now_s)
        entry = self.jobs.get(reject.job_id)
        assert entry is not None, f"job {reject.job_id} was submitted but is not in the book"
        self._last_words(entry, error=error_of_rejection(reject))

    def _end_trace(self, job_id: JobId, how: str, now_s: float) -> None:
        """Of a job that had a group, the group's turn has ended it already."""
        if self._traces is not None:
            self._traces.ended(job_id, now_s, how)

    def expire(self, now_s: float) -> list[Cancel]:
        """Cancel jobs that have been without followers for too long, and drop gateways that do not read ended jobs."""
        for entry in self.jobs.forget_ended(now_s):
            self._lose(entry)
        cancels: list[Cancel] = []
        for entry in self.jobs.orphans_due(now_s):
            entry.is_cancelled = True
            cancels.append(Cancel(entry.job_id, EndReason.CANCELLED))
        return cancels

    def _fault(self, submission: Submission) -> FastServeError | None:
        """What is wrong with a new job, before the machine checks its counts."""
        if self.draining:
            return NotReadyError("the scheduler is shutting down")
        for field, token_ids in (("prompt", submission.prompt), ("output_token_ids", submission.output)):
            if token_ids and max(token_ids) >= self._vocabulary_size:
                return InvalidFieldError(field, f"token ids must be less than {self._vocabulary_size}")
        return None

    def _defer(self, item: Submitted) -> None:
        if len(self._deferred) >= MOST_DEFERRED:
            error = NotReadyError("an earlier job with this id is still being released")
            item.stream.tell_last_word(JobUpdate(item.submission.job_id, 0, (), (), error=error))
            return
        self._deferred.append(item)

    def _withdraw(self, peer: GatewayStream, job_id: JobId) -> bool:
        """Remove a gateway's submission that still waits for an earlier job with that id. Returns whether there was
        one.
        """
        left = [item for item in self._deferred if item.stream is not peer or item.submission.job_id != job_id]
        was_there = len(left) < len(self._deferred)
        self._deferred = left
        return was_there

    def _follow(self, entry: StoredJob, peer: GatewayStream, submission: Submission, now_s: float) -> None:
        """Join a known job at the requested token. If the job has ended, its output is available at once."""
        if entry.body_digest != submission.body_digest:
            error = DuplicateRequestError(f"job id {entry.job_id} is already in use with a different body")
            peer.tell_last_word(JobUpdate(entry.job_id, 0, (), (), error=error))
            return
        entry.joined |= {peer.gateway_id}
        entry.followers[peer.gateway_id] = submission.resume_from_token
        entry.scores_sent.pop(peer.gateway_id, None)
        self.jobs.renew(entry, now_s)
        peer.tell_news(entry.job_id)

    def _followers(self, entry: StoredJob) -> Iterable[GatewayStream]:
        return [self._peers[gateway_id] for gateway_id in entry.followers]

    def _tell(self, entry: StoredJob) -> None:
        for gateway_id in entry.followers:
            self._peers[gateway_id].tell_news(entry.job_id)

    def _last_words(
        self,
        entry: StoredJob,
        finish: EndReason | None = None,
        error: FastServeError | None = None,
        timings: JobTimings | None = None,
    ) -> None:
        """Forget a job after sending its followers what they have not received and why it ended."""
        for peer in self._followers(entry):
            while (update := self.jobs.update(entry, peer.gateway_id)[0]) is not None:
                peer.tell_last_word(update)
            number = len(entry.output)
            is_joined = peer.gateway_id in entry.joined
            peer.tell_last_word(JobUpdate(entry.job_id, number, (), (), finish, error, timings, is_joined))
        self.jobs.drop(entry)

    def _lose(self, entry: StoredJob) -> None:
        """An ended job is forgotten. A gateway that has not received its end yet is too slow to be served."""
        for peer in self._followers(entry):
            message = f"this gateway is not reading its stream: the end of a job waited more than {READ_LIMIT_S:g} s"
            peer.close(NotReadyError(message))
