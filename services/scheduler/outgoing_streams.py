"""What is waiting to be written to a gateway or a worker. The driver fills it, the stream's handler empties it.

Nothing here grows because a peer is slow: only the ids of a gateway's jobs are kept (their new output is in the book),
and last words and plans are bounded. A peer that lets them reach the bound loses its stream, even if the stream's
handler is stuck writing to it. Whatever is added after that is dropped.
"""

from collections import deque
from collections.abc import Sequence

from services.domain.errors import NotReadyError
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.iteration import PlanWork
from services.domain.submission import JobUpdate, ServingLimits
from services.runtime.outbox import Outbox, OutgoingSide
from services.scheduler.job_store import JobStore
from services.scheduler.machine.scheduler_events import RecallPlans

MOST_LAST_WORDS = 50_000
MOST_PLANS = 1000
MOST_TOKENS_IN_MESSAGE = 20_000
"""With 20 alternatives each, this many take 5 MB, a third of the largest message."""
TOKEN_OF_UPDATE = 8
"""The overhead of an update, in tokens."""


def _tokens_of(update: JobUpdate) -> int:
    return len(update.token_ids) + (0 if update.prompt_logprobs is None else update.prompt_logprobs.token_count)


class GatewayStream(OutgoingSide):
    """One stream of a gateway."""

    def __init__(self, gateway_id: str) -> None:
        super().__init__()
        self.gateway_id = gateway_id
        self._news: dict[JobId, None] = {}
        self._last_words: deque[JobUpdate] = deque()
        self._limits: ServingLimits | None = None

    def tell_limits(self, limits: ServingLimits) -> None:
        """The serving limits have changed."""
        if self.is_closed:
            return
        self._limits = limits
        self._wake()

    def tell_news(self, job_id: JobId) -> None:
        """The book has new output of this job."""
        if self.is_closed:
            return
        self._news[job_id] = None
        if not self._filled.is_set():
            self._wake()

    def tell_last_word(self, update: JobUpdate) -> None:
        """Add the end of a job that the book has forgotten or never knew."""
        if self.is_closed:
            return
        self._news.pop(update.job_id, None)
        self._last_words.append(update)
        self._wake()
        if len(self._last_words) > MOST_LAST_WORDS:
            message = f"this gateway is not reading its stream: over {MOST_LAST_WORDS} ended jobs are waiting for it"
            self.close(NotReadyError(message))

    def take_limits(self) -> ServingLimits | None:
        """The limits, if they have changed since the last call."""
        limits, self._limits = self._limits, None
        return limits

    def take_updates(self, jobs: JobStore) -> list[JobUpdate]:
        """New output of all jobs, as much as fits in one message; the next call returns the rest."""
        updates: list[JobUpdate] = []
        room = MOST_TOKENS_IN_MESSAGE
        while self._last_words and room > 0:
            updates.append(self._last_words.popleft())
            room -= TOKEN_OF_UPDATE + _tokens_of(updates[-1])
        done: list[JobId] = []
        for job_id in self._news:
            if room <= 0:
                break
            entry = jobs.get(job_id)
            update, has_more = (None, False) if entry is None else jobs.update(entry, self.gateway_id)
            if update is not None:
                updates.append(update)
                room -= TOKEN_OF_UPDATE + _tokens_of(update)
            if not has_more:
                done.append(job_id)
        for job_id in done:
            del self._news[job_id]
        if self._news or self._last_words:
            self._wake()
        return updates


class WorkerStream(Outbox[tuple[PlanNumber, Sequence[PlanWork]] | RecallPlans | None]):
    """One stream of a group's worker: its plans, which are bounded by the number that may be under way; recalls, of
    which one at a time has no answer; and None for the word that no job needs it any more.
    """

    def __init__(self, epoch: Epoch, group: int = 0) -> None:
        super().__init__(MOST_PLANS, "the worker")
        self.epoch = epoch
        self.group = group
