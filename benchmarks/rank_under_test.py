"""A rank's part in a run of a whole group without services. Runs in the rank's process (rank_process.py).

Rank 0 leads: it plans (saturated_lanes.py), decides, and tells each of the others its steps over a connection, as a
worker's leader does; it computes on a thread of its own meanwhile. A single rank plans and computes in turn.
"""

import argparse
import itertools
import pickle
import queue
import threading
import time
from collections import deque
from datetime import timedelta
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from benchmarks.offline_engine import offline_jobs
from benchmarks.saturated_lanes import LanePlan, SaturatedLanes
from services.domain.ids import Epoch
from services.domain.protocol import KvToWorker
from services.worker.engine.engine import Engine
from services.worker.kernels.kernel_choice import computes_natively, with_kernels
from services.worker.kv.pools import BlockShape, make_pools
from services.worker.model.config_json import read_model_config
from services.worker.parallel.layout import GroupRank, Layout, check_layout, sampling_rank, split_layers
from services.worker.parallel.process_groups import leave, rendezvous
from services.worker.parallel.share_weights import filled_rank
from services.worker.parallel.stage_links import StageLinks, Sums
from services.worker.profiling.stage_costs import measured_stage_costs
from services.worker.step import OutputLedger, Step, StepOutcome
from services.workloads.workload import read_trace

BLOCK_SIZE = 16
DEVICE_TOKENS = 32_768
WARM_UP_S = 8.0
"""All jobs begin at once, with their prompts; they end one by one, and from then on prompts come evenly."""
LIMIT_S = 120.0
EPOCH = Epoch(1)

Figures = dict[str, Any]
Told = tuple[tuple[KvToWorker, ...], Step]


class TimedSums:
    """Sums, with the time that they take and the number made."""

    def __init__(self, sums: Sums) -> None:
        self._sums = sums
        self.seconds, self.count = 0.0, 0

    def add_up(self, part: Tensor) -> None:
        started_s = time.perf_counter()
        self._sums.add_up(part)
        self.seconds += time.perf_counter() - started_s
        self.count += 1

    def close(self) -> None:
        self._sums.close()


class RankUnderTest:
    """A rank with its share of the model. `spans` are the plan, start and end of each step's compute."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.set_num_threads(arguments.threads)
        self.rank = GroupRank(arguments.rank, Layout(arguments.tp, arguments.pp))
        limit = timedelta(seconds=LIMIT_S)
        self.store = TCPStore(
            "127.0.0.1", arguments.port, is_master=self.rank.leads, wait_for_workers=False, timeout=limit
        )
        whole = read_model_config(arguments.model)
        self.natively = computes_natively(arguments.kernels, whole, torch.device("cpu"), torch.bfloat16)
        self.stages = self._stages(arguments)
        filled = filled_rank(arguments.model, whole, self.rank, self.stages, "cpu", torch.bfloat16)
        model = with_kernels(filled, self.natively)
        config = model.config
        shape = BlockShape(config.layer_count, BLOCK_SIZE, config.kv_head_count, config.head_dim, torch.bfloat16)
        pools = make_pools(shape, DEVICE_TOKENS // BLOCK_SIZE, 1, torch.device("cpu"))
        self.engine = Engine(model, pools, rank=self.rank)
        self.sums: TimedSums | None = None
        self.engine.begin_epoch(EPOCH, lambda done: None, self._links(arguments))
        self.spans: list[tuple[int, float, float]] = []

    def _stages(self, arguments: argparse.Namespace) -> tuple[range, ...]:
        """The leader measures what layers cost, and tells."""
        layout = self.rank.layout
        if self.rank.leads:
            config = read_model_config(arguments.model)
            check_layout(config, layout)
            costs = measured_stage_costs(
                config, layout.tp, arguments.max_batch, "cpu", torch.bfloat16, natively=self.natively
            )
            self.tell("stages", split_layers(costs, layout.pp))
        stages: tuple[range, ...] = pickle.loads(self.store.get("stages"))
        return stages

    def _links(self, arguments: argparse.Namespace) -> StageLinks | None:
        if self.rank.layout.rank_count == 1:
            return None
        links = rendezvous(
            self.store, self.rank, EPOCH, torch.device("cpu"), LIMIT_S, LIMIT_S, not arguments.no_shared_memory
        )
        if links.sums is not None:
            links.sums = self.sums = TimedSums(links.sums)
        return links

    def tell(self, key: str, value: object) -> None:
        """Writes a value into the store."""
        self.store.set(key, pickle.dumps(value))  # type: ignore[arg-type]  # the stub knows strings only

    def hear(self, told: Told) -> Told:
        """A step will be run."""
        self.engine.expect(told[1])
        return told

    def run(self, told: Told) -> StepOutcome:
        commands, step = told
        for command in commands:
            self.engine.apply(command)
        outcome = self.engine.step(step)
        ended_s = time.perf_counter()
        self.spans.append((step.plan.plan_number, ended_s - outcome.compute_s, ended_s))
        return outcome

    def follow(self) -> None:
        """Runs what the leader tells, until it tells the end."""
        steps: queue.SimpleQueue[Told | None] = queue.SimpleQueue()
        with Client(pickle.loads(self.store.get("leader"))) as leader:
            leader.send(self.rank.number)

            def read() -> None:
                while (told := leader.recv()) is not None:
                    steps.put(self.hear(told))
                steps.put(None)

            reading = threading.Thread(target=read)
            reading.start()
            while (told := steps.get()) is not None:
                outcome = self.run(told)
                if self.rank.samples:
                    leader.send(outcome)
            reading.join()

    def figures(self) -> Figures:
        sums = None if self.sums is None else {"seconds": round(self.sums.seconds, 4), "count": self.sums.count}
        spans = [(plan, round(start_s, 5), round(end_s, 5)) for plan, start_s, end_s in self.spans]
        layers = self.stages[self.rank.stage]
        return {"rank": self.rank.number, "layers": len(layers), "sums": sums, "spans": spans}


class Leader:
    """Rank 0: plans, decides, tells, and computes its own part."""

    def __init__(self, rank: RankUnderTest, lanes: SaturatedLanes, lane_count: int) -> None:
        self._rank = rank
        self._lanes = lanes
        self._lane_count = lane_count
        self._ledger = OutputLedger()
        self._own_work: queue.SimpleQueue[Told | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[StepOutcome] = queue.SimpleQueue()
        self._others: dict[int, Connection] = {}
        self.alone = rank.rank.layout.rank_count == 1

    def _meet(self) -> None:
        with Listener(("127.0.0.1", 0)) as listener:
            self._rank.tell("leader", listener.address)
            for _ in range(self._rank.rank.layout.rank_count - 1):
                other = listener.accept()
                self._others[other.recv()] = other

    def lead(self, seconds: float) -> Figures:
        """When the counted time began and ended, and the tokens computed by the plans that ended in it."""
        stepping = threading.Thread(target=self._step)
        if not self.alone:
            self._meet()
            stepping.start()
        under_way: deque[LanePlan] = deque()
        turns = itertools.cycle(range(self._lane_count))
        output_tokens, prompt_tokens, from_s = 0, 0, 0.0
        counted_from_s = time.perf_counter() + WARM_UP_S
        while True:
            while len(under_way) < self._lane_count:
                under_way.append(self._start(next(turns)))
            lane_plan = under_way.popleft()
            outcome = self._outcome()
            now_s = time.perf_counter()
            self._ledger.take(lane_plan.plan.plan_number, outcome.tokens)
            self._lanes.take(lane_plan.lane, outcome.tokens)
            if from_s:
                output_tokens += len(outcome.tokens)
                prompt_tokens += sum(len(entry.token_ids) for entry in lane_plan.plan.entries)
                if now_s - from_s >= seconds:
                    break
            elif now_s >= counted_from_s:
                from_s = now_s
        for _ in under_way:
            self._outcome()
        if not self.alone:
            for other in self._others.values():
                other.send(None)
            self._own_work.put(None)
            stepping.join()
        return {"from_s": from_s, "to_s": now_s, "output_tokens": output_tokens, "prompt_tokens": prompt_tokens}

    def _start(self, lane: int) -> LanePlan:
        lane_plan = self._lanes.next_plan(lane, EPOCH)
        told = (lane_plan.commands, self._ledger.step_of(lane_plan.plan))
        if self.alone:
            self._outcomes.put(self._rank.run(told))
        else:
            self._own_work.put(told)
            for other in self._others.values():
                other.send(told)
        return lane_plan

    def _outcome(self) -> StepOutcome:
        """Of the oldest step under way."""
        if self._rank.rank.samples:
            return self._outcomes.get()
        outcome: StepOutcome = self._others[sampling_rank(self._rank.rank.layout)].recv()
        return outcome

    def _step(self) -> None:
        self._rank.engine.prepare_thread()
        while (told := self._own_work.get()) is not None:
            outcome = self._rank.run(told)
            if self._rank.rank.samples:
                self._outcomes.put(outcome)


def run_rank(arguments: argparse.Namespace) -> Figures:
    """Runs the rank to the end of the measurement. Returns its figures."""
    rank = RankUnderTest(arguments)
    rank.engine.prepare_thread()
    figures: Figures = {}
    if rank.rank.leads:
        with arguments.trace.open(encoding="utf-8") as lines:
            jobs = offline_jobs(read_trace(lines), rank.engine.model.config.vocabulary_size)
        lane_count = 1 if rank.rank.layout.rank_count == 1 else arguments.pp + 1
        lanes = SaturatedLanes(
            itertools.cycle(jobs),
            lane_count,
            arguments.max_batch,
            arguments.max_batch_tokens,
            rank.engine.pools.device_block_count,
            BLOCK_SIZE,
        )
        figures = {**Leader(rank, lanes, lane_count).lead(arguments.seconds), "lanes": lane_count}
    else:
        rank.follow()
    rank.engine.close()
    leave()
    return {**figures, **rank.figures()}
