"""Owns the gateway's state: the open requests, the output of their jobs, and what the scheduler allows.

The life of a request: if `open` finds its id among the open requests, the client only listens. Otherwise the prompt is
tokenized, on the event loop if it is short and in a thread if it is long, and each choice is submitted as a job.
`on_updates` brings tokens, which become text at once and wake the listeners. A job ends when the scheduler says so, at
a stop string (of which the scheduler is told), or when the last listener leaves. If the scheduler is lost, its jobs
wait for the next one (resubmissions.py).

Everything here runs on the event loop and is called by the link to the scheduler and by the RPC handlers.
"""

import asyncio
import logging
import time
import uuid
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from services.domain.errors import (
    AdmissionFullError,
    DuplicateRequestError,
    FastServeError,
    NotReadyError,
    ProtocolError,
    StreamLostError,
)
from services.domain.generation import EndReason, GenerateRequest
from services.domain.ids import JobId
from services.domain.submission import JobUpdate, ServingLimits, Submission, client_number_of
from services.gateway.cancelled_requests import CancelledRequests
from services.gateway.choice_measurements import measure_end, measure_tokens
from services.gateway.gateway_bounds import GatewayBounds
from services.gateway.gateway_model import GatewayModel
from services.gateway.generation.choice_output import ChoiceOutput
from services.gateway.generation.detokenizer import CONTEXT_TOKENS
from services.gateway.generation.sampling_defaults import job_id_of, resolve, seed_of
from services.gateway.generation.validation import check_prompt
from services.gateway.metrics import GatewayMetrics
from services.gateway.open_request import Choice, Listener, OpenRequest
from services.gateway.resubmissions import Resubmissions

_log = logging.getLogger(__name__)

SHORT_TEXT_CHARACTERS = 1024
"""Texts up to this length are tokenized on the event loop, which takes about a millisecond at most."""
MOST_LONG_TEXTS = 256
LAST_MESSAGES_LIMIT_S = 5.0
LAST_WORD_LIMIT_S = 0.5
"""How long a choice that ended at a stop string waits for the scheduler's timings."""
RETRY_S = 1.0


class JobLink(Protocol):
    """Sends jobs and cancellations to the scheduler. Neither call waits."""

    def submit(self, submission: Submission) -> None: ...
    def cancel(self, job_id: JobId, reason: EndReason) -> None: ...


class GatewayDriver:
    """The open requests and their jobs. `on_ready` is called with `ready` whenever that may have changed."""

    def __init__(
        self,
        model: GatewayModel,
        link: JobLink,
        metrics: GatewayMetrics,
        bounds: GatewayBounds,
        on_ready: Callable[[bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self._link = link
        self._metrics = metrics
        self._bounds = bounds
        self._on_ready = on_ready
        self._clock = clock
        self._limits: ServingLimits | None = None
        self._last_limits = ServingLimits(ready=False, max_model_len=0, device_pool_tokens=0)
        """Those of the last scheduler that took jobs."""
        self._resubmissions = Resubmissions(bounds.resubmit_limit_s, clock, self._send, self._on_no_scheduler)
        self._draining = False
        self._requests: dict[str, OpenRequest] = {}
        self._choices: dict[JobId, Choice] = {}
        self._leaving = CancelledRequests()
        self._listeners = 0
        self._long_texts = 0
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenizer")
        self._idle = asyncio.Event()
        self._idle.set()

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def limits(self) -> ServingLimits | None:
        """What the scheduler admits, or None while it can't be reached."""
        return self._limits

    @property
    def ready(self) -> bool:
        """Whether a request that fits would be admitted."""
        return self._limits is not None and self._limits.ready and not self._draining

    def usable_limits(self) -> ServingLimits:
        """The limits of a job. Raises NotReadyError, with a message for the client, if no job can be admitted now."""
        if self._draining:
            raise NotReadyError("this gateway is shutting down", RETRY_S)
        if self._limits is None:
            raise NotReadyError("the scheduler can't be reached", RETRY_S)
        if not self._limits.ready:
            raise NotReadyError("no worker group is ready yet", RETRY_S)
        return self._limits

    # --- requests ----------------------------------------------------------------------------------------------------

    def check(self, request: GenerateRequest) -> None:
        """Refuses whatever can be refused without tokenizing and whatever state the server is in."""
        self.model.check(request)

    def open(self, request: GenerateRequest, body_digest: bytes, deadline_in_s: float | None) -> Listener:
        """A listener to this request's output, which the caller must close. `request` has passed `check`.

        Raises DuplicateRequestError, NotReadyError, AdmissionFullError, and InvalidFieldError for a prompt that does
        not fit; if the prompt is long, it is the listener that raises the last of these.
        """
        known = None if request.request_id is None else self._requests.get(request.request_id)
        if known is not None:
            if known.body_digest != body_digest:
                raise DuplicateRequestError(f"request_id {known.request_id!r} is already in use with a different body")
            return self._listen(known, request)
        self.usable_limits()
        if len(self._requests) >= self._bounds.most_requests:
            self._metrics.refused += 1
            raise AdmissionFullError(
                f"this gateway has reached its limit of {self._bounds.most_requests} open requests", RETRY_S
            )
        opened = OpenRequest(
            request.request_id or f"gen-{uuid.uuid4().hex}", request.request_id is not None, body_digest, self._clock()
        )
        # A client that gave an id may be joined by another one with a later deadline, so the scheduler gets none.
        deadline_s = None if opened.id_is_given or deadline_in_s is None else opened.arrived_s + deadline_in_s
        self._start(opened, request, deadline_s)
        self._requests[opened.request_id] = opened
        return self._listen(opened, request)

    def _listen(self, opened: OpenRequest, request: GenerateRequest) -> Listener:
        listener = Listener(opened, request.resume_from_token or 0, self._leave, self._bounds.stream_interval)
        opened.listeners.append(listener)
        self._listeners += 1
        self._idle.clear()
        return listener

    def _start(self, opened: OpenRequest, request: GenerateRequest, deadline_s: float | None) -> None:
        """Submits the jobs now, or once a long text is tokenized and earlier jobs with the same ids are gone."""
        is_long = request.text is not None and len(request.text) > SHORT_TEXT_CHARACTERS
        if not is_long and opened.request_id not in self._leaving:
            self._submit(opened, request, self.model.encode(request), deadline_s)
            return
        if self._long_texts >= MOST_LONG_TEXTS:
            self._metrics.refused += 1
            raise AdmissionFullError(f"at most {MOST_LONG_TEXTS} prompts can wait to be tokenized at a time", RETRY_S)
        self._long_texts += 1
        opened.preparation = asyncio.create_task(self._prepare(opened, request, deadline_s))

    async def _prepare(self, opened: OpenRequest, request: GenerateRequest, deadline_s: float | None) -> None:
        try:
            await self._leaving.wait_gone(opened.request_id)
            loop = asyncio.get_running_loop()
            prompt = await loop.run_in_executor(self._executor, self.model.encode, request)
            self._submit(opened, request, prompt, deadline_s)
        except Exception as error:  # whatever it is, the listeners must be told
            self._fail(opened, error)
        finally:
            self._long_texts -= 1
            opened.preparation = None

    def _submit(
        self, opened: OpenRequest, request: GenerateRequest, prompt: "array[int]", deadline_s: float | None
    ) -> None:
        """Submits one job per choice, or leaves them to the next scheduler. Raises InvalidFieldError."""
        field = "text" if request.text is not None else "token_ids.ids"
        check_prompt(field, len(prompt), request.sampling, self.model.limits, self._last_limits)
        seed = seed_of(opened.request_id, opened.body_digest)
        context, shown = prompt[-CONTEXT_TOKENS:], request.shown_tokens
        choices: list[Choice] = []
        trace = opened.tokenized(request, len(prompt), self._clock())
        for sampling in resolve(request.sampling, self.model.limits.eos_token_ids, seed):
            detokenizer, stop = self.model.tokenizer.detokenizer(context, shown), request.sampling.stop
            output = ChoiceOutput(sampling, detokenizer, stop, prompt, has_output=request.sampling.has_output)
            job_id, client_number = job_id_of(opened.request_id, sampling.choice), client_number_of(request.client)
            job = Submission(job_id, opened.body_digest, prompt, sampling, 0, None, client_number, trace)
            choices.append(Choice(opened, job, output, deadline_s))
            self._choices[job_id] = choices[-1]
        opened.choices = tuple(choices)
        opened.open_choices = len(choices)
        if self._limits is None:
            self._resubmissions.lost(choices)
            return
        for choice in choices:
            self._send(choice)

    def _send(self, choice: Choice) -> None:
        self._link.submit(choice.submission_now(self._clock()))

    def _leave(self, listener: Listener, reason: EndReason) -> None:
        opened = listener.request
        opened.listeners.remove(listener)
        self._listeners -= 1
        if self._listeners == 0:
            self._idle.set()
        if opened.listeners:
            return
        if not opened.over:
            if opened.preparation is not None:
                opened.preparation.cancel()
            self._cancel_jobs(opened, reason)
        self._forget(opened)

    def _forget(self, opened: OpenRequest) -> None:
        if self._requests.get(opened.request_id) is opened:
            del self._requests[opened.request_id]

    def _cancel_jobs(self, opened: OpenRequest, reason: EndReason) -> None:
        """Ends the choices of a request that are still open, here and at the scheduler."""
        now_s = self._clock()
        left: list[JobId] = []
        for choice in opened.choices:
            if not self._close(choice):
                continue
            if choice.stop_timer is None:
                left.append(choice.job_id)
                self._link.cancel(choice.job_id, reason)
            self._end(choice, EndReason.STOP if choice.output.stop_found else EndReason.ABORT, now_s)
        self._await_last_words(opened, left)

    def _await_last_words(self, opened: OpenRequest, left: Sequence[JobId]) -> None:
        """Remembers the jobs `left`, just cancelled, because a request with the same id may follow."""
        if left and opened.id_is_given and self._limits is not None:
            self._leaving.add(opened.request_id, left)

    def _fail(self, opened: OpenRequest, error: Exception, failed_job_id: JobId | None = None) -> None:
        """Ends a request with an error for all its listeners. `failed_job_id`: the scheduler itself ended it."""
        left: list[JobId] = []
        for choice in opened.choices:
            if self._close(choice):
                if not choice.is_joined:
                    self._metrics.choice_failed()
                choice.end_timer()
                if choice.job_id != failed_job_id:
                    # If the request id belongs to someone else, some of the jobs may still be ours. The scheduler
                    # ignores the cancellation of a job that this gateway does not follow.
                    self._link.cancel(choice.job_id, EndReason.CANCELLED)
                    left.append(choice.job_id)
        self._await_last_words(opened, left)
        opened.error = error
        self._forget(opened)
        opened.wake()

    def _interrupt(self, opened: OpenRequest, reason: str) -> None:
        """Ends a request whose clients can resume it elsewhere; its jobs go on at the scheduler."""
        for choice in opened.choices:
            if self._close(choice):
                if choice.output.stop_found:
                    self._end(choice, EndReason.STOP, self._clock())
                elif not choice.is_joined:
                    self._metrics.choice_failed()
        if not opened.over:
            opened.error = StreamLostError(reason, RETRY_S, opened.request_id)
        self._forget(opened)
        opened.wake()

    def _close(self, choice: Choice) -> bool:
        """Whether the choice was open; its job is no longer followed."""
        self._resubmissions.forget(choice)
        return self._choices.pop(choice.job_id, None) is not None

    # --- the scheduler -----------------------------------------------------------------------------------------------

    def on_limits(self, limits: ServingLimits) -> None:
        """The scheduler has been reached, or its limits have changed."""
        self._limits = limits
        if limits.ready:
            self._last_limits = limits
        self._on_ready(self.ready)
        self._resubmissions.taken(limits.ready)

    def on_lost(self) -> None:
        """The stream to the scheduler has ended, or an attempt to dial one: its jobs wait for the next."""
        self._limits = None
        self._on_ready(self.ready)
        self._leaving.clear()
        for choice in [one for one in self._choices.values() if one.output.stop_found]:
            self._on_no_last_word(choice)
        self._resubmissions.lost(list(self._choices.values()))

    def _on_no_scheduler(self, choice: Choice) -> None:
        reason = "no scheduler has taken the job since the last one was lost"
        self._fail(choice.request, StreamLostError(reason, RETRY_S, choice.request.request_id))

    def on_updates(self, updates: Sequence[JobUpdate]) -> None:
        """Takes news of jobs. News of a job that nobody is waiting for any more is dropped."""
        now_s = self._clock()
        for update in updates:
            choice = self._choices.get(update.job_id)
            if choice is None:
                if update.finish is not None or update.error is not None:
                    self._leaving.on_last_word(update.job_id)
                continue
            try:
                self._apply(choice, update, now_s)
            except ProtocolError as error:
                self._fail(choice.request, error)

    def _apply(self, choice: Choice, update: JobUpdate, now_s: float) -> None:
        output = choice.output
        # A job of this gateway's own that it finds again is none that somebody else submitted.
        choice.is_joined = choice.is_joined or (update.is_joined and not choice.is_resumed)
        if update.error is not None:
            if output.stop_found:
                self._finish(choice, EndReason.STOP, now_s)
            elif (error := self._refusal(choice, update.error)) is not None:
                self._fail(choice.request, error, failed_job_id=choice.job_id)
            return
        choice.lost_s, choice.losses = None, 0
        was_stopped = output.stop_found
        if not was_stopped:
            measure_tokens(self._metrics, choice, output.take(update), now_s)
        choice.timings = update.timings
        if update.finish is not None:
            self._finish(choice, EndReason.STOP if output.stop_found else update.finish, now_s)
        elif output.stop_found and not was_stopped:
            self._link.cancel(choice.job_id, EndReason.STOP)
            loop = asyncio.get_running_loop()
            choice.stop_timer = loop.call_later(LAST_WORD_LIMIT_S, self._on_no_last_word, choice)
        choice.request.wake()

    def _on_no_last_word(self, choice: Choice) -> None:
        self._finish(choice, EndReason.STOP, self._clock())
        choice.request.wake()

    def _refusal(self, choice: Choice, error: FastServeError) -> FastServeError | None:
        """The error of a refused job's request; None: it was submitted again, and will be once more."""
        if choice.lost_s is None or not isinstance(error, AdmissionFullError | NotReadyError):
            return error
        if self._resubmissions.refused(choice, error.retry_after_s):
            return None
        return StreamLostError(str(error), error.retry_after_s, choice.request.request_id)

    def _finish(self, choice: Choice, finish: EndReason, now_s: float) -> None:
        """Ends a choice whose job is over at the scheduler too."""
        self._close(choice)
        self._end(choice, finish, now_s)

    def _end(self, choice: Choice, finish: EndReason, now_s: float) -> None:
        choice.output.end(finish)
        choice.request.open_choices -= 1
        choice.end_timer()
        measure_end(self._metrics, choice, finish, now_s)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def drain(self, limit_s: float) -> None:
        """Refuses new requests, waits for the open ones, and ends those still open after `limit_s` with UNAVAILABLE and
        what it takes to resume them. Their jobs go on for a while at the scheduler, once the stream to it ends.
        """
        self._draining = True
        self._on_ready(self.ready)
        if await self._all_left(limit_s):
            return
        _log.warning("%d requests that did not end within %g s are left to be resumed", len(self._requests), limit_s)
        for opened in list(self._requests.values()):
            if opened.preparation is not None:
                opened.preparation.cancel()
            if not opened.over:
                self._interrupt(opened, "this gateway is shutting down")
        await self._all_left(LAST_MESSAGES_LIMIT_S)

    async def _all_left(self, limit_s: float) -> bool:
        """Waits until every client has got its last message; returns False if that takes longer than the limit."""
        try:
            await asyncio.wait_for(self._idle.wait(), limit_s)
        except TimeoutError:
            return self._idle.is_set()
        return True

    def close(self) -> None:
        """Stops timers and the tokenizer's threads."""
        self._resubmissions.close()
        self._leaving.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)
