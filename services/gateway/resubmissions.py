"""The open jobs that no scheduler has: from the loss of the stream until the next one takes them (PROTOCOL 37).

The gateway has the prompt and the output of all its open jobs, so it is their journal. What was open when the stream
ended waits here, is submitted again, output included, once a scheduler says that it takes jobs, and waits on if that
one refuses it because it is full or not ready. After `limit_s` seconds without a scheduler that takes it a job is given
up, and so is one that lost MOST_LOSSES schedulers since its last token. At most so many jobs wait as requests may be
open, and each is one message.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from services.domain.ids import JobId
from services.gateway.open_request import Choice

MOST_AT_ONCE = 256
"""Jobs that are submitted in one go; other streams have their turn in between."""
MOST_LOSSES = 16
SHORTEST_RETRY_S = 0.05
LONGEST_RETRY_S = 10.0
MOST_LOGPROBS = 1_000_000
"""Of a job that is submitted again: with its prompt they stay within a message. (Its output is bounded by the context.)
"""


def _can_go_on(choice: Choice) -> bool:
    """Whether a scheduler can take the job with its output: one that it must refuse would end the stream for all."""
    wanted, output = choice.submission.sampling.logprobs, choice.output
    if wanted is None:
        return True
    return len(output.logprobs) == len(output.token_ids) and len(output.logprobs) * (1 + wanted) <= MOST_LOGPROBS


class Resubmissions:
    """`submit` sends a job, `give_up` ends the request of one. Both may call `forget`."""

    def __init__(
        self,
        limit_s: float,
        clock: Callable[[], float],
        submit: Callable[[Choice], None],
        give_up: Callable[[Choice], None],
    ) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._submit = submit
        self._give_up = give_up
        self._waiting: dict[JobId, Choice] = {}
        self._takes_jobs = False
        self._limit_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def lost(self, choices: Sequence[Choice]) -> None:
        """The stream has ended, and no scheduler has these jobs any more. Those that wait already wait on."""
        self._takes_jobs = False
        now_s = self._clock()
        for choice in choices:
            if choice.job_id not in self._waiting:
                choice.losses += 1
                if choice.is_resumed:
                    # Its trace has the spans of two schedulers, and room for no more.
                    choice.submission = replace(choice.submission, traceparent="")
                self._wait(choice, now_s)
        for choice in choices:
            if choice.job_id in self._waiting and choice.losses > MOST_LOSSES:
                self._give_up(choice)

    def taken(self, is_ready: bool) -> None:
        """A scheduler was reached, or says anew whether it takes jobs."""
        self._takes_jobs = is_ready
        self._send()

    def refused(self, choice: Choice, retry_after_s: float) -> bool:
        """Whether a job that the next scheduler refused waits on, to be submitted again after a while; not if its time
        will be over then.
        """
        if choice.lost_s is None or self._clock() + retry_after_s > choice.lost_s + self._limit_s:
            return False
        self._wait(choice, choice.lost_s)
        if self._retry_timer is None:
            pause_s = min(max(retry_after_s, SHORTEST_RETRY_S), LONGEST_RETRY_S)
            self._retry_timer = asyncio.get_running_loop().call_later(pause_s, self._on_retry)
        return True

    def forget(self, choice: Choice) -> None:
        """The job has ended, or is not wanted any more."""
        self._waiting.pop(choice.job_id, None)

    def close(self) -> None:
        """Stops the timers."""
        self._waiting.clear()
        for timer in (self._limit_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()

    def _wait(self, choice: Choice, lost_s: float) -> None:
        choice.lost_s = lost_s
        self._waiting[choice.job_id] = choice
        if self._limit_timer is None:
            self._set_limit_timer()

    def _send(self) -> None:
        """Submits what waits, in the order in which the requests came."""
        if not self._takes_jobs:
            return
        waiting = sorted(self._waiting.values(), key=lambda choice: choice.request.arrived_s)
        for choice in waiting[:MOST_AT_ONCE]:
            # Giving up one choice of a request gives up the others too.
            if self._waiting.pop(choice.job_id, None) is None:
                continue
            if _can_go_on(choice):
                choice.is_resumed = True
                self._submit(choice)
            else:
                self._give_up(choice)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._send)

    def _on_retry(self) -> None:
        self._retry_timer = None
        self._send()

    def _set_limit_timer(self) -> None:
        """Wakes when the time of the job that was lost first is over."""
        first_s = min((choice.lost_s for choice in self._waiting.values() if choice.lost_s is not None), default=None)
        self._limit_timer = None
        if first_s is not None:
            left_s = max(0.0, first_s + self._limit_s - self._clock())
            self._limit_timer = asyncio.get_running_loop().call_later(left_s, self._on_limit)

    def _on_limit(self) -> None:
        over_s = self._clock() - self._limit_s
        for choice in list(self._waiting.values()):
            if choice.job_id in self._waiting and choice.lost_s is not None and choice.lost_s <= over_s:
                self._give_up(choice)
        self._set_limit_timer()
