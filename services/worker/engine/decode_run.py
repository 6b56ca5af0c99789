"""Several iterations in one call of the compiled decoder.

Between two calls lie layout, sampling and accounts, which take as long as some layers of a small model. While plans are
made ahead (services.scheduler.machine.plan_lead), most of them are decodes of the jobs of the plan before, or of fewer.
Where all of these take the likeliest token, nothing is to be decided between their iterations, and one call computes
them. The tokens are those that the iterations give one by one.

A run ends early with the iteration that samples a job's stop token: that job's later entries are to be passed over.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from services.domain.ids import JobId
from services.domain.iteration import Plan
from services.domain.protocol import SampledToken
from services.worker.engine.batch_parts import BatchPart
from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.model.batch import BatchLayout, PagedKv
from services.worker.step import Step


class DecodedPlan(NamedTuple):
    """What an iteration of a run gave, and how long it took."""

    plan: Plan
    tokens: tuple[SampledToken, ...]
    compute_s: float


class DecodeRun(NamedTuple):
    """At least two plans. `parts` are those of the first one, by how long they stay; of them the first `rows_left[i]`
    are in `plans[i]`, a token further in each.
    """

    plans: Sequence[Plan]
    parts: Sequence[BatchPart]
    rows_left: Sequence[int]

    def compute(self, decoder: NativeDecoder, cache: PagedKv, keep_going: Callable[[], bool]) -> list[DecodedPlan]:
        """Computes the plans, in order, up to one that ends a job; the jobs' progress and tables go along. Raises
        PrefillCut if it was given up.
        """
        parts, ahead = self.parts, len(self.plans) - 1
        batch = BatchLayout.of([part.sequence() for part in parts], cache.block_size, ahead_tokens=ahead)
        last_tokens = frozenset[int]().union(*(part.progress.sampler.stop_tokens for part in parts))
        began_ns = time.monotonic_ns()
        decoded: list[DecodedPlan] = []
        fed = [part.token_ids[0] for part in parts]
        for plan, (token_ids, ended_ns) in zip(
            self.plans, decoder.decode(fed, cache, batch, self.rows_left, last_tokens, keep_going), strict=False
        ):
            tokens = {}
            for part, token_id in zip(parts, token_ids, strict=False):
                job_id = part.entry.job_id
                tokens[job_id] = SampledToken(job_id, token_id, part.progress.add_output(token_id))
                part.place.tables.valid_tokens += 1
            in_order = tuple(tokens[entry.job_id] for entry in plan.entries if entry.job_id in tokens)
            decoded.append(DecodedPlan(plan, in_order, (ended_ns - began_ns) / 1e9))
            began_ns = ended_ns
        return decoded


def decode_run(step: Step, parts: Sequence[BatchPart], behind: Sequence[Plan], block_size: int) -> DecodeRun | None:
    """The step's plan and those of the plans behind it that can be computed with it; None if the next one can't.

    `parts` are the step's, checked. A plan is not taken in unless it would be found right, too.
    """
    if not parts or not all(_takes_likeliest(part) for part in parts):
        return None
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
    if len(plans) == 1:
        return None
    in_order = sorted(parts, key=lambda part: -stays[part.entry.job_id])
    rows_left = [sum(count > number for count in stays.values()) for number in range(len(plans))]
    return DecodeRun(plans, in_order, rows_left)


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


def _takes_likeliest(part: BatchPart) -> bool:
    """Whether the part is a decode whose token, and those after it, are the likeliest ones."""
    entry, progress = part.entry, part.progress
    if entry.from_token == 0 or part.row_count > 1 or part.runs_alone or not part.samples:
        return False
    sampler = progress.sampler
    is_long_enough = progress.known_tokens - progress.prompt_tokens >= sampler.sampling.min_tokens
    return sampler.takes_likeliest and progress.guide is None and (is_long_enough or not sampler.stop_tokens)
