"""An open request and its listeners.

A request has one job per choice and any number of listeners. Each listener is a client's stream; two clients that send
the same id and body share one request. A listener has a cursor per choice. It takes pieces until there are none, then
sleeps until there is something new, so a client that reads slowly gets fewer, larger pieces and holds up nobody else.
With a stream interval all get larger ones, of so many tokens after the first piece. The request's jobs are cancelled
when its last listener leaves.

All of this runs on one event loop, and nothing else runs between two awaits, so there are no locks.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from services.domain.errors import StreamLostError
from services.domain.generation import EndReason, GenerateRequest, OutputPiece, Usage
from services.domain.submission import JobTimings, Submission
from services.gateway.generation.choice_output import ChoiceOutput, Cursor
from services.gateway.request_traces import present_trace


class Choice:
    """One choice of a request: its job as it was submitted first, its output so far, and its measurements."""

    __slots__ = (
        "deadline_s",
        "first_token_s",
        "index",
        "is_joined",
        "is_resumed",
        "job_id",
        "last_token_s",
        "losses",
        "lost_s",
        "output",
        "request",
        "stop_timer",
        "submission",
        "timings",
    )

    def __init__(
        self, request: "OpenRequest", submission: Submission, output: ChoiceOutput, deadline_s: float | None
    ) -> None:
        self.request = request
        self.submission = submission
        self.job_id = submission.job_id
        self.index = submission.sampling.choice
        self.output = output
        self.deadline_s = deadline_s
        self.lost_s: float | None = None
        """When its scheduler was lost, until the next one sends a token."""
        self.losses = 0
        """Schedulers that it lost since its last token."""
        self.is_resumed = False
        """Whether it was submitted again, so that no scheduler has seen all its time."""
        self.is_joined = False
        """Whether the job had been submitted before; its tokens were counted in the metrics then."""
        self.timings: JobTimings | None = None
        self.first_token_s: float | None = None
        self.last_token_s = 0.0
        self.stop_timer: asyncio.TimerHandle | None = None
        """Runs from a stop string until the scheduler's last update on the job."""

    def submission_now(self, now_s: float) -> Submission:
        """The job with the output that is known."""
        output, submission = self.output, self.submission
        left_s = None if self.deadline_s is None else max(0.0, self.deadline_s - now_s)
        if not self.is_resumed:
            return replace(submission, deadline_in_s=left_s)
        if output.scores is not None and output.scores.are_complete:
            submission = replace(submission, sampling=replace(submission.sampling, prompt_logprobs=None))
        return replace(
            submission,
            resume_from_token=len(output.token_ids),
            deadline_in_s=left_s,
            output=output.token_ids[:],
            output_logprobs=tuple(output.logprobs),
            age_s=max(0.0, now_s - self.request.arrived_s),
        )

    def end_timer(self) -> None:
        """Stops the timer: the last update has arrived or is no longer awaited."""
        if self.stop_timer is not None:
            self.stop_timer.cancel()
            self.stop_timer = None


class OpenRequest:
    """The state of a request. `choices` is empty until the prompt is tokenized."""

    __slots__ = (
        "arrived_s",
        "body_digest",
        "choices",
        "error",
        "id_is_given",
        "listeners",
        "open_choices",
        "preparation",
        "prompt_tokens",
        "request_id",
        "trace",
    )

    def __init__(self, request_id: str, id_is_given: bool, body_digest: bytes, arrived_s: float) -> None:
        self.request_id = request_id
        self.id_is_given = id_is_given
        self.body_digest = body_digest
        self.arrived_s = arrived_s
        self.prompt_tokens = 0
        self.choices: tuple[Choice, ...] = ()
        self.open_choices = 0
        self.listeners: list[Listener] = []
        self.preparation: asyncio.Task[None] | None = None
        self.error: Exception | None = None
        self.trace = present_trace()
        """None: it is not sampled."""

    @property
    def over(self) -> bool:
        """Whether the request has ended, so that there will be no more output."""
        return self.error is not None or (bool(self.choices) and self.open_choices == 0)

    def tokenized(self, request: GenerateRequest, tokens: int, now_s: float) -> str:
        """The prompt is there. Returns the trace context of its jobs; empty if the request is not sampled."""
        self.prompt_tokens = tokens
        if self.trace is None:
            return ""
        self.trace.opened(request, self.request_id)
        self.trace.tokenized(self.arrived_s, now_s, tokens)
        return self.trace.traceparent

    @property
    def usage(self) -> Usage:
        """The usage to report at the end."""
        return Usage(
            self.prompt_tokens,
            sum(len(choice.output.token_ids) for choice in self.choices),
            sum(choice.timings.preemptions for choice in self.choices if choice.timings is not None),
        )

    def wake(self) -> None:
        """Wakes every listener that is due something, because there is something new."""
        for listener in self.listeners:
            if listener.is_due():
                listener.wake()


class Taken(NamedTuple):
    """A piece for a client, with the usage if it is the last piece of the stream."""

    piece: OutputPiece
    usage: Usage | None


class Listener:
    """One client's stream. It must be closed when the client has been served or has gone."""

    __slots__ = ("_cursors", "_from_token", "_interval", "_leave", "_open_cursors", "_turn", "_waiter", "request")

    def __init__(
        self,
        request: OpenRequest,
        from_token: int,
        leave: "Callable[[Listener, EndReason], None]",
        stream_interval: int,
    ) -> None:
        self.request = request
        self._from_token = from_token
        self._interval = stream_interval
        self._leave = leave
        self._cursors: tuple[Cursor, ...] = ()
        self._open_cursors = 0
        self._turn = 0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        """Whether the last piece of every choice has been taken."""
        return bool(self._cursors) and self._open_cursors == 0

    def is_due(self) -> bool:
        """Whether it would take anything, an error too; pieces of fewer tokens than the interval wait for more."""
        if self._interval == 1 or not self._cursors or self.request.error is not None:
            return True
        return any(cursor.is_due(self._interval) for cursor in self._cursors)

    def take(self) -> Taken | None:
        """The next piece, if one is due. Raises the request's error once all pieces before it have been taken."""
        if not self._cursors:
            choices = self.request.choices
            self._cursors = tuple(Cursor(choice.index, choice.output, self._from_token) for choice in choices)
            self._open_cursors = len(choices)
        least_tokens = 1 if self.request.error is not None else self._interval
        for _ in self._cursors:
            # In turn, so that no choice waits for another one when the client reads slowly.
            cursor = self._cursors[self._turn]
            self._turn = (self._turn + 1) % len(self._cursors)
            piece = cursor.take() if cursor.is_due(least_tokens) else None
            if piece is None:
                continue
            if piece.finish is not None:
                self._open_cursors -= 1
            return Taken(piece, self.request.usage if self._open_cursors == 0 else None)
        error = self.request.error
        if isinstance(error, StreamLostError):
            raise error.at(self._next_token())
        if error is not None:
            raise error
        return None

    def _next_token(self) -> int:
        """The number of the first token that this stream lacks in a choice that has not ended."""
        open_cursors = (cursor.token_number for cursor in self._cursors if not cursor.finished)
        return min(open_cursors, default=self._from_token)

    async def wait(self) -> None:
        """Waits until there is something to take. Call it right after `take` has returned None."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Ends `wait`."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self, reason: EndReason) -> None:
        """Stops listening. `reason` says why, in case the request is not over."""
        self._leave(self, reason)
