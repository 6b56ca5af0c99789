"""Groups of real processes, one a rank, moved by a leader that is nothing but its decisions.

The processes are forked from a server that has imported torch, so that one more costs little.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from services.domain.errors import ProtocolError
from services.domain.ids import CommandNumber, Epoch
from services.domain.iteration import Plan, WorkerCounters, WorkerResult
from services.domain.protocol import Applied, Done, IterationResult, KvToWorker
from services.runtime.profile_file import Profile, Source
from services.worker.engine.engine import Engine
from services.worker.kernels.kernel_choice import with_kernels
from services.worker.kv.pools import BlockShape, make_pools
from services.worker.model.config_json import read_model_config
from services.worker.parallel.layout import GroupRank, Layout, StageCosts, split_layers
from services.worker.parallel.process_groups import leave, rendezvous
from services.worker.parallel.share_weights import filled_rank
from services.worker.parallel.stage_links import StageLinks
from services.worker.profiling.cost_measurement import MeasuringLimits
from services.worker.profiling.group_measurement import follow_measurements, measure_group
from services.worker.sampling.guide_states import GuideStates
from services.worker.step import OutputLedger, Step, StepOutcome, guided_starts
from tests.builders.forked_modules import FORKED

LIMIT_S = 60.0
BLOCK_SIZE = 4
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class BeginEpoch:
    """A new epoch, with the limit of every wait in it, and whether ranks may sum in shared memory."""

    epoch: Epoch
    wait_limit_s: float
    sums_in_memory: bool


@dataclass(frozen=True)
class Measure:
    """Measure the cost model together in an epoch of its own; the leader keeps it in `state_dir`."""

    begin: BeginEpoch
    state_dir: Path


@dataclass(frozen=True)
class ProcessFacts:
    """What a process is started with."""

    folder: Path
    layout: Layout
    number: int
    port: int
    device_blocks: int
    host_blocks: int
    natively: bool
    dtype: torch.dtype


class RankProcess:
    """Runs in the process: commands take effect on arrival, steps run in order."""

    def __init__(self, connection: Connection, facts: ProcessFacts) -> None:
        torch.set_num_threads(1)
        self.connection, self.facts = connection, facts
        self.rank = GroupRank(facts.number, facts.layout)
        whole = read_model_config(facts.folder)
        stages = split_layers(StageCosts((1.0,) * whole.layer_count, 0.0, 0.0), facts.layout.pp)
        filled = filled_rank(facts.folder, whole, self.rank, stages, _CPU, facts.dtype)
        model = with_kernels(filled, facts.natively)
        shape = BlockShape(
            model.config.layer_count, BLOCK_SIZE, model.config.kv_head_count, model.config.head_dim, facts.dtype
        )
        self.engine = Engine(model, make_pools(shape, facts.device_blocks, facts.host_blocks, _CPU), rank=self.rank)
        self.store = TCPStore("127.0.0.1", facts.port, timeout=timedelta(seconds=LIMIT_S))
        self.steps: queue.SimpleQueue[BeginEpoch | Measure | Step | None] = queue.SimpleQueue()
        self.sending = threading.Lock()

    def send(self, message: Any) -> None:
        with self.sending:
            self.connection.send(message)

    def read(self) -> None:
        while (message := self.connection.recv()) is not None:
            if isinstance(message, Step):
                self.engine.expect(message)
            if isinstance(message, (BeginEpoch, Measure, Step)):
                self.steps.put(message)
            else:
                self.engine.apply(message)
        self.steps.put(None)

    def run(self) -> None:
        self.engine.prepare_thread()
        threading.Thread(target=self.read, daemon=True).start()
        while (message := self.steps.get()) is not None:
            try:
                self.send(self.handle(message))
            except (RuntimeError, ProtocolError) as error:
                self.send(error)
        self.engine.check()
        self.engine.close()
        leave()

    def handle(self, message: BeginEpoch | Measure | Step) -> Epoch | StepOutcome | Profile | None:
        if isinstance(message, Step):
            return self.engine.step(message)
        if isinstance(message, Measure):
            return self.measure(self.meet(message.begin), message.state_dir)
        self.engine.begin_epoch(message.epoch, self.send, self.meet(message))
        return message.epoch

    def meet(self, begin: BeginEpoch) -> StageLinks:
        return rendezvous(self.store, self.rank, begin.epoch, _CPU, LIMIT_S, begin.wait_limit_s, begin.sums_in_memory)

    def measure(self, links: StageLinks, state_dir: Path) -> Profile | None:
        stage_pass, pools = self.engine.stage_pass, self.engine.pools
        if not self.rank.leads:
            follow_measurements(stage_pass, pools, links)
            return None
        source: Source = {"model": "tiny", "tp": self.rank.layout.tp, "pp": self.rank.layout.pp}
        return measure_group(stage_pass, pools, MeasuringLimits(32, 2), source, links, state_dir)


def run_rank(connection: Connection, facts: ProcessFacts) -> None:
    RankProcess(connection, facts).run()


class GroupOfProcesses:
    """Looks like an engine to those who command and plan. `start` and `finish` keep several plans under way."""

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        device_blocks: int = 24,
        host_blocks: int = 48,
        natively: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.block_size = BLOCK_SIZE
        self.pools = SimpleNamespace(device_block_count=device_blocks, host_block_count=host_blocks)
        self.layout = layout
        self.epoch = Epoch(0)
        self.ledger = OutputLedger()
        self.guides = GuideStates(None, "no model")
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.under_way: list[Plan] = []
        self.wait_limit_s = LIMIT_S
        self.sums_in_memory = True
        self._done_counts: dict[CommandNumber, int] = {}
        self._on_done: Callable[[Done], None] = lambda done: None
        self._lock = threading.Lock()
        self.ranks: list[_Rank] = []
        for number in range(layout.rank_count):
            ours, theirs = FORKED.Pipe()
            pools = (device_blocks, host_blocks)
            facts = ProcessFacts(folder, layout, number, self.store.port, *pools, natively, dtype)
            process = FORKED.Process(target=run_rank, args=(theirs, facts), daemon=True)
            process.start()
            theirs.close()
            self.ranks.append(_Rank(process, ours, self._take_done))

    def begin_epoch(self, epoch: Epoch, on_done: Callable[[Done], None]) -> None:
        self.epoch, self._on_done, self.ledger = epoch, on_done, OutputLedger()
        self._done_counts.clear()
        self.under_way.clear()
        for rank in self.ranks:
            rank.connection.send(BeginEpoch(epoch, self.wait_limit_s, self.sums_in_memory))
        for rank in self.ranks:
            assert rank.answer() == epoch

    def measure(self, epoch: Epoch, state_dir: Path) -> Profile:
        """The profile that the leader gets."""
        for rank in self.ranks:
            rank.connection.send(Measure(BeginEpoch(epoch, self.wait_limit_s, self.sums_in_memory), state_dir))
        profile, *others = [rank.answer() for rank in self.ranks]
        assert isinstance(profile, Profile)
        assert others == [None] * len(others)
        return profile

    def apply(self, command: KvToWorker) -> Applied:
        for rank in self.ranks:
            rank.connection.send(command)
        return Applied(command.command_number)

    def prepare_guides(self, plan: Plan) -> None:
        """No job here has a guide."""
        assert not list(guided_starts(plan))

    def start(self, plan: Plan, to: Sequence[int] | None = None) -> None:
        """Hands a step to all ranks, or to some of them."""
        assert not self.ledger.waits(plan)
        step = self.ledger.step_of(plan)
        for number in range(len(self.ranks)) if to is None else to:
            self.ranks[number].connection.send(step)
        self.under_way.append(plan)

    def finish(self) -> WorkerResult:
        """Waits for the oldest plan under way."""
        plan = self.under_way.pop(0)
        outcomes = [rank.answer() for rank in self.ranks]
        (sampled,) = [each for number, each in enumerate(outcomes) if GroupRank(number, self.layout).samples]
        assert all(each.tokens == () for each in outcomes if each is not sampled)
        self.ledger.take(plan.plan_number, sampled.tokens)
        result = IterationResult(plan.epoch, plan.plan_number, sampled.tokens, (), 0.0)
        return WorkerResult(result, sampled.logprobs, WorkerCounters(), scored=sampled.scored)

    def run(self, plan: Plan) -> WorkerResult:
        self.start(plan)
        return self.finish()

    def close(self) -> None:
        for rank in self.ranks:
            rank.connection.send(None)
        for rank in self.ranks:
            rank.process.join(LIMIT_S)
            assert rank.process.exitcode == 0

    def _take_done(self, done: Done) -> None:
        with self._lock:
            count = self._done_counts[done.command_number] = self._done_counts.get(done.command_number, 0) + 1
        if count == self.layout.rank_count:
            self._on_done(done)


class _Rank:
    """The leader's end of a process."""

    def __init__(self, process: Any, connection: Any, on_done: Callable[[Done], None]) -> None:
        self.process, self.connection = process, connection
        self._on_done = on_done
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def answer(self) -> Any:
        """The next answer to a step or to a new epoch; raises the error that it is."""
        answer = self._answers.get(timeout=LIMIT_S)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _read(self) -> None:
        while True:
            try:
                message = self.connection.recv()
            except (EOFError, OSError):
                return self._answers.put(RuntimeError("the process has ended"))
            if isinstance(message, Done):
                self._on_done(message)
            else:
                self._answers.put(message)


@contextmanager
def group_of(folder: Path, layout: Layout, **facts: Any) -> Iterator[GroupOfProcesses]:
    """A group, ended whatever happens. `facts`: see GroupOfProcesses."""
    group = GroupOfProcesses(folder, layout, **facts)
    try:
        yield group
        group.close()
    finally:
        for rank in group.ranks:
            rank.process.kill()
