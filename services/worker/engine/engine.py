"""The engine: runs plans on the model, samples, and counts. No gRPC; the clock is read only to measure.

Theory of operation
-------------------
Two threads meet here. One hands over the KV manager's commands (`apply`), which take effect at once; the other, the
stepping thread, runs plans in order. They share the tables, under a lock that nobody holds while computing or copying.

`step` is one rank's part of an iteration. The leader of a group decides before it what the ranks must agree on
(step.py); in a group of one rank, `run` does both. All ranks of a group are given the same steps and compute the same
rows; what they exchange meanwhile goes through the epoch's links (parallel/stage_links.py). One of them samples.

A step's plan is first turned into checked parts of a batch (batch_parts.py). Then the uploads of the plan's own jobs
are awaited, and no others. All parts run as one forward pass, decodes and prefills mixed, except prefills with a limit:
each of these runs by itself, so that giving it up costs the others nothing. So does a prompt whose tokens' log
probabilities are wanted (prompt_scoring.py), in as many passes as it takes.

Sampled tokens stay on the worker: a decode entry brings no token, it goes on from the last one. For an entry whose job
has ended nothing is computed and no token reported. Nor is anything written, so the blocks that a ReleaseBlocks frees
hold nothing of a later plan. A job whose prefill may be given up is in no plan that is made before that plan's result.

An iteration's time is its compute: time spent waiting for copies counts as stall, not as both. On CUDA that wait is the
device's and falls within the iteration as the host sees it, since a launch returns before the work is done; for the
same reason a prefill with a limit is launched at most one layer ahead of the device, or its clock would measure
launches.

In float16 a job can leave the range of numbers; its logits then mean nothing. No message fails a single job, so its
tokens are sent, and the log names the job once. It reaches no other job (model/attention.py).

A job may have a guide (sampling/guide_states.py). It is compiled beside the steps, begun when a plan that starts the
job arrives; a plan that comes to be run earlier passes the job over.

What a job has sampled, and its KV, are forgotten by a ReleaseBlocks, or when a new epoch begins: then the scheduler
sends it again from position 0, its earlier output among the tokens.
"""

import ctypes
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from services.domain.errors import ProtocolError
from services.domain.generation import TokenLogprob
from services.domain.ids import Epoch, JobId
from services.domain.iteration import Plan, WorkerCounters, WorkerResult
from services.domain.prompt_logprobs import ScoredPrompt
from services.domain.protocol import Applied, Done, IterationResult, KvToWorker, ReleaseBlocks, SampledToken
from services.worker.engine.batch_parts import BatchPart, checked_parts, computed_together, failures_of, log_overflows
from services.worker.engine.compiled_run import CompiledRun, compiled_run
from services.worker.engine.layout_ahead import LayoutAhead
from services.worker.engine.prefill_clock import Mark, PrefillClock
from services.worker.engine.prompt_scoring import ComingPasses, passes_of, scored_prompt
from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.kernels.cpu.native_draws import native_draw
from services.worker.kv.copier import Copier
from services.worker.kv.copier_choice import make_copier
from services.worker.kv.pools import KvPools
from services.worker.kv.tables import KvTables
from services.worker.model.batch import PagedKv
from services.worker.model.prefill_cut import PrefillCut, StepLimit
from services.worker.model.served_decoder import ServedDecoder
from services.worker.parallel.layout import GroupRank
from services.worker.parallel.stage_links import StageLinks
from services.worker.parallel.stage_pass import ALONE, StagePass
from services.worker.sampling.guide_states import GuideStates
from services.worker.sampling.sampler import DrawRows, draw, sample
from services.worker.sampling.token_masks import prepare_masks
from services.worker.step import OutputLedger, Step, StepOutcome, guided_starts, output_of

GUIDE_WAIT_S = 0.005
"""How long a plan waits that has nothing to run but jobs whose guides are being compiled: bounds what another job that
arrives then waits, and how often the scheduler is asked meanwhile."""

NextPlan = Callable[[], Plan | None]


def _nothing(*_: Done) -> None:
    """Before the first epoch nobody waits for a Done; and nobody has to know of a plan behind the one that is run."""


class Engine:
    """One rank's model, its pools, and the jobs of the worker's current epoch."""

    def __init__(
        self,
        model: ServedDecoder,
        pools: KvPools,
        copier: Copier | None = None,
        rank: GroupRank = ALONE,
        guides: GuideStates | None = None,
    ) -> None:
        self.model = model
        self.guides = guides or GuideStates(None, "this worker was built without guides")
        self.stage_pass = StagePass(model, rank)
        decoder = model if isinstance(model, NativeDecoder) else None
        self._decoder = decoder if rank.layout.rank_count == 1 else None
        self._draw_rows: DrawRows = draw if decoder is None else native_draw(decoder.instruction_set)
        self.pools = pools
        self.block_size = pools.shape.block_size
        self.cache = PagedKv(pools.device)
        self._layouts = LayoutAhead(model, self.cache)
        self._device = pools.device.device
        if guides is not None:
            prepare_masks(self._device)
        self._copier = make_copier(pools) if copier is None else copier
        self._epoch = Epoch(0)
        self._last_plan = -1
        self._given_up = ctypes.c_int32(0)
        self._goes_on = StepLimit(self._given_up)
        self._stall_s = self._busy_s = self._plan_wait_s = 0.0
        self._offloaded_blocks = self._uploaded_blocks = 0
        self._tables = self._new_tables(_nothing)
        self._ledger = OutputLedger()
        self._coming_passes = self._new_passes()
        self._released: deque[JobId] = deque()  # as many as commands between two plans
        self._before_this_epoch = WorkerCounters()

    # --- an epoch ----------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> Epoch:
        return self._epoch

    def begin_epoch(self, epoch: Epoch, on_done: Callable[[Done], None], links: StageLinks | None = None) -> None:
        """Forgets all jobs and tables, once the copies under way have ended. No plan may be running. `links` are there
        in a group of several ranks.

        `on_done` gets every Done, from a thread of the copier and always after `apply` has returned the Applied.
        """
        assert epoch > self._epoch, "a later epoch has a greater number"
        self._copier.drain()
        self.stage_pass.begin_epoch(links)
        self._offloaded_blocks += self._tables.offloaded_blocks
        self._uploaded_blocks += self._tables.uploaded_blocks
        self._epoch, self._last_plan = epoch, -1
        self._tables = self._new_tables(on_done)
        self.guides.clear()
        self._ledger = OutputLedger()
        self._coming_passes = self._new_passes()
        self._released = deque()
        self._before_this_epoch = self.counters()

    def give_up(self) -> None:
        """Abandons the iteration under way, if any, between two of its layers. Nothing can be run afterwards."""
        self._given_up.value = 1

    def close(self) -> None:
        """Ends the threads of copier and guides."""
        self._copier.close()
        self.guides.close()

    def _new_tables(self, on_done: Callable[[Done], None]) -> KvTables:
        pools = self.pools
        return KvTables(self._copier, self.block_size, pools.device_block_count, pools.host_block_count, on_done)

    def _new_passes(self) -> ComingPasses:
        return ComingPasses(self.model.config.vocabulary_size)

    # --- for the thread that talks to the KV manager -----------------------------------------------------------------

    def apply(self, command: KvToWorker) -> Applied:
        """Applies a command at once, even while an iteration runs. Raises ProtocolError."""
        applied = self._tables.apply(command)
        if isinstance(command, ReleaseBlocks):
            self._released.append(command.job_id)
            self.guides.forget(command.job_id)
            self._coming_passes.forget(command.job_id)
        return applied

    def prepare_guides(self, plan: Plan) -> None:
        """Begins to compile the guides of the jobs that a plan starts, while earlier plans run."""
        for entry, guide in guided_starts(plan):
            self.guides.prepare(entry.job_id, guide, output_of(entry))

    def expect(self, step: Step) -> None:
        """Asks for what the step will need of other ranks, while earlier ones run. In the order of the steps, before
        each is begun.
        """
        for row_count in self._coming_passes.rows_of(step):
            self.stage_pass.expect(row_count)

    # --- for the stepping thread -------------------------------------------------------------------------------------

    def prepare_thread(self) -> None:
        """Sets what torch keeps per thread. Called once, by the thread that will run plans."""
        torch.set_flush_denormal(True)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def run(self, plan: Plan) -> WorkerResult:
        """An iteration of a group of one rank: decides, steps, and returns the result. Raises like `step`."""
        return self.run_first([plan])[0]

    def run_first(self, plans: Sequence[Plan], next_plan: NextPlan = _nothing) -> list[WorkerResult]:
        """The iteration of the first plan, as `run`, and of those behind it that are computed in the same call: in
        their order, a result for each. `next_plan` tells what will probably be run next, once the first is launched.
        """
        self._forget_released()
        unready = self._unready(plans[0])
        step = self._ledger.step_of(plans[0], unready)
        parts = self._parts_of(step)
        run = compiled_run(step, parts, plans[1:], self.block_size) if self._decoder else None
        if run is None:
            return [self._result(plans[0], self._compute(parts, next_plan), unready)]
        first, *others = self._compute_run(run)
        results = [self._result(plans[0], first, unready)]
        for plan, outcome in zip(run.plans[1:], others, strict=False):
            self._ledger.step_of(plan)
            results.append(self._result(plan, outcome))
        return results

    def _result(self, plan: Plan, outcome: StepOutcome, unready: tuple[JobId, ...] = ()) -> WorkerResult:
        self._ledger.take(plan.plan_number, outcome.tokens, outcome.cut_job_ids)
        self._last_plan = plan.plan_number
        cut_job_ids = outcome.cut_job_ids + unready
        result = IterationResult(plan.epoch, plan.plan_number, outcome.tokens, cut_job_ids, outcome.compute_s)
        counters = self.counters().since(self._before_this_epoch)
        return WorkerResult(result, outcome.logprobs, counters, outcome.failures, outcome.scored)

    def _unready(self, plan: Plan) -> tuple[JobId, ...]:
        """The jobs that the plan starts before their guides are ready. If it has no others, it waits a little."""
        starting = [entry.job_id for entry, _ in guided_starts(plan)]
        if not starting:
            return ()
        self.prepare_guides(plan)
        if len(starting) == len(plan.entries):
            self.guides.wait_any(starting, GUIDE_WAIT_S)
        return tuple(job_id for job_id in starting if not self.guides.is_ready(job_id))

    def step(self, step: Step) -> StepOutcome:
        """This rank's part of an iteration. Raises ProtocolError, having computed nothing, for a plan that can't be
        right, PrefillCut when the iteration was given up, and RuntimeError when another rank did not come in time.
        """
        return self._compute(self._parts_of(step))

    def _parts_of(self, step: Step) -> list[BatchPart]:
        plan = step.plan
        if plan.epoch != self._epoch or plan.plan_number <= self._last_plan:
            raise ProtocolError(
                f"plan {plan.plan_number} of epoch {plan.epoch} comes after {self._last_plan} of {self._epoch}"
            )
        self._last_plan = plan.plan_number
        parts = checked_parts(
            step,
            self._tables,
            self.block_size,
            self.model.config.vocabulary_size,
            self.guides,
            samples=self.stage_pass.rank.samples,
        )
        if self.stage_pass.rank.layout.rank_count > 1 and any(part.entry.cut_after_s is not None for part in parts):
            raise ProtocolError(f"plan {plan.plan_number}: one rank of several can't give up a prefill")
        return parts

    def _compute(self, parts: Sequence[BatchPart], next_plan: NextPlan = _nothing) -> StepOutcome:
        asked_s = time.perf_counter()
        self._await_uploads(parts)

        started_s, waited_s = time.perf_counter(), self.stage_pass.waited_s
        together = computed_together(parts)
        computed = [(together, self._forward(together))] if together else []
        cut: list[JobId] = []
        scored: list[ScoredPrompt] = []
        for part in parts:
            if not part.runs_alone:
                continue
            try:
                computed.append(([part], self._forward_alone(part, scored)))
            except PrefillCut:
                if part.entry.cut_after_s is None or self._given_up.value:
                    raise
                part.place.tables.valid_tokens = part.entry.from_token
                cut.append(part.entry.job_id)
        if self._layouts.looks_ahead and (plan := next_plan()) is not None:
            self._layouts.make(plan, self._tables, parts)
        tokens, logprobs, failures = self._sample(computed)
        passed_s = time.perf_counter() - started_s - (self.stage_pass.waited_s - waited_s)
        stall_s = self._copier.take_stall_s()
        # A stall begins with the wait: what did not pass before the start is, on CUDA, within the time since.
        compute_s = max(passed_s - max(stall_s - (started_s - asked_s), 0.0), 0.0)

        self.stage_pass.took(sum(part.row_count for part in parts), compute_s)
        self._busy_s += compute_s
        self._stall_s += stall_s
        return StepOutcome(tokens, logprobs, tuple(cut), compute_s, stall_s, failures, tuple(scored))

    def _compute_run(self, run: CompiledRun) -> list[StepOutcome]:
        """As `_compute`, for each plan of the run."""
        assert self._decoder is not None, "only the compiled decoder takes runs"
        self._await_uploads(run.parts)
        computed = run.compute(self._decoder, self.cache, self._goes_on)
        self._copier.launched()
        stall_s = self._copier.take_stall_s()
        self._busy_s += sum(each.compute_s for each in computed)
        self._stall_s += stall_s
        return [StepOutcome(each.tokens, {}, (), each.compute_s, stall_s) for each in computed]

    def _await_uploads(self, parts: Sequence[BatchPart]) -> None:
        self._copier.wait([part.place.upload for part in parts if part.place.upload is not None])  # [wait-own-upload]

    def has_unfinished_jobs(self) -> bool:
        """Whether some job here can still make tokens, so that a pause now delays it."""
        self._forget_released()
        return self._ledger.has_unfinished_jobs()

    def _forget_released(self) -> None:
        released, ledger = self._released, self._ledger
        while released:
            ledger.forget(released.popleft())

    def add_plan_wait(self, seconds: float) -> None:
        """Counts time without a plan at hand."""
        self._plan_wait_s += seconds

    def counters(self) -> WorkerCounters:
        """Totals since the engine was made, over all epochs."""
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

    # --- computing ---------------------------------------------------------------------------------------------------

    def _forward(self, parts: Sequence[BatchPart], keep_going: Callable[[], bool] | None = None) -> Tensor | None:
        """Logits of the parts that sample, None on a rank that does not. `parts` has those of one row first."""
        batch = self._layouts.of([part.sequence() for part in parts])
        token_ids = [token_id for part in parts for token_id in part.token_ids]
        logits_SV = self.stage_pass.run(token_ids, self.cache, batch, keep_going or self._goes_on)
        self._copier.launched()
        for part in parts:
            part.place.tables.valid_tokens = part.entry.to_token
        return logits_SV

    def _forward_alone(self, part: BatchPart, scored: list[ScoredPrompt]) -> Tensor | None:
        """The logits of the part if it samples, from passes of its own; adds to `scored` what they tell of its prompt.
        Raises PrefillCut, `scored` as it was, if it was given up after its limit.
        """
        limit_s = part.entry.cut_after_s
        goes_on = None if limit_s is None else self._limited(limit_s)
        found: list[ScoredPrompt] = []
        logits_SV: Tensor | None = None
        for piece in passes_of(part, self.model.config.vocabulary_size):
            logits_SV = self._forward([piece], goes_on)
            rows = piece.scored_rows
            if rows and logits_SV is not None:
                with torch.inference_mode():
                    found.append(scored_prompt(piece, logits_SV[:rows]))
                    logits_SV = logits_SV[rows:]
        scored += found
        return logits_SV

    def _limited(self, limit_s: float) -> Callable[[], bool]:
        if self._device.type == "cpu":
            return StepLimit(self._given_up, limit_s)
        in_time = PrefillClock(limit_s, self._mark)
        return lambda: self._goes_on() and in_time()

    def _mark(self) -> Mark:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _sample(
        self, computed: Sequence[tuple[Sequence[BatchPart], Tensor | None]]
    ) -> tuple[tuple[SampledToken, ...], dict[JobId, TokenLogprob], dict[JobId, str]]:
        sampled = [part for parts, _ in computed for part in parts if part.samples]
        found = [logits_SV for _, logits_SV in computed if logits_SV is not None]
        if not sampled or not found:
            for part in sampled:
                part.progress.expect_output()
            self._await_device()
            return (), {}, {}
        logits_SV = found[0] if len(found) == 1 else torch.cat(found)
        may_overflow = self.model.dtype == torch.float16
        with torch.inference_mode():
            finite_S = logits_SV.isfinite().all(-1) if may_overflow else None
            samples = sample(logits_SV, [part.progress.row() for part in sampled], self._draw_rows)
        if finite_S is not None:
            log_overflows(part for part, finite in zip(sampled, finite_S.tolist(), strict=True) if not finite)
        tokens = tuple(
            SampledToken(part.entry.job_id, token_id, part.progress.add_output(token_id))
            for part, token_id in zip(sampled, samples.token_ids, strict=True)
        )
        logprobs = {sampled[number].entry.job_id: logprob for number, logprob in samples.logprobs.items()}
        return tokens, logprobs, failures_of(sampled)

    def _await_device(self) -> None:
        """Waits for the compute, which otherwise only the sampled tokens do: an iteration's time includes it."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
