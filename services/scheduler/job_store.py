"""The job book: what the machine does not know about a job, namely tokens, sampling, digests, and followers.

A job is followed by the gateways that submitted it. For each follower the book holds the number of the next token to
send, so that a slow gateway needs no queue: what it has not received is still in the book. A job that ended
successfully is kept for a while, so that a client that lost its stream can come back for the rest. A job that was
cancelled, refused or ran out of time is forgotten at once, so that its id can be used again. A job that has lost all
its followers runs for a while and is then cancelled.

The memory of ended jobs is bounded once per turn, at the expense of jobs that ended in earlier turns. Jobs without
followers go first. A job whose end has not reached all followers is kept for the time that reading it may take, however
large it is; a follower that takes longer is too slow.

Pure: no clock, no I/O. Token ids are kept as array('I'): 10,000 prompts of 512 tokens take 22 MB, as lists 195 MB.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from services.domain.generation import EndReason, TokenLogprob
from services.domain.ids import JobId
from services.domain.iteration import JobSpec, PlanWork
from services.domain.job_sampling import JobSampling
from services.domain.prompt_logprobs import KnownPromptLogprobs, ScoredPrompt
from services.domain.protocol import PlanEntry
from services.domain.submission import JobTimings, JobUpdate, Submission

ENDED_KEPT_S = 60.0
MOST_ENDED = 4096
MOST_ENDED_BYTES = 64 * 1024 * 1024
"""Approximate limit for the output of ended jobs."""
READ_LIMIT_S = 10.0
"""A gateway that has not received the end of a job after this time is not reading."""
LOGPROB_BYTES = 128
"""Approximate memory for the log probability of a token or of one alternative."""
SCORE_BYTES = 8
"""The same of a prompt's."""
ORPHAN_KEPT_S = 30.0
MOST_TOKENS_IN_UPDATE = 4096
"""Limit per job and update; the rest follows in the next update."""


@dataclass(slots=True, eq=False)
class StoredJob:
    """A job in the book."""

    job_id: JobId
    body_digest: bytes
    prompt: "array[int]"
    sampling: JobSampling
    traceparent: str = ""
    output: "array[int]" = field(default_factory=lambda: array("I"))
    logprobs: list[TokenLogprob] | None = None
    scores: KnownPromptLogprobs | None = None
    """Log probabilities of the prompt, if they are wanted."""
    prefill_end: int = 0
    """Positions below this one are computed by prefill since the worker last started the job from position 0."""
    followers: dict[str, int] = field(default_factory=dict)
    """Gateway id -> number of the next token to send."""
    scores_sent: dict[str, int] = field(default_factory=dict)
    """Gateway id -> position of the next token of the prompt whose log probability is to be sent; absent: the first."""
    joined: frozenset[str] = frozenset()
    """Gateways that joined the job after it was opened."""
    finish: EndReason | None = None
    timings: JobTimings | None = None
    is_cancelled: bool = False
    """The cancellation is under way: no gateway can join the job any more."""
    due_s: float = 0.0
    """When the job is forgotten (ended) or cancelled (without followers)."""
    read_by_s: float = 0.0
    """When its followers must have received its end."""

    @property
    def output_bytes(self) -> int:
        """Approximate memory of the output."""
        alternatives = 0 if self.logprobs is None else 1 + (self.sampling.logprobs or 0)
        scores = 0 if self.scores is None else self.scores.known.token_count * (1 + self.scores.known.alternatives)
        return len(self.output) * (4 + LOGPROB_BYTES * alternatives) + SCORE_BYTES * scores


class JobStore:
    """All living jobs, and those that ended recently."""

    def __init__(self) -> None:
        self._entries: dict[JobId, StoredJob] = {}
        self._ended: OrderedDict[JobId, StoredJob] = OrderedDict()
        self._ended_bytes = 0
        self._orphans: deque[tuple[float, StoredJob]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, job_id: JobId) -> StoredJob | None:
        return self._entries.get(job_id)

    def followed_by(self, gateway_id: str) -> list[StoredJob]:
        """The jobs that a gateway follows. O(jobs): called only when a gateway is lost."""
        return [entry for entry in self._entries.values() if gateway_id in entry.followers]

    def has_followed(self) -> bool:
        """Whether a gateway follows a job that has not ended. O(jobs): called only while the scheduler drains."""
        return any(entry.followers and entry.finish is None for entry in self._entries.values())

    def open(self, submission: Submission) -> StoredJob:
        """Add a new job, with the output that it brings from another scheduler."""
        entry = StoredJob(
            submission.job_id,
            submission.body_digest,
            submission.prompt,
            submission.sampling,
            submission.traceparent,
        )
        entry.output.extend(submission.output)
        if submission.sampling.logprobs is not None:
            entry.logprobs = list(submission.output_logprobs)
        if submission.sampling.prompt_logprobs is not None:
            entry.scores = KnownPromptLogprobs(len(submission.prompt))
        self._entries[submission.job_id] = entry
        return entry

    def drop(self, entry: StoredJob) -> None:
        """Forget a job."""
        if self._entries.get(entry.job_id) is entry:
            del self._entries[entry.job_id]
            if self._ended.pop(entry.job_id, None) is not None:
                self._ended_bytes -= entry.output_bytes

    def append(self, entry: StoredJob, token_number: int, token_id: int, logprob: TokenLogprob | None) -> None:
        """Add an output token."""
        assert token_number == len(entry.output), f"job {entry.job_id}: token {token_number} after {len(entry.output)}"
        entry.output.append(token_id)
        if entry.logprobs is not None and logprob is not None:
            entry.logprobs.append(logprob)

    def score(self, scored: ScoredPrompt) -> StoredJob | None:
        """Add log probabilities of a prompt. Returns the job if it wants them. If some are missing before them the
        gateway will notice, and end the request.
        """
        entry = self._entries.get(scored.job_id)
        if entry is None or entry.finish is not None or entry.scores is None:
            return None
        if scored.part.first_token <= entry.scores.end:
            entry.scores.add(scored.part)
        return entry

    def end(self, entry: StoredJob, finish: EndReason, timings: JobTimings, now_s: float) -> None:
        """Mark the job as ended; it is kept for a while."""
        entry.finish, entry.timings = finish, timings
        entry.prompt = array("I")
        self._ended[entry.job_id] = entry
        self._ended_bytes += entry.output_bytes
        self.renew(entry, now_s)

    def renew(self, entry: StoredJob, now_s: float) -> None:
        """Restart the time in which an ended job may be read; called when it ends or is asked for again."""
        if entry.finish is not None:
            self._ended.move_to_end(entry.job_id)
            entry.due_s, entry.read_by_s = now_s + ENDED_KEPT_S, now_s + READ_LIMIT_S

    def forget_ended(self, now_s: float) -> list[StoredJob]:
        """Forget jobs that ended long ago or exceed the limits. Returns those that a follower should have read by now
        but has not.
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
        """Remove a follower. Returns whether it was the last one and the job has not ended."""
        was_follower = entry.followers.pop(gateway_id, None) is not None
        entry.scores_sent.pop(gateway_id, None)
        return was_follower and not entry.followers and entry.finish is None

    def orphan(self, entry: StoredJob, now_s: float) -> None:
        """The last follower was lost: keep the job for a while."""
        entry.due_s = now_s + ORPHAN_KEPT_S
        self._orphans.append((entry.due_s, entry))

    def due_s(self) -> float | None:
        """When `forget_ended` and `orphans_due` should be called next."""
        times = [self._orphans[0][0]] if self._orphans else []
        if self._ended:
            times.append(next(iter(self._ended.values())).due_s)
        return min(times, default=None)

    def orphans_due(self, now_s: float) -> list[StoredJob]:
        """Jobs that have been without followers for too long and must be cancelled."""
        due: list[StoredJob] = []
        while self._orphans and self._orphans[0][0] <= now_s:
            due_s, entry = self._orphans.popleft()
            is_same = self._entries.get(entry.job_id) is entry and entry.due_s == due_s
            if is_same and not entry.followers and entry.finish is None:
                due.append(entry)
        return due

    def work(self, plan_entry: PlanEntry, cut_after_s: float | None) -> PlanWork:
        """A plan entry with the data that the worker needs: tokens for a prefill, and the job's spec at position 0."""
        job_id, from_token, to_token = plan_entry
        entry = self._entries[job_id]
        prompt_tokens = len(entry.prompt)
        spec = None
        wants_scores = entry.scores is not None and not entry.scores.are_complete
        if from_token == 0:
            entry.prefill_end = prompt_tokens + len(entry.output)
            is_scored = entry.scores is not None and not wants_scores
            sampling = replace(entry.sampling, prompt_logprobs=None) if is_scored else entry.sampling
            spec = JobSpec(prompt_tokens, entry.prefill_end, sampling)
        token_ids: Sequence[int] = ()
        next_token_id = entry.prompt[to_token] if wants_scores and to_token < prompt_tokens else None
        if from_token < entry.prefill_end:
            made_earlier = entry.output[max(0, from_token - prompt_tokens) : max(0, to_token - prompt_tokens)]
            token_ids = entry.prompt[from_token:to_token] + made_earlier
        return PlanWork(job_id, from_token, to_token, token_ids, spec, cut_after_s, next_token_id)

    def update(self, entry: StoredJob, gateway_id: str) -> tuple[JobUpdate | None, bool]:
        """What the gateway has not received yet, or None if there is nothing; and whether more follows.

        An update with the job's end removes the gateway from the followers.
        """
        first = entry.followers.get(gateway_id)
        if first is None:
            return None, False
        if entry.scores is not None and entry.scores_sent.get(gateway_id, 1) < entry.scores.end:
            return self._scores_update(entry, entry.scores, gateway_id, first)
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

    def _scores_update(
        self, entry: StoredJob, scores: KnownPromptLogprobs, gateway_id: str, first_token_number: int
    ) -> tuple[JobUpdate, bool]:
        """Log probabilities of the prompt that the gateway has not received; what else is new follows them."""
        start = entry.scores_sent.get(gateway_id, 1)
        stop = entry.scores_sent[gateway_id] = min(scores.end, start + MOST_TOKENS_IN_UPDATE)
        update = JobUpdate(entry.job_id, first_token_number, (), (), prompt_logprobs=scores.known.between(start, stop))
        has_more = stop < scores.end or first_token_number < len(entry.output) or entry.finish is not None
        return update._replace(is_joined=gateway_id in entry.joined), has_more
