"""The engine: runs plans on the model and keeps what the worker knows of its jobs. No gRPC, no clock but for counting.

Theory of operation
-------------------
Two threads meet here. One hands over the KV manager's commands (`apply`), which take effect at once; the other, the
stepping thread, runs plans in order (`run`). They share the tables, under a lock that nobody holds while computing or
copying.

A plan is checked against the tables before anything is computed: an entry that reads KV which is not valid, or writes
beyond the job's blocks, is a bug of a peer, refused loudly [PROTOCOL rule 17]. Then the uploads of the plan's own
jobs are awaited, and no others. All entries run as one forward pass, decodes and prefills mixed, but for prefills
with a limit: each of these runs by itself, so that giving it up costs the others nothing.

Sampled tokens stay here: a decode entry brings no token, it goes on from the last one. Plans are made before the
results of earlier ones are known, so an entry may name a job whose last token ended it. Such an entry is passed over:
nothing is computed, no token reported. Nor is anything written then, so the blocks that a Release frees hold nothing
of a later plan. A job whose prefill may be given up is in no plan that is made before that plan's result.

An iteration's time is that of its compute: what copies held up counts as stall, not as both. On CUDA that wait is the
device's and falls within the iteration as the host sees it, since launching is not ending; for the same reason a
prefill with a limit is launched one layer ahead of the device at most, else its clock would be that of launching.

In float16 a job can leave the range of numbers; its logits then mean nothing. No message fails a single job, so its
tokens are sent, and the log says once which job it is. It reaches no other job (model/attention.py).

What a job has sampled, and its KV, are forgotten by a ReleaseBlocks, or when a new life begins: then the scheduler
sends it again from position 0, its earlier output among the tokens.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from services.domain.errors import ProtocolError
from services.domain.generation import TokenLogprob
from services.domain.ids import Epoch, JobId
from services.domain.iteration import Plan, PlanWork, WorkerCounters, WorkerResult
from services.domain.protocol import Applied, Done, IterationResult, KvToWorker, SampledToken
from services.worker.engine.job_progress import JobProgress
from services.worker.kv.copier import Copier, CpuCopier
from services.worker.kv.cuda_copier import CudaCopier
from services.worker.kv.pools import KvPools
from services.worker.kv.tables import KvPlace, KvTables
from services.worker.model.batch import BatchLayout, PagedKv, SequenceRows
from services.worker.model.llama import DecoderModel
from services.worker.model.prefill_cut import PrefillCut
from services.worker.sampling.sampler import sample

_log = logging.getLogger(__name__)


class Mark(Protocol):
    """A place in what the device has been given to do."""

    def synchronize(self) -> None:
        """Returns when the device has come there."""
        ...


class PrefillClock:
    """Asked before each layer whether `limit_s` seconds are not over yet. With `mark`, which marks the end of all that
    was launched so far, the seconds begin when the device has done what came before, and each time the device is first
    let come within a layer of the host.
    """

    def __init__(self, limit_s: float, mark: Callable[[], Mark] | None) -> None:
        self._mark = mark
        self._before: Mark | None = None
        if mark is not None:
            mark().synchronize()
        self._until_s = time.perf_counter() + limit_s

    def __call__(self) -> bool:
        if self._mark is not None:
            before, self._before = self._before, self._mark()
            if before is not None:
                before.synchronize()
        return time.perf_counter() < self._until_s


class BatchPart(NamedTuple):
    """An entry of a plan that is to be computed, with all that it touches."""

    entry: PlanWork
    state: JobProgress
    place: KvPlace

    @property
    def row_count(self) -> int:
        return self.entry.to_token - self.entry.from_token

    @property
    def samples(self) -> bool:
        return self.entry.to_token == self.state.known_tokens

    def sequence(self) -> SequenceRows:
        entry, state = self.entry, self.state
        return SequenceRows(entry.from_token, entry.to_token, self.place.blocks, self.samples, state.most_tokens)


def make_copier(pools: KvPools) -> Copier:
    return CudaCopier(pools) if pools.device.is_cuda else CpuCopier(pools)


def _ignore(_: Done) -> None:
    """Until a life begins there is nobody to tell."""


class Engine:
    """One model, its pools, and the jobs of one life of the worker."""

    def __init__(self, model: DecoderModel, pools: KvPools, copier: Copier | None = None) -> None:
        self.model = model
        self.pools = pools
        self.block_size = pools.shape.block_size
        self.cache = PagedKv(pools.device)
        self._device = pools.device.device
        self._copier = make_copier(pools) if copier is None else copier
        self._epoch = Epoch(0)
        self._last_plan = -1
        self._given_up = False
        self._stall_s = self._busy_s = self._plan_wait_s = 0.0
        self._offloaded_blocks = self._uploaded_blocks = 0
        self._tables = self._new_tables(_ignore)
        self._before_this_life = WorkerCounters()

    # --- a life ------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> Epoch:
        return self._epoch

    def begin_life(self, epoch: Epoch, on_done: Callable[[Done], None]) -> None:
        """Forgets all jobs and tables, once the copies under way have ended. No plan may be running.

        `on_done` gets every Done, from a thread of the copier and always after `apply` has returned the Applied.
        """
        assert epoch > self._epoch, "a later life has a greater epoch"
        self._copier.drain()
        self._offloaded_blocks += self._tables.offloaded_blocks
        self._uploaded_blocks += self._tables.uploaded_blocks
        self._epoch, self._last_plan = epoch, -1
        self._tables = self._new_tables(on_done)
        self._before_this_life = self.counters()

    def give_up(self) -> None:
        """Abandons the iteration under way, if any, between two of its layers. Nothing can be run afterwards."""
        self._given_up = True

    def close(self) -> None:
        """Ends the copier's threads."""
        self._copier.close()

    def _new_tables(self, on_done: Callable[[Done], None]) -> KvTables:
        pools = self.pools
        return KvTables(self._copier, self.block_size, pools.device_block_count, pools.host_block_count, on_done)

    # --- for the thread that talks to the KV manager -----------------------------------------------------------------

    def apply(self, command: KvToWorker) -> Applied:
        """Applies a command at once, whatever runs. Raises ProtocolError."""
        return self._tables.apply(command)

    # --- for the stepping thread -------------------------------------------------------------------------------------

    def prepare_thread(self) -> None:
        """To be called once by the thread that will run plans: what torch keeps per thread."""
        torch.set_flush_denormal(True)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def run(self, plan: Plan) -> WorkerResult:
        """Runs an iteration and returns what it made. Raises ProtocolError, having computed nothing, for a plan
        that can't be right, and PrefillCut when it was given up.
        """
        if plan.epoch != self._epoch or plan.plan_number <= self._last_plan:
            raise ProtocolError(
                f"plan {plan.plan_number} of epoch {plan.epoch} comes after {self._last_plan} of {self._epoch}"
            )
        self._last_plan = plan.plan_number
        parts = self._parts(plan.entries)
        uploads = [part.place.upload for part in parts if part.place.upload is not None]
        asked_s = time.perf_counter()
        self._copier.wait(uploads)  # [wait-own-upload]

        started_s = time.perf_counter()
        together = sorted(
            (part for part in parts if part.entry.cut_after_s is None), key=lambda part: part.row_count > 1
        )
        computed = [(together, self._forward(together))] if together else []
        cut: list[JobId] = []
        for part in parts:
            if part.entry.cut_after_s is None:
                continue
            logits = self._forward_until(part, part.entry.cut_after_s)
            if logits is None:
                cut.append(part.entry.job_id)
            else:
                computed.append(([part], logits))
        tokens, logprobs = self._sample(computed)
        passed_s, stall_s = time.perf_counter() - started_s, self._copier.take_stall_s()
        # A stall begins with the wait: what did not pass before the start is, on CUDA, within the time since.
        duration_s = max(passed_s - max(stall_s - (started_s - asked_s), 0.0), 0.0)

        self._busy_s += duration_s
        self._stall_s += stall_s
        result = IterationResult(plan.epoch, plan.plan_number, tokens, tuple(cut), duration_s)
        return WorkerResult(result, logprobs, self.counters().since(self._before_this_life))

    def has_unfinished_jobs(self) -> bool:
        """Some job here can still make tokens: a pause now is a pause for somebody."""
        return self._tables.unfinished_jobs()

    def add_plan_wait(self, seconds: float) -> None:
        """Counts time without a plan at hand."""
        self._plan_wait_s += seconds

    def counters(self) -> WorkerCounters:
        """Since the engine was made, over all lives."""
        block_bytes, tables = self.pools.shape.block_bytes, self._tables
        return WorkerCounters(
            stall_s=self._stall_s,
            busy_s=self._busy_s,
            plan_wait_s=self._plan_wait_s,
            offloaded_bytes=(self._offloaded_blocks + tables.offloaded_blocks) * block_bytes,
            uploaded_bytes=(self._uploaded_blocks + tables.uploaded_blocks) * block_bytes,
        )

    def check(self) -> None:
        """Raises AssertionError if the tables' invariants are broken."""
        self._tables.check()

    # --- checking a plan ---------------------------------------------------------------------------------------------

    def _parts(self, entries: Sequence[PlanWork]) -> list[BatchPart]:
        """The entries to compute. Job states change only once all entries were found right."""
        parts, fresh = [], []
        for entry, place in zip(entries, self._tables.places(entry.job_id for entry in entries), strict=True):
            if place is None:
                raise ProtocolError(f"{self._told(entry)}: the job has no blocks")
            state = place.tables.state
            if entry.from_token == 0:
                if entry.spec is None:
                    raise ProtocolError(f"{self._told(entry)}: a job's first entry does not say how to sample")
                state = JobProgress(entry.spec)
                fresh.append((place.tables, state))
            elif state is None:
                raise ProtocolError(f"{self._told(entry)}: the job is not known: {self._tables.story(place.tables)}")
            elif state.ended:
                continue
            self._check_entry(entry, state, place)
            parts.append(BatchPart(entry, state, place))
        for tables, state in fresh:
            tables.state, tables.valid_tokens = state, 0
        for part in parts:
            if part.entry.token_ids:
                part.state.learn(part.entry.from_token, part.entry.token_ids)
        return parts

    def _check_entry(self, entry: PlanWork, state: JobProgress, place: KvPlace) -> None:
        from_token, to_token, token_count = entry.from_token, entry.to_token, len(entry.token_ids)
        valid_tokens = 0 if from_token == 0 else place.tables.valid_tokens
        wrong = None
        if not from_token < to_token <= state.known_tokens:
            wrong = f"the job has {state.known_tokens} tokens"
        elif from_token != valid_tokens:
            wrong = f"the KV of {valid_tokens} tokens is valid"
        elif to_token > len(place.blocks) * self.block_size:
            wrong = f"the plan is beyond the table of {len(place.blocks)} blocks"
        elif token_count == 0 and (to_token - from_token != 1 or state.last_token < 0):
            wrong = "a prefill without its tokens"
        elif token_count not in (0, to_token - from_token):
            wrong = f"{token_count} tokens are given"
        elif token_count and not 0 <= min(entry.token_ids) <= max(entry.token_ids) < self.model.config.vocabulary_size:
            wrong = "a token is out of the vocabulary"
        if wrong is not None:
            raise ProtocolError(f"{self._told(entry)}: {wrong}: {self._tables.story(place.tables)}")

    def _told(self, entry: PlanWork) -> str:
        return f"plan {self._last_plan}, job {entry.job_id}, tokens {entry.from_token} to {entry.to_token}"

    # --- computing ---------------------------------------------------------------------------------------------------

    def _forward(self, parts: Sequence[BatchPart], keep_going: Callable[[], bool] | None = None) -> Tensor:
        """Logits of the parts that sample. Parts of one row come first."""
        token_ids: list[int] = []
        for part in parts:
            token_ids.extend(part.entry.token_ids or (part.state.last_token,))
        batch = BatchLayout.of([part.sequence() for part in parts], self.block_size, self._device)
        token_ids_T = torch.tensor(token_ids, dtype=torch.int64).to(self._device, non_blocking=True)
        logits_SV: Tensor = self.model(token_ids_T, self.cache, batch, keep_going or self._goes_on)
        self._copier.launched()
        for part in parts:
            part.place.tables.valid_tokens = part.entry.to_token
        return logits_SV

    def _goes_on(self) -> bool:
        return not self._given_up

    def _forward_until(self, part: BatchPart, limit_s: float) -> Tensor | None:
        """A pass by itself, or None when it was given up after `limit_s` seconds."""
        in_time = PrefillClock(limit_s, self._mark if self._device.type == "cuda" else None)
        try:
            return self._forward([part], lambda: self._goes_on() and in_time())
        except PrefillCut:
            if self._given_up:
                raise
            return None

    def _mark(self) -> Mark:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _sample(
        self, computed: Sequence[tuple[Sequence[BatchPart], Tensor]]
    ) -> tuple[tuple[SampledToken, ...], dict[JobId, TokenLogprob]]:
        sampled = [part for parts, _ in computed for part in parts if part.samples]
        if not sampled:
            self._await_device()
            return (), {}
        logits_SV = computed[0][1] if len(computed) == 1 else torch.cat([logits for _, logits in computed])
        may_overflow = self.model.dtype == torch.float16
        with torch.inference_mode():
            finite_S = logits_SV.isfinite().all(-1) if may_overflow else None
            samples = sample(logits_SV, [part.state.row() for part in sampled])
        if finite_S is not None:
            _tell_overflows(part for part, finite in zip(sampled, finite_S.tolist(), strict=True) if not finite)
        tokens = tuple(
            SampledToken(part.entry.job_id, token_id, part.state.add_output(token_id))
            for part, token_id in zip(sampled, samples.token_ids, strict=True)
        )
        return tokens, {sampled[number].entry.job_id: logprob for number, logprob in samples.logprobs.items()}

    def _await_device(self) -> None:
        """An iteration's time is that of its compute, also where no token brings it to the host."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def _tell_overflows(parts: Iterable[BatchPart]) -> None:
    """Logs the jobs whose logits are not finite, each once."""
    for part in parts:
        if not part.state.overflowed:
            part.state.overflowed = True
            _log.warning(
                "job %s, tokens to %d: its numbers are beyond the range of float16, what it says from here on means "
                "nothing; other jobs are not touched; bfloat16 has the range",
                part.entry.job_id,
                part.entry.to_token,
            )
