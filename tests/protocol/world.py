"""Scheduler, KV manager and worker with the links between them: the possible steps, and the state after each.

Every link is FIFO and delivers when it likes; one turn's messages to a peer are one batch. A state of the world is a
small tuple: numbers of the machines' states (see store), and what is on the links.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from services.domain.generation import EndReason
from services.domain.ids import CommandNumber, Epoch, JobId
from services.domain.protocol import Done, PlanEntry, WorkerPools
from services.kvmanager.machine import kv_manager_events as kv
from services.kvmanager.machine.kv_manager import KvManager
from services.scheduler.machine import scheduler_events as sched
from services.scheduler.machine.scheduler import Scheduler
from tests.fakes.fake_worker_tables import FakeWorkerTables, ViolationError
from tests.protocol import recalled_plans as recalled
from tests.protocol.instance import Instance, choices, scheduler_key
from tests.protocol.links import (
    Batches,
    CommandsOnLink,
    PlanOnLink,
    all_applied,
    numbered,
    numbered_from_0,
    result_of,
    shifted_batch,
    without_plan,
)
from tests.protocol.moved_jobs import possible_moves
from tests.protocol.store import Store


class State(NamedTuple):
    """The whole world."""

    scheduler: int
    manager: int
    worker: int
    epoch: Epoch
    """The epoch of the living worker."""
    to_manager: tuple[int, ...] = ()
    """Numbers of the batches on each link, see Batches."""
    to_scheduler: tuple[int, ...] = ()
    commands: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()
    """From the worker to the KV manager."""
    plans: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    copies: tuple[CommandNumber, ...] = ()
    """Commands of the worker's copies under way."""
    arrived: int = 0
    cancelled: frozenset[int] = frozenset()
    came_again: frozenset[int] = frozenset()
    moves: int = 0
    holds: int = 0
    away: sched.MovingJob | None = None
    """The job that has left for another group, and will come back."""
    kills: int = 0
    breaks: int = 0
    waits: int = 0
    passed_over: int = 0
    group: Any = None
    """The ranks, if there are several: a GroupState."""


Question = Callable[[Scheduler, JobId], bool]
Step = tuple[Any, ...]
"""A step: its name, and which of several it is."""


class World:
    """The rules of one instance. `merge` as in Store."""

    def __init__(self, instance: Instance, *, merge: bool = True) -> None:
        self.instance = instance
        self.batches = Batches()
        self._startable: dict[tuple[int, tuple[PlanEntry, ...]], bool] = {}
        self._said: dict[tuple[int, Question, int], bool] = {}
        self.schedulers = Store(scheduler_key, Scheduler.check, merge=merge)
        self.managers = Store(lambda machine: machine.state_key(0.0), KvManager.check, merge=merge)
        self.workers = Store(FakeWorkerTables.key, lambda machine: None, merge=merge)

    def start(self) -> State:
        """Scheduler and KV manager are connected; a worker dials both."""
        scheduler = self.instance.make_scheduler()
        scheduler.handle([sched.KvConnected()], 0.0)
        manager = self.instance.make_manager()
        manager.handle([kv.SchedulerConnected()], 0.0)
        state = self._new_worker(State(self.schedulers.put(scheduler), self.managers.put(manager), -1, Epoch(0)))
        # The scheduler must know the worker's limits before it admits a job.
        state = self._scheduler_turn(state._replace(results=()), self.batches.get(state.results[0]))
        while not self.instance.late_arrivals and state.arrived < len(self.instance.jobs):
            state = self._submit(state)
        return state

    def is_end(self, state: State) -> bool:
        """Whether all jobs have arrived and ended, and all blocks are free."""
        if state.arrived < len(self.instance.jobs) or state.away or self.schedulers.get(state.scheduler).jobs:
            return False
        manager = self.managers.get(state.manager)
        figures = manager.pool_usage()
        worker = self.workers.get(state.worker)
        free = figures is not None and (figures.device_blocks_free, figures.host_blocks_free) == (
            self.instance.device_blocks,
            self.instance.host_blocks,
        )
        return free and not worker.tables and not worker.host_tables and sum(manager.status().values()) == 0

    @staticmethod
    def is_mishap(step: Step) -> bool:
        """Whether the step is a mishap: progress must not depend on it."""
        return step[0] in ("cancel", "again", "leave", "hold", "kill", "break", "wait")

    # --- what may happen ---------------------------------------------------------------------------------------------

    def possible(self, state: State) -> Iterator[Step]:
        """The names of all possible next steps."""
        instance = self.instance
        for link in ("to_scheduler", "results", "to_manager", "answers"):
            if getattr(state, link):
                yield (link,)
        if instance.merged_turns:
            for one, other in (("to_scheduler", "results"), ("to_manager", "answers")):
                if getattr(state, one) and getattr(state, other):
                    yield (one, other)
                    yield (other, one)
        if state.commands:
            yield ("commands",)
        if state.plans:
            yield from self._possible_runs(state)
            yield from recalled.possible_answers(self.batches, state.plans)
        yield from (("copy", index) for index in range(len(state.copies)))
        if state.arrived < len(instance.jobs):
            yield ("arrive",)
        yield from (("cancel", job) for job in sorted(instance.cancels - state.cancelled) if job < state.arrived)
        gone = instance.again & state.cancelled - state.came_again
        yield from (("again", job) for job in sorted(gone) if not self._says(state.scheduler, Scheduler.knows, job))
        yield from possible_moves(
            self.instance, state, lambda question, job: self._says(state.scheduler, question, job)
        )
        if state.kills < instance.kills:
            yield ("kill", "keeping messages")
            yield ("kill", "losing messages")
        if state.breaks < instance.breaks:
            yield ("break",)
        if state.waits < instance.waits:
            yield ("wait",)

    def _possible_runs(self, state: State) -> Iterator[Step]:
        """The next plan, if it can start: with every choice of jobs that end early, or are cut."""
        plan = self.batches.get(state.plans[0])
        if isinstance(plan, recalled.RecallOnLink):
            return
        if plan.epoch == state.epoch and not self._can_start(state.worker, plan):
            return
        may_end = [job_id for job_id in plan.sampling_job_ids if ord(job_id) - ord("a") in self.instance.early_ends]
        for ended in choices(may_end):
            for cut in choices(self.instance.may_be_cut(plan.may_be_cut_job_ids, ended, state.passed_over)):
                yield ("run", ended, cut)

    def _says(self, scheduler: int, question: Question, job: int) -> bool:
        """What the scheduler answers about a job."""
        known = self._said.get((scheduler, question, job))
        if known is None:
            answer = question(self.schedulers.get(scheduler), self.instance.job_ids[job])
            known = self._said[scheduler, question, job] = answer
        return known

    def _can_start(self, worker: int, plan: PlanOnLink) -> bool:
        known = self._startable.get((worker, plan.entries))
        if known is None:
            known = self._startable[worker, plan.entries] = self.workers.get(worker).can_start(plan.entries)
        return known

    def take(self, state: State, step: Step) -> State:
        """The state after this step."""
        match step:
            case ("commands",):
                return self._apply(state)
            case ("run", ended, cut):
                return self._run(state, ended, cut)
            case ("give back", kept):
                left, answer = recalled.answered(self.batches, state.plans, kept)
                return self._say(state._replace(plans=left), answer)
            case ("copy", index):
                return self._end_copy(state, index)
            case ("arrive",):
                return self._submit(state)
            case ("again", number):
                return self._submit_job(state._replace(came_again=state.came_again | {number}), number)
            case ("leave" | "let go" as why, number):
                state = state._replace(moves=state.moves + (why == "leave"))
                return self._scheduler_turn(state, (sched.Withdraw(self.instance.job_ids[number]),))
            case ("hold", number):
                state = state._replace(holds=state.holds + 1)
                return self._scheduler_turn(state, (sched.Hold((self.instance.job_ids[number],)),))
            case ("return",):
                assert state.away is not None
                return self._scheduler_turn(state._replace(away=None), (sched.TakeIn(state.away),))
            case ("cancel", number):
                job_id = self.instance.job_ids[number]
                state = state._replace(cancelled=state.cancelled | {number})
                return self._scheduler_turn(state, (sched.Cancel(job_id, EndReason.CANCELLED),))
            case ("kill", how):
                return self._kill(state._replace(kills=state.kills + 1), loses=how == "losing messages")
            case ("break",):
                return self._break(state)
            case ("wait",):
                return self._scheduler_turn(state._replace(waits=state.waits + 1), (sched.Tick(),))
            case _:
                return self._deliver(state, step)

    def _deliver(self, state: State, links: tuple[str, ...]) -> State:
        """One turn of a machine with the first messages on these links."""
        events: tuple[Any, ...] = ()
        for link in links:
            waiting = getattr(state, link)
            events += self.batches.get(waiting[0])
            state = state._replace(**{link: waiting[1:]})
        if links[0] in ("to_scheduler", "results"):
            return self._scheduler_turn(state, events)
        return self._manager_turn(state, events)

    # --- turns of the machines ---------------------------------------------------------------------------------------

    def _now_s(self, state: State) -> float:
        return state.waits * (self.instance.starvation_limit_s or 0.0)

    def _scheduler_turn(self, state: State, events: tuple[sched.Event, ...]) -> State:
        now_s = self._now_s(state)
        given = (self.batches.put(events), now_s)
        number, (plans, messages, dropped, away) = self.schedulers.step(
            state.scheduler, given, lambda machine: self._scheduler_acts(machine, events, now_s)
        )
        plans = recalled.without_stale(plans, self.batches, state.epoch)
        state = state._replace(scheduler=number, plans=state.plans + plans, away=away or state.away)
        state = state._replace(to_manager=state.to_manager + messages)
        return self._kill(state, loses=False) if dropped == state.epoch else state

    def _scheduler_acts(self, machine: Scheduler, events: tuple[sched.Event, ...], now_s: float) -> tuple[Any, ...]:
        """Plans and a batch for the KV manager, by number; the epoch of a worker to be dropped; a job that left."""
        commands = machine.handle(recalled.with_numbers(events, machine), now_s)
        flights = {flight.plan_number: flight for flight in machine.iterations.unfinished}
        plans: list[int] = []
        messages: list[kv.Event] = []
        dropped = away = None
        for command in commands:
            if isinstance(command, sched.SendPlan):
                samples = tuple(part.job.job_id for part in flights[command.plan_number].parts if part.samples)
                cuts = (*(job_id for job_id, _ in command.cut_after_s), *flights[command.plan_number].may_wait)
                plans.append(self.batches.put(PlanOnLink(command.epoch, command.entries, samples, cuts)))
            elif isinstance(command, sched.RecallPlans):
                plans.append(self.batches.put(recalled.on_link(command, machine)))
            elif isinstance(command, sched.ToKv):
                messages.append(kv.FromScheduler(command.epoch, without_plan(command.message)))
            elif isinstance(command, sched.DropWorker):
                dropped = command.epoch
            elif isinstance(command, sched.Withdrawn):
                away = command.job
            elif isinstance(command, sched.Reject):
                raise ViolationError(f"{command}: the instance is none")
        return tuple(plans), self._as_batch(messages), dropped, away

    def _manager_turn(self, state: State, events: tuple[kv.Event, ...]) -> State:
        now_s = self._now_s(state)
        given = (self.batches.put(events), now_s)
        number, (commands, count, messages, ended) = self.managers.step(
            state.manager, given, lambda machine: self._manager_acts(machine, events, now_s)
        )
        state = state._replace(manager=number, to_scheduler=state.to_scheduler + messages)
        if count:
            state = self._shifted(state, -count)
            state = state._replace(commands=state.commands + commands)
        return self._kill(state, loses=False) if ended is not None and ended == state.epoch else state

    def _manager_acts(self, machine: KvManager, events: tuple[kv.Event, ...], now_s: float) -> tuple[Any, ...]:
        """A batch for the worker and how many commands it has, a batch for the scheduler, and the epoch of a worker
        to be ended.
        """
        commands = machine.handle(numbered(events, machine), now_s)
        to_worker = [command.message for command in commands if isinstance(command, kv.ToWorker)]
        messages = [
            sched.FromKv(command.epoch, command.message) for command in commands if isinstance(command, kv.ToScheduler)
        ]
        ended = next((command.epoch for command in commands if isinstance(command, kv.EndWorker)), None)
        batch: tuple[int, ...] = ()
        if to_worker:
            base = to_worker[-1].command_number + 1
            relative = tuple(
                message._replace(command_number=CommandNumber(message.command_number - base)) for message in to_worker
            )
            batch = (self.batches.put(CommandsOnLink(machine.epoch, relative)),)
        return batch, len(to_worker), self._as_batch(messages), ended

    def _as_batch(self, messages: list[Any]) -> tuple[int, ...]:
        return (self.batches.put(tuple(messages)),) if messages else ()

    # --- the worker --------------------------------------------------------------------------------------------------

    def _new_worker(self, state: State) -> State:
        instance, epoch = self.instance, Epoch(state.epoch + 1)
        worker = self.workers.put(FakeWorkerTables(instance.block_size, instance.device_blocks, instance.host_blocks))
        # A job's last token is never written, so its KV fits although the scheduler counts it.
        pool_tokens = instance.device_blocks * instance.block_size + 1
        joined = sched.WorkerJoined(epoch, pool_tokens, pool_tokens, instance.profile)
        pools = WorkerPools(epoch, instance.block_size, instance.device_blocks, instance.host_blocks)
        state = state._replace(worker=worker, epoch=epoch, commands=(), plans=(), copies=())
        return self._say(self._answer(state, kv.FromWorker(epoch, pools)), joined)

    def _say(self, state: State, *events: sched.Event | recalled.GivenBackOnLink) -> State:
        """Put events from the worker on the link to the scheduler."""
        return state._replace(results=(*state.results, self.batches.put(events)))

    def _answer(self, state: State, *events: kv.Event) -> State:
        """Put events from the worker on the link to the KV manager."""
        return state._replace(answers=(*state.answers, self.batches.put(events)))

    def _kill(self, state: State, *, loses: bool) -> State:
        """The worker dies and comes back; what it had sent arrives before the news, or is lost."""
        if loses:
            state = state._replace(results=(), answers=())
        state = self._answer(self._say(state, sched.WorkerLost(state.epoch)), kv.KvWorkerLost(state.epoch))
        return self._new_worker(state)

    def _break(self, state: State) -> State:
        """The stream between scheduler and KV manager breaks, and with it what is on it; the scheduler dials again."""
        lost = self.batches.put((kv.SchedulerLost(), kv.SchedulerConnected()))
        noticed = self.batches.put((sched.KvLost(), sched.KvConnected()))
        return state._replace(breaks=state.breaks + 1, to_manager=(lost,), to_scheduler=(noticed,))

    def _apply(self, state: State) -> State:
        given = state.commands[0]
        epoch, batch = self.batches.get(given)
        state = state._replace(commands=state.commands[1:])
        if epoch != state.epoch:
            return state
        plain = self.batches.made(("plain", given), lambda: numbered_from_0(batch))
        number, copying = self.workers.step(
            state.worker, ("apply", plain), lambda machine: machine.apply(self.batches.get(plain))
        )
        copies = (*state.copies, *(batch[index].command_number for index in copying))
        applied = self.batches.made(("applied", given), lambda: all_applied(epoch, batch))
        return state._replace(worker=number, copies=copies, answers=(*state.answers, applied))

    def _end_copy(self, state: State, index: int) -> State:
        number, _ = self.workers.step(state.worker, ("copy", index), lambda machine: machine.end_copy(index))
        epoch, command = state.epoch, state.copies[index]
        done = self.batches.made(("done", epoch, command), lambda: (kv.FromWorker(epoch, Done(command)),))
        copies = state.copies[:index] + state.copies[index + 1 :]
        return state._replace(worker=number, copies=copies, answers=(*state.answers, done))

    def _run(self, state: State, ended: tuple[JobId, ...], cut: tuple[JobId, ...]) -> State:
        given = state.plans[0]
        plan: PlanOnLink = self.batches.get(given)
        state = state._replace(plans=state.plans[1:], passed_over=state.passed_over + self.instance.guided_among(cut))
        if plan.epoch != state.epoch:
            return state
        entries = tuple(entry for entry in plan.entries if entry.job_id not in cut)
        number, _ = self.workers.step(state.worker, ("run", entries), lambda machine: machine.run(entries))
        result = self.batches.made(("result", given, ended, cut), lambda: (result_of(plan, ended, cut),))
        return state._replace(worker=number, results=(*state.results, result))

    def _submit(self, state: State) -> State:
        return self._submit_job(state._replace(arrived=state.arrived + 1), state.arrived)

    def _submit_job(self, state: State, number: int) -> State:
        return self._scheduler_turn(state, (self.instance.submit_of(number),))

    def _shifted(self, state: State, by: int) -> State:
        """Commands were given: those given before are that much further back."""
        return state._replace(
            commands=tuple(self._shift(number, by) for number in state.commands),
            answers=tuple(self._shift(number, by) for number in state.answers),
            copies=tuple(CommandNumber(number + by) for number in state.copies),
        )

    def _shift(self, number: int, by: int) -> int:
        return self.batches.made(("shifted", number, by), lambda: shifted_batch(self.batches.get(number), by))
