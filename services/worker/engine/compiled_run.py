"""Iterations whose tokens the compiled decoder chooses, in one call: one, or several.

Between two calls lie layout, sampling and accounts in Python, which take as long as some layers of a small model. Where
the tokens of all jobs of an iteration follow from its logits, likeliest or drawn, the compiled code chooses them.
While plans are made ahead (services.scheduler.machine.plan_lead), most of them are decodes of the jobs of the plan
before, or of fewer: then nothing is to be decided between iterations, and the compiled code goes on to the next one.
The tokens are those that the iterations give one by one.

A run ends early with the iteration that samples a job's stop token: that job's later entries are to be passed over.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from services.domain.ids import JobId
from services.domain.iteration import Plan
from services.domain.protocol import SampledToken
from services.worker.engine.batch_parts import BatchPart, computed_together
from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.model.batch import BatchLayout, PagedKv
from services.worker.sampling.choices import Choices
from services.worker.step import Step


class RunPlan(NamedTuple):
    """What an iteration of a run gave, and how long it took."""

    plan: Plan
    tokens: tuple[SampledToken, ...]
    compute_s: float


class CompiledRun(NamedTuple):
    """`parts` are those of the first plan. If there are several, all are decodes, by how long they stay: of them the
    first `rows_left[i]` are in `plans[i]`, a token further in each.
    """

    plans: Sequence[Plan]
    parts: Sequence[BatchPart]
    rows_left: Sequence[int]

    def compute(self, decoder: NativeDecoder, cache: PagedKv, keep_going: Callable[[], bool]) -> list[RunPlan]:
        """Computes the plans, in order, up to one that ends a job; the jobs' progress and tables go along. Raises
        PrefillCut if it was given up.
        """
        parts = self.parts
        began_ns = time.monotonic_ns()
        sequences, ahead_tokens = [part.sequence() for part in parts], len(self.plans) - 1
        batch = BatchLayout.of(sequences, cache.block_size, ahead_tokens=ahead_tokens)
        sampled = [part for part in parts if part.samples]
        last_tokens = frozenset[int]().union(*(part.progress.sampler.stop_tokens for part in sampled))
        choices: Choices | None = None
        if not all(part.progress.sampler.takes_likeliest for part in sampled):
            choices = Choices([part.progress.row() for part in sampled], len(self.plans))
        fed = [token_id for part in parts for token_id in part.token_ids]
        for part in parts:
            part.place.tables.valid_tokens = part.entry.to_token
        computed: list[RunPlan] = []
        for plan, (token_ids, ended_ns) in zip(
            self.plans,
            decoder.next_tokens(fed, cache, batch, self.rows_left, last_tokens, keep_going, choices),
            strict=False,
        ):
            tokens = {}
            for part, token_id in zip(sampled, token_ids, strict=False):
                job_id = part.entry.job_id
                tokens[job_id] = SampledToken(job_id, token_id, part.progress.add_output(token_id))
                if computed:
                    part.place.tables.valid_tokens += 1
            in_order = tuple(tokens[entry.job_id] for entry in plan.entries if entry.job_id in tokens)
            computed.append(RunPlan(plan, in_order, (ended_ns - began_ns) / 1e9))
            began_ns = ended_ns
        return computed


def compiled_run(step: Step, parts: Sequence[BatchPart], behind: Sequence[Plan], block_size: int) -> CompiledRun | None:
    """The step's plan and those of the plans behind it that can be computed with it; None if not even that one can,
    because a job has a guide, wants log probabilities, or may not end yet.

    `parts` are the step's, checked. A plan is not taken in unless it would be found right, too.
    """
    if not parts or not all(_is_plain(part) for part in parts):
        return None
    if not behind or not all(part.entry.from_token > 0 and part.row_count == 1 and part.samples for part in parts):
        sampled = sum(part.samples for part in parts)
        return CompiledRun([step.plan], computed_together(parts), [sampled])
    by_job = {part.entry.job_id: part for part in parts}
    stays = dict.fromkeys(by_job, 1)
    plans = [step.plan]
    for plan in behind:
        going = _going_on(plan, plans, step, by_job, block_size)
        if not going or any(stays[job_id] < len(plans) for job_id in going):
            break
        plans.append(plan)
        for job_id in going:
            stays[job_id] = len(plans)
    in_order = sorted(parts, key=lambda part: -stays[part.entry.job_id])
    rows_left = [sum(count > number for count in stays.values()) for number in range(len(plans))]
    return CompiledRun(plans, in_order, rows_left)


def _going_on(
    plan: Plan, before: Sequence[Plan], step: Step, by_job: dict[JobId, BatchPart], block_size: int
) -> list[JobId]:
    """The jobs of a plan if all that it does is to go on with jobs of the first one of those before it, else none."""
    if plan.epoch != step.plan.epoch or plan.plan_number <= before[-1].plan_number:
        return []
    going: list[JobId] = []
    for entry in plan.entries:
        part = by_job.get(entry.job_id)
        if part is None:
            if entry.job_id in step.passed_over_job_ids and entry.from_token > 0:
                continue
            return []
        from_token = part.entry.from_token + len(before)
        if (entry.from_token, entry.to_token) != (from_token, from_token + 1) or entry.token_ids:
            return []
        if entry.to_token > len(part.place.blocks) * block_size or entry.cut_after_s is not None:
            return []
        going.append(entry.job_id)
    return going


def _is_plain(part: BatchPart) -> bool:
    """Whether the token after the part, if it samples one, and those after that follow from the logits and from the
    tokens before, and nothing else is told.
    """
    progress = part.progress
    sampler = progress.sampler
    if part.runs_alone or progress.guide is not None or sampler.sampling.logprobs is not None:
        return False
    is_long_enough = progress.known_tokens - progress.prompt_tokens >= sampler.sampling.min_tokens
    return is_long_enough or not sampler.stop_tokens
