"""The job book: what the machine does not know of a job. Tokens, sampling, digests, and who follows it.

A job is followed by the gateways that submitted it; each has a number of the next token it wants, so that a slow
gateway costs no queue: what it has not got yet is still in the book. A job that ended well is remembered for a while,
so that a client that lost its stream can come back for the rest; one that was cancelled, refused or ran out of time is
forgotten at once, so that the same id can be tried again. A job whose followers are all lost goes on for a while, then
it is cancelled.

What is remembered is bounded, once a turn, and so by those that ended in earlier turns. Those that nobody follows any
more go first; one whose end somebody has not got yet stays for as long as reading it may take, however large it is:
only who takes longer than that is slow.

Pure: no clock, no I/O. Token ids are kept as array('I'): 10,000 prompts of 512 tokens take 22 MB, as lists 195 MB.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.domain.generation import EndReason, TokenLogprob
from services.domain.ids import JobId
from services.domain.iteration import JobSpec, PlanWork
from services.domain.job_sampling import JobSampling
from services.domain.protocol import PlanEntry
from services.domain.submission import JobTimings, JobUpdate, Submission

ENDED_KEPT_S = 60.0
MOST_ENDED = 4096
MOST_ENDED_BYTES = 64 * 1024 * 1024
"""Of remembered output, roughly."""
READ_LIMIT_S = 10.0
"""A gateway that has not got a job's end so long after it does not read."""
LOGPROB_BYTES = 128
"""Roughly, of each token's log probability and of each alternative."""
ORPHAN_KEPT_S = 30.0
MOST_TOKENS_IN_UPDATE = 4096
"""Of one job, in one update; the rest follows in the next."""


@dataclass(slots=True, eq=False)
class StoredJob:
    """One job."""

    job_id: JobId
    body_digest: bytes
    prompt: "array[int]"
    sampling: JobSampling
    output: "array[int]" = field(default_factory=lambda: array("I"))
    logprobs: list[TokenLogprob] | None = None
    prefill_end: int = 0
    """Positions before this one are computed by prefill in the worker's present life of the job."""
    followers: dict[str, int] = field(default_factory=dict)
    """Gateway id -> number of the next token to send."""
    joined: frozenset[str] = frozenset()
    """Gateways that came to it after it was opened."""
    finish: EndReason | None = None
    timings: JobTimings | None = None
    is_cancelled: bool = False
    """Its end is under way: nobody can join it any more."""
    due_s: float = 0.0
    """When it is forgotten (ended), or cancelled (without followers)."""
    read_by_s: float = 0.0
    """When its followers must have got its end."""

    @property
    def output_bytes(self) -> int:
        """Memory of its output, roughly."""
        alternatives = 0 if self.logprobs is None else 1 + (self.sampling.logprobs or 0)
        return len(self.output) * (4 + LOGPROB_BYTES * alternatives)


class JobStore:
    """All jobs that live, and those that ended of late."""

    def __init__(self) -> None:
        self._entries: dict[JobId, StoredJob] = {}
        self._ended: OrderedDict[JobId, StoredJob] = OrderedDict()
        self._ended_bytes = 0
        self._orphans: deque[tuple[float, StoredJob]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, job_id: JobId) -> StoredJob | None:
        """The job, if it is known."""
        return self._entries.get(job_id)

    def followed_by(self, gateway_id: str) -> list[StoredJob]:
        """The jobs of a gateway. O(jobs): for the loss of one."""
        return [entry for entry in self._entries.values() if gateway_id in entry.followers]

    def open(self, submission: Submission) -> StoredJob:
        """A new job."""
        entry = StoredJob(submission.job_id, submission.body_digest, submission.prompt, submission.sampling)
        if submission.sampling.logprobs is not None:
            entry.logprobs = []
        self._entries[submission.job_id] = entry
        return entry

    def drop(self, entry: StoredJob) -> None:
        """Forget a job."""
        if self._entries.get(entry.job_id) is entry:
            del self._entries[entry.job_id]
            if self._ended.pop(entry.job_id, None) is not None:
                self._ended_bytes -= entry.output_bytes

    def append(self, entry: StoredJob, token_number: int, token_id: int, logprob: TokenLogprob | None) -> None:
        """A new output token."""
        assert token_number == len(entry.output), f"job {entry.job_id}: token {token_number} after {len(entry.output)}"
        entry.output.append(token_id)
        if entry.logprobs is not None and logprob is not None:
            entry.logprobs.append(logprob)

    def end(self, entry: StoredJob, finish: EndReason, timings: JobTimings, now_s: float) -> None:
        """The job ended and is remembered."""
        entry.finish, entry.timings = finish, timings
        entry.prompt = array("I")
        self._ended[entry.job_id] = entry
        self._ended_bytes += entry.output_bytes
        self.renew(entry, now_s)

    def renew(self, entry: StoredJob, now_s: float) -> None:
        """The job ended, or has ended and is asked for again: its time to be read begins."""
        if entry.finish is not None:
            self._ended.move_to_end(entry.job_id)
            entry.due_s, entry.read_by_s = now_s + ENDED_KEPT_S, now_s + READ_LIMIT_S

    def forget_ended(self, now_s: float) -> list[StoredJob]:
        """Forget what ended long ago, and what is too much. Returns those whose end somebody should have got by now
        and has not.
        """
        count, size_bytes = len(self._ended), self._ended_bytes
        forgotten: list[StoredJob] = []
        for entry in self._ended.values():
            is_over = count > MOST_ENDED or size_bytes > MOST_ENDED_BYTES
            if entry.due_s > now_s and not is_over:
                break
            if entry.followers and entry.read_by_s > now_s:
                continue
            forgotten.append(entry)
            count -= 1
            size_bytes -= entry.output_bytes
        for entry in forgotten:
            self.drop(entry)
        return [entry for entry in forgotten if entry.followers]

    def unfollow(self, entry: StoredJob, gateway_id: str) -> bool:
        """The gateway wants no more of it. Whether it was the last one that did, of a job that goes on."""
        was_follower = entry.followers.pop(gateway_id, None) is not None
        return was_follower and not entry.followers and entry.finish is None

    def orphan(self, entry: StoredJob, now_s: float) -> None:
        """Its last follower was lost: keep it for a while."""
        entry.due_s = now_s + ORPHAN_KEPT_S
        self._orphans.append((entry.due_s, entry))

    def due_s(self) -> float | None:
        """When `forget_ended` and `orphans_due` should be called next."""
        times = [self._orphans[0][0]] if self._orphans else []
        if self._ended:
            times.append(next(iter(self._ended.values())).due_s)
        return min(times, default=None)

    def orphans_due(self, now_s: float) -> list[StoredJob]:
        """Those that nobody has followed for too long: to be cancelled."""
        due: list[StoredJob] = []
        while self._orphans and self._orphans[0][0] <= now_s:
            due_s, entry = self._orphans.popleft()
            is_same = self._entries.get(entry.job_id) is entry and entry.due_s == due_s
            if is_same and not entry.followers and entry.finish is None:
                due.append(entry)
        return due

    def work(self, plan_entry: PlanEntry, cut_after_s: float | None) -> PlanWork:
        """A plan entry with what the worker must know: tokens for a prefill, and the job itself at position 0."""
        job_id, from_token, to_token = plan_entry
        entry = self._entries[job_id]
        prompt_tokens = len(entry.prompt)
        spec = None
        if from_token == 0:
            entry.prefill_end = prompt_tokens + len(entry.output)
            spec = JobSpec(prompt_tokens, entry.prefill_end, entry.sampling)
        token_ids: Sequence[int] = ()
        if from_token < entry.prefill_end:
            made_earlier = entry.output[max(0, from_token - prompt_tokens) : max(0, to_token - prompt_tokens)]
            token_ids = entry.prompt[from_token:to_token] + made_earlier
        return PlanWork(job_id, from_token, to_token, token_ids, spec, cut_after_s)

    def update(self, entry: StoredJob, gateway_id: str) -> tuple[JobUpdate | None, bool]:
        """What the gateway has not got yet, None for nothing; and whether there is more after it.

        With the job's end it ceases to be a follower.
        """
        first = entry.followers.get(gateway_id)
        if first is None:
            return None, False
        until = min(len(entry.output), first + MOST_TOKENS_IN_UPDATE)
        has_more = until < len(entry.output)
        if first >= until and entry.finish is None:
            return None, False
        finish, timings = (None, None) if has_more else (entry.finish, entry.timings)
        if finish is None:
            entry.followers[gateway_id] = until
        else:
            del entry.followers[gateway_id]
        logprobs = () if entry.logprobs is None else entry.logprobs[first:until]
        token_ids = entry.output[first:until]
        is_joined = gateway_id in entry.joined
        return JobUpdate(entry.job_id, first, token_ids, logprobs, finish, None, timings, is_joined), has_more
