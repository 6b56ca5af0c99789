"""The guides of a worker's jobs: compiled on a thread of their own, and followed token by token.

Theory of operation
-------------------
A job's guide is a state that its output tokens advance. It belongs to the job: it stays with it while its KV is in host
memory, and is made anew from its output when the job starts from position 0, for whatever reason (its KV was dropped,
it came from another group, the worker is a new one).

Making it takes time: milliseconds for an ordinary guide, more for a large one or a long output. So it happens on a
thread beside the steps, which drops the interpreter's lock. (It has no lower priority than the steps: they would wait
for it where it needs that lock.) A plan that starts a job whose state is not ready passes it over (step.py); the
scheduler plans it again. Compiled guides are kept for the next job with the same one.

A prefill in chunks brings earlier output piece by piece. It is followed on the same thread beside the forward pass,
which takes longer; only the sampling waits for it.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from services.domain.guide import Guide
from services.domain.ids import JobId
from services.runtime.guide_compiler import GuideError, one_line

MOST_KEPT = 64
"""Compiled guides that are kept."""

Mask = npt.NDArray[np.int32]
"""A bit for each token: bit i % 32 of word i // 32."""


class CompilesGuides(Protocol):
    """What is needed of a GuideCompiler."""

    def compile(self, guide: Guide) -> LLMatcher: ...


class GuideState:
    """One job's guide, as far as its output. `fault`: why it can't be followed any further; the job has failed then.

    `replay` follows output on the thread of the guides; nothing else may be called before `settle`.
    """

    __slots__ = ("_matcher", "_replays", "consumed_tokens", "fault")

    def __init__(self, matcher: LLMatcher | None, fault: str | None = None) -> None:
        self._matcher = matcher
        self._replays: Future[None] | None = None
        self.consumed_tokens = 0
        self.fault = fault

    def consume(self, token_ids: Sequence[int]) -> None:
        """Follows output tokens."""
        self.consumed_tokens += len(token_ids)
        if self._matcher is None or self.fault is not None:
            return
        if token_ids and not self._matcher.consume_tokens(list(token_ids)):
            self.fault = one_line(self._matcher.get_error()) or "a token does not fit the guide"

    def replay(
        self, first_number: int, token_ids: Sequence[int], run: Callable[[Callable[[], None]], "Future[None]"]
    ) -> None:
        """Follows earlier output, of which `first_number` is the first token's number, where it is not followed yet.
        `run` runs something on the thread of the guides.
        """
        self.settle()
        fresh = token_ids[max(self.consumed_tokens - first_number, 0) :]
        if fresh:
            self._replays = run(lambda: self.consume(fresh))

    def settle(self) -> None:
        """Waits for `replay`."""
        if self._replays is not None:
            self._replays.result()
            self._replays = None

    def add(self, token_id: int) -> bool:
        """Follows a sampled token; returns whether the output is complete, or can't go on."""
        self.consume((token_id,))
        return self.fault is not None or (self._matcher is not None and self._matcher.is_stopped())

    def fill(self, mask: Mask, unwanted: Mask | None) -> None:
        """Writes the tokens that may come next. `unwanted` are left out while there are others."""
        if self._matcher is None or self.fault is not None:
            mask.fill(-1)
            return
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            self.fault = one_line(self._matcher.get_error())
        if unwanted is not None:
            wanted = mask & ~unwanted
            if wanted.any():
                mask[:] = wanted


class GuideStates:
    """Makes the states of a rank's jobs. Without a compiler `why_not` says why there is none, and guided jobs fail."""

    def __init__(self, compiler: CompilesGuides | None, why_not: str = "") -> None:
        self._compiler = compiler
        self._why_not = why_not
        self._kept: OrderedDict[Guide, LLMatcher] = OrderedDict()
        self._made: dict[JobId, Future[GuideState]] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(1, "guides")

    def prepare(
        self, job_id: JobId, guide: Guide, output: Sequence[int], then: Callable[[], None] | None = None
    ) -> None:
        """Makes the state of a job that is about to start, after `output`, unless that is under way. `then` is called
        when it is ready, on the thread of the guides.
        """
        with self._lock:
            made = self._made.get(job_id)
            if made is None:
                made = self._made[job_id] = self._threads.submit(self._make, guide, tuple(output))
        if then is not None:
            made.add_done_callback(lambda ended: None if ended.cancelled() else then())

    def is_ready(self, job_id: JobId) -> bool:
        """Whether the job can start."""
        made = self._made.get(job_id)
        return made is not None and made.done()

    def wait_any(self, job_ids: Sequence[JobId], limit_s: float) -> None:
        """Waits until one of the jobs can start, or the time is over."""
        made = [self._made[job_id] for job_id in job_ids if job_id in self._made]
        wait(made, limit_s, "FIRST_COMPLETED")

    def take(self, job_id: JobId, guide: Guide) -> GuideState:
        """The state of a job that starts. One that was not prepared is made here and now."""
        with self._lock:
            made = self._made.pop(job_id, None)
        if made is None:
            made = self._threads.submit(self._make, guide, ())
        return made.result()

    def run(self, work: Callable[[], None]) -> "Future[None]":
        """Runs something on the thread of the guides."""
        return self._threads.submit(work)

    def forget(self, job_id: JobId) -> None:
        """The job is gone from here."""
        with self._lock:
            made = self._made.pop(job_id, None)
        if made is not None:
            made.cancel()

    def clear(self) -> None:
        """All jobs are gone."""
        for job_id in list(self._made):
            self.forget(job_id)

    def close(self) -> None:
        """Ends the thread, when it has ended what it is at."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- the thread of the guides ------------------------------------------------------------------------------------

    def _make(self, guide: Guide, output: tuple[int, ...]) -> GuideState:
        if self._compiler is None:
            return GuideState(None, self._why_not)
        matcher = self._kept.get(guide)
        if matcher is None:
            try:
                matcher = self._compiler.compile(guide)
            except GuideError as error:
                return GuideState(None, str(error))
            self._kept[guide] = matcher
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(guide)
        present = matcher.deep_copy()
        state = GuideState(present)
        state.consume(output)
        present.compute_bitmask()  # the first mask takes longest, and what it finds is kept
        return state
