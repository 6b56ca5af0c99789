"""One rank at work: its machine between what the leader says, the engine, and the thread that steps.

Theory of operation
-------------------
Events come from three threads: what the leader says from the thread that hears it, ends of steps from the stepping
thread, ends of copies from the copier's. Each takes the lock for the microseconds of a turn of the machine. Commands
are applied within such a turn; steps and meetings are put into the stepping thread's queue, so that nothing is computed
and nobody is waited for under the lock.

A step that fails ends the epoch, not the rank: its weights stay. What is neither a loss of a peer nor its mistake, such
as a copy that failed, ends the rank.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from services.domain.errors import FastServeError
from services.domain.ids import Epoch
from services.domain.iteration import WorkerCounters
from services.domain.protocol import Applied, Done, KvToWorker
from services.worker.group.messages import Begin, FromRank, Prepared, PrepareGuide, ToRank
from services.worker.group.rank_machine import (
    Apply,
    Began,
    Broke,
    Compute,
    CopyEnded,
    Event,
    Expect,
    Heard,
    LeaderLost,
    Meet,
    Prepare,
    RankMachine,
    Say,
    Stepped,
)
from services.worker.sampling.guide_states import GuideStates
from services.worker.step import Step, StepOutcome

_log = logging.getLogger(__name__)

_PASSING = (FastServeError, RuntimeError)
"""What ends an epoch only: a peer's mistake, and torch.distributed's errors, a lost peer and a wait that was too
long.
"""


class RunsSteps(Protocol):
    """What a rank needs of an engine."""

    def prepare_thread(self) -> None: ...
    def apply(self, command: KvToWorker) -> Applied: ...
    @property
    def guides(self) -> GuideStates: ...
    def expect(self, step: Step) -> None: ...
    def step(self, step: Step) -> StepOutcome: ...
    def add_plan_wait(self, seconds: float) -> None: ...
    def counters(self) -> WorkerCounters: ...
    def give_up(self) -> None: ...


class MeetsRanks(Protocol):
    """Forgets what was before, meets the other ranks of the epoch, and measures with them if that is asked for.
    `on_done` gets every Done of the epoch. Raises RuntimeError if a rank does not come.
    """

    def __call__(self, begin: Begin, on_done: Callable[[Done], None]) -> None: ...


class RankWorker:
    """One rank. `post` gives the stepping thread its work; `say` passes messages on to the leader, from any thread;
    `on_fatal` gets an error after which this process is of no use.
    """

    def __init__(
        self,
        engine: RunsSteps,
        meet: MeetsRanks,
        post: Callable[[Callable[[], None]], None],
        say: Callable[[FromRank], None],
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self._engine = engine
        self._meet = meet
        self._say = say
        self._on_fatal = on_fatal
        self._machine = RankMachine()
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Meet | Compute | None] = queue.SimpleQueue()
        self._counted_before = WorkerCounters()
        self._ended = threading.Event()
        post(self._run)

    def hear(self, message: ToRank) -> None:
        """What the leader says. Raises ProtocolError when it can't say that now."""
        self._take(Heard(message))

    def lose_leader(self) -> None:
        """The connection to the leader has ended: nothing waits to be run any more."""
        self._take(LeaderLost())

    def add_plan_wait(self, seconds: float) -> None:
        """Counts time in which the group lacked a plan; only the leader's rank is told."""
        self._engine.add_plan_wait(seconds)

    def stop_soon(self) -> None:
        """Gives up the step under way; the stepping thread returns when it has ended."""
        self._engine.give_up()
        self._work.put(None)

    def stop(self) -> None:
        """Gives up the step under way, and returns when it has ended."""
        self.stop_soon()
        self._ended.wait()

    def _take(self, event: Event) -> None:
        with self._lock:
            for action in self._machine.handle(event):
                match action:
                    case Say(message):
                        self._say(message)
                    case Apply(command):
                        self._apply(command)
                    case Prepare(wanted):
                        self._prepare(wanted)
                    case Expect(step):
                        self._engine.expect(step)
                    case Meet() | Compute():
                        self._work.put(action)

    def _prepare(self, wanted: PrepareGuide) -> None:
        epoch, job_id, guide, output = wanted
        self._engine.guides.prepare(job_id, guide, output, lambda: self._say(Prepared(epoch, job_id)))

    def _apply(self, command: KvToWorker) -> None:
        epoch = self._machine.epoch
        try:
            self._engine.apply(command)
        except FastServeError as error:
            for action in self._machine.handle(Broke(epoch, str(error))):
                assert isinstance(action, Say), "what is under way goes on"
                self._say(action.message)

    # --- the stepping thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._engine.prepare_thread()
        while (work := self._work.get()) is not None:
            epoch = work.begin.epoch if isinstance(work, Meet) else work.step.plan.epoch
            try:
                event = self._met(work.begin) if isinstance(work, Meet) else self._stepped(work.step)
            except _PASSING as error:
                _log.warning("epoch %d ends on this rank: %s", epoch, error)
                event = Broke(epoch, f"{type(error).__name__}: {error}")
            except Exception as error:  # passed on, to the end of the process
                self._on_fatal(error)
                event = Broke(epoch, f"{type(error).__name__}: {error}")
            self._take(event)
        self._ended.set()

    def _met(self, begin: Begin) -> Event:
        epoch = begin.epoch
        self._meet(begin, lambda done: self._copy_ended(epoch, done))
        self._counted_before = self._engine.counters()
        return Began(epoch)

    def _stepped(self, step: Step) -> Event:
        outcome = self._engine.step(step)
        return Stepped(step, outcome, self._engine.counters().since(self._counted_before))

    def _copy_ended(self, epoch: Epoch, done: Done) -> None:
        self._take(CopyEnded(epoch, done.command_number))
