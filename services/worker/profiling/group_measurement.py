"""Measures the cost model through a whole group of ranks.

Theory of operation
-------------------
The leader decides what is run next, as a worker of one rank does, and writes it into the epoch's store; every rank runs
its part and writes down how long it computed. An iteration's time is the sum of its stages' times, each that of its
slowest rank, as `duration_s` of a served iteration is. It is not how long the iteration was under way: in the stages
that it has left or not reached, others run.

Beside the seconds the stages' shares in them are kept, of prefills and of decodes, each the median of all runs; and
what hidden states need to the next stage, by what the first two stages send each other: for one row, and for many.

Blocks are taken from those that all ranks have. The link between the pools is the leader's.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Protocol

import torch

from services.domain.job_sampling import JobSampling
from services.domain.pipeline import Pipeline
from services.runtime.profile_file import Profile, Source
from services.worker.kv.pools import KvPools
from services.worker.model.batch import BatchLayout, PagedKv, SequenceRows
from services.worker.model.served_decoder import ServedDecoder
from services.worker.parallel.layout import Layout
from services.worker.parallel.stage_links import StageLinks
from services.worker.parallel.stage_pass import StagePass
from services.worker.profiling.cost_measurement import Measurer, MeasuringLimits, kept_or, profile_by
from services.worker.profiling.link_speed import measure_link
from services.worker.sampling.sampler import JobSampler, SampleRow, sample

_END = b"end"
BOUNCES = 9
BOUNCED_ROWS = 128


def measure_group(
    stage_pass: StagePass,
    pools: KvPools,
    limits: MeasuringLimits,
    source: Source,
    links: StageLinks,
    state_dir: Path | None,
) -> Profile:
    """The group's profile: kept in `state_dir` by an earlier leader of the same kind of group, or measured with the
    ranks that follow (`follow_measurements`), then kept. Called by the leader; `source` names the layout.

    Raises RuntimeError if a rank does not come.
    """
    stage_run = StageRun(stage_pass, pools, links)
    shared_blocks = min(int(value) for value in stage_run.said_by_all("blocks", pools.device_block_count))
    block_bytes = sum(int(value) for value in stage_run.said_by_all("block_bytes", pools.shape.block_bytes))
    block_size, layout = pools.shape.block_size, stage_run.layout
    longest = min(limits.max_model_len, shared_blocks * block_size)
    measurer = GroupMeasurer(stage_run, pools, longest, shared_blocks)

    def measured() -> Profile:
        profile = profile_by(measurer, longest, limits.max_batch, source)
        own_link = measure_link(pools)
        return replace(
            profile,
            kv_bytes_per_token=block_bytes // block_size,
            device_kv_tokens=shared_blocks * block_size,
            host_kv_tokens=pools.host_block_count * block_size,
            link=replace(own_link, bytes_per_s=own_link.bytes_per_s * layout.tp),
            stages=layout.pp,
            tensor_parallel=layout.tp,
            max_model_len=limits.max_model_len,
            pipeline=measurer.pipeline(),
        )

    try:
        return kept_or(state_dir, source, longest, limits.max_batch, measured)
    finally:
        measurer.end()


def follow_measurements(stage_pass: StagePass, pools: KvPools, links: StageLinks) -> None:
    """A rank's part of `measure_group`; returns at its end. Raises RuntimeError if another rank does not come."""
    stage_run = StageRun(stage_pass, pools, links)
    stage_run.say("blocks", pools.device_block_count)
    stage_run.say("block_bytes", pools.shape.block_bytes)
    number = 0
    while (told := links.store.get(f"run/{number}")) != _END:
        run = json.loads(told)
        if isinstance(run, int):
            stage_run.bounced_s(run)
        else:
            stage_run.say(f"run/{number}", stage_run([SequenceRows(*sequence) for sequence in run]))
        number += 1
    stage_run.clean()


class StageRun:
    """Runs this rank's part of iterations on the blocks of an idle pool, and exchanges figures with the other ranks."""

    def __init__(self, stage_pass: StagePass, pools: KvPools, links: StageLinks) -> None:
        stage_pass.begin_epoch(links)
        self._pass = stage_pass
        self._pools = pools
        self._links = links
        self._cache = PagedKv(pools.device)
        self._sampler = JobSampler(JobSampling(max_tokens=1, seed=0, temperature=0.0))
        self._used_blocks = 0

    @property
    def layout(self) -> Layout:
        return self._pass.rank.layout

    @property
    def model(self) -> ServedDecoder:
        return self._pass.model

    def __call__(self, sequences: Sequence[SequenceRows]) -> float:
        """Seconds that this rank computed, without waiting for other stages."""
        self._used_blocks = max(self._used_blocks, *(max(sequence.blocks) + 1 for sequence in sequences))
        started_s, waited_s = time.perf_counter(), self._pass.waited_s
        batch = BatchLayout.of(sequences, self._pools.shape.block_size, self._pools.device.device)
        vocabulary_size = self._pass.model.config.vocabulary_size
        logits_SV = self._pass.run([row % vocabulary_size for row in range(batch.row_count)], self._cache, batch)
        if logits_SV is not None:
            with torch.inference_mode():
                sample(logits_SV, [SampleRow(self._sampler, 0)] * len(sequences))
        elif self._pools.device.is_cuda:
            torch.cuda.current_stream(self._pools.device.device).synchronize()
        seconds = time.perf_counter() - started_s - (self._pass.waited_s - waited_s)
        self._pass.took(batch.row_count, seconds)
        return seconds

    def bounced_s(self, rows: int) -> float:
        """Seconds that hidden states of so many rows take to the next stage; they mean nothing."""
        shape = (rows, self.model.config.hidden_size)
        return self._links.bounced_s(shape, self.model.hidden_dtype, self._pools.device.device)

    def tell(self, key: str, told: bytes) -> None:
        """What the leader tells all other ranks."""
        self._links.store.set(key, told)  # type: ignore[arg-type]  # the stub knows strings only

    def say(self, key: str, value: float) -> None:
        """This rank's figure."""
        self._links.store.set(f"{key}/{self._pass.rank.number}", repr(value))

    def said_by_all(self, key: str, own: float) -> list[float]:
        """All ranks' figures, the leader's own first."""
        others = range(1, self.layout.rank_count)
        return [own, *(float(self._links.store.get(f"{key}/{number}")) for number in others)]

    def clean(self) -> None:
        """Zeroes the blocks that were used."""
        self._pools.device[: self._used_blocks].zero_()


class RunsStages(Protocol):
    """What the leader's measurer needs of its own rank, and through it of the others."""

    @property
    def layout(self) -> Layout: ...
    @property
    def model(self) -> ServedDecoder: ...
    def __call__(self, sequences: Sequence[SequenceRows]) -> float: ...
    def bounced_s(self, rows: int) -> float: ...
    def tell(self, key: str, told: bytes) -> None: ...
    def said_by_all(self, key: str, own: float) -> list[float]: ...
    def clean(self) -> None: ...


class GroupMeasurer(Measurer):
    """Measures as the leader of a group: every run is one of all ranks."""

    def __init__(self, stage_run: RunsStages, pools: KvPools, longest: int, block_count: int) -> None:
        super().__init__(stage_run.model, pools, longest)
        self._block_count = block_count
        self._stage_run = stage_run
        self._runs = 0
        self._shares: dict[bool, list[list[float]]] = {True: [], False: []}
        """Of each run that only prefilled (True) or only decoded, the stages' shares in its seconds."""

    def warm_up(self) -> None:
        """As for one rank; its runs tell nothing of the stages."""
        super().warm_up()
        for shares in self._shares.values():
            shares.clear()

    def pipeline(self) -> Pipeline | None:
        """How the runs so far were shared out over the stages; None for a single stage."""
        if self._stage_run.layout.pp == 1:
            return None
        one_s, many_s = (median(self._bounced_s(rows) for _ in range(BOUNCES)) for rows in (1, BOUNCED_ROWS))
        row_s = max(0.0, many_s - one_s) / (BOUNCED_ROWS - 1)
        return Pipeline(_typical(self._shares[True]), _typical(self._shares[False]), one_s, row_s)

    def _bounced_s(self, rows: int) -> float:
        self._stage_run.tell(f"run/{self._runs}", json.dumps(rows).encode())
        self._runs += 1
        return self._stage_run.bounced_s(rows)

    def end(self) -> None:
        """Lets the other ranks return."""
        self._stage_run.tell(f"run/{self._runs}", _END)
        self._stage_run.clean()

    def run_s(self, sequences: Sequence[SequenceRows]) -> float:
        key, layout = f"run/{self._runs}", self._stage_run.layout
        self._runs += 1
        self._stage_run.tell(key, json.dumps(sequences).encode())
        seconds = self._stage_run.said_by_all(key, self._stage_run(sequences))
        stages_s = [max(seconds[first : first + layout.tp]) for first in range(0, layout.rank_count, layout.tp)]
        total_s = sum(stages_s)
        prefills = {sequence.to_token - sequence.from_token > 1 for sequence in sequences}
        if len(prefills) == 1:
            self._shares[prefills.pop()].append([stage_s / total_s for stage_s in stages_s])
        return total_s


def _typical(runs: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The median share of each stage, all together 1."""
    shares = [median(stage) for stage in zip(*runs, strict=True)]
    return tuple(share / sum(shares) for share in shares)
