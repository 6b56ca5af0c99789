"""The world whose worker is a group of ranks: the real machines of the leader and of each rank, with a first-in
first-out connection between the leader and each other rank, and first-in first-out streams of hidden states between
the stages. The leader's own rank hears at once, as in its process.

Plans and commands with copies are numbered by the smallest number that is free, so that states that differ in nothing
else are one.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from services.domain.ids import CommandNumber, Epoch, JobId, PlanNumber
from services.domain.iteration import JobSpec, Plan, PlanWork
from services.domain.job_sampling import JobSampling
from services.domain.protocol import Applied, Done, IterationResult, KvToWorker, SampledToken, WorkerPools
from services.kvmanager.machine import kv_manager_events as kv
from services.scheduler.machine import scheduler_events as sched
from services.worker.group import leader_machine as lead
from services.worker.group.messages import Begin
from services.worker.group.rank_machine import has_copies
from tests.fakes.fake_rank import FakeRank, computed_entries
from tests.fakes.fake_worker_tables import FakeWorkerTables
from tests.protocol.instance import Instance, choices
from tests.protocol.links import NO_NUMBER, PlanOnLink, all_applied
from tests.protocol.store import Store
from tests.protocol.world import State, Step, World

LOST_AND_BACK = "lost and back"
"""On a rank's link to the leader: its connection ends, and it comes back as a new process."""


class GroupState(NamedTuple):
    """The group: numbers of the states of its leader and its ranks, and what is on their links."""

    leader: int
    ranks: tuple[int, ...]
    to_rank: tuple[tuple[int, ...], ...]
    from_rank: tuple[tuple[int, ...], ...]
    hidden: tuple[int, ...]
    """Steps that the stage before has ended and this one has not."""
    copies: tuple[int, ...] = ()
    """Numbers, within the group, of the commands in `State.copies`."""
    plans: tuple[int, ...] = ()
    """Numbers, within the group, of the plans that have no result yet."""
    samples: tuple[tuple[int, int], ...] = ()
    """The batch of each of these plans: which jobs get a token."""


def _put(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _free(used: tuple[int, ...]) -> int:
    return next(number for number in range(len(used) + 1) if number not in used)


class GroupWorld(World):
    """The rules of one instance with several ranks. The leader does not die: that is the death of any worker."""

    def __init__(self, instance: Instance, *, merge: bool = True) -> None:
        super().__init__(instance, merge=merge)
        self.leaders = Store(lead.LeaderMachine.state_key, lambda machine: None, merge=merge)
        self.ranks = Store(FakeRank.key, lambda machine: None, merge=merge)
        self._stages = [
            range(stage * instance.ranks_per_stage, (stage + 1) * instance.ranks_per_stage)
            for stage in range(instance.stages)
        ]

    def is_end(self, state: State) -> bool:
        """Whether all jobs have arrived and ended, and all blocks are free, on every rank."""
        if state.arrived < len(self.instance.jobs) or self.schedulers.get(state.scheduler).jobs:
            return False
        manager = self.managers.get(state.manager)
        tables = [self.ranks.get(number).tables for number in state.group.ranks]
        empty = not any(one.tables or one.host_tables for one in tables)
        return empty and manager.ready and sum(manager.status().values()) == 0

    # --- what may happen ---------------------------------------------------------------------------------------------

    def possible(self, state: State) -> Iterator[Step]:
        """The names of all possible next steps."""
        group: GroupState = state.group
        ranks: list[FakeRank] = [self.ranks.get(number) for number in group.ranks]
        outside = super().possible(state._replace(plans=(), copies=(), kills=self.instance.kills))
        yield from outside
        if state.plans:
            yield ("plan",)
        for number, fake in enumerate(ranks):
            if group.to_rank[number]:
                yield ("hear", number)
            if group.from_rank[number]:
                yield ("told", number)
            yield from (("copy", number, index) for index in range(len(fake.copies)))
        if len({fake.meeting for fake in ranks}) == 1 and ranks[0].meeting is not None:
            yield ("met",)
        for stage, numbers in enumerate(self._stages):
            if all(ranks[number].can_run() for number in numbers) and (stage == 0 or group.hidden[stage]):
                yield from self._possible_ends(state, stage, ranks[numbers[0]])
        if state.kills < self.instance.kills:
            for number in range(1, len(ranks)):
                yield ("die", number, "keeping messages")
                yield ("die", number, "losing messages")

    def _possible_ends(self, state: State, stage: int, fake: FakeRank) -> Iterator[Step]:
        """A stage's ranks end their step together; the last stage's choose which jobs end early."""
        assert fake.running is not None
        may_end: list[JobId] = []
        if stage == len(self._stages) - 1:
            sampling = self._sampling(state, fake)
            may_end = [job_id for job_id in sampling if ord(job_id) - ord("a") in self.instance.early_ends]
        yield from (("ran", stage, ended) for ended in choices(may_end))

    def _sampling(self, state: State, fake: FakeRank) -> tuple[JobId, ...]:
        assert fake.running is not None
        computed = {entry.job_id for entry in computed_entries(fake.running)}
        plan: PlanOnLink = self.batches.get(dict(state.group.samples)[fake.running.plan.plan_number])
        return tuple(job_id for job_id in plan.sampling_job_ids if job_id in computed)

    @staticmethod
    def is_mishap(step: Step) -> bool:
        """Whether the step is a mishap: progress must not depend on it."""
        return step[0] == "die" or World.is_mishap(step)

    def take(self, state: State, step: Step) -> State:
        """The state after this step."""
        group: GroupState = state.group
        match step:
            case ("plan",):
                return self._plan_taken(state)
            case ("commands",):
                return self._commands_taken(state)
            case ("hear", number):
                message = self.batches.get(group.to_rank[number][0])
                group = group._replace(to_rank=_put(group.to_rank, number, group.to_rank[number][1:]))
                return self._rank_acts(state._replace(group=group), number, ("hear", message))
            case ("told", number):
                said = self.batches.get(group.from_rank[number][0])
                group = group._replace(from_rank=_put(group.from_rank, number, group.from_rank[number][1:]))
                return self._leader_told(state._replace(group=group), number, said)
            case ("copy", number, index):
                return self._rank_acts(state, number, ("copied", index))
            case ("met",):
                for number in reversed(range(len(group.ranks))):
                    state = self._rank_acts(state, number, ("met",))
                return state
            case ("ran", stage, ended):
                return self._ran(state, stage, ended)
            case ("die", number, how):
                return self._die(state._replace(kills=state.kills + 1), number, loses=how == "losing messages")
            case _:
                return super().take(state, step)

    # --- the ranks ---------------------------------------------------------------------------------------------------

    def _new_rank(self) -> int:
        instance = self.instance
        return self.ranks.put(
            FakeRank(partial(FakeWorkerTables, instance.block_size, instance.device_blocks, instance.host_blocks))
        )

    def _rank_acts(self, state: State, number: int, what: tuple[Any, ...]) -> State:
        """A rank does something; what it says goes to the leader, at once from the leader's own rank."""
        name, *given = what
        group: GroupState = state.group
        known, said = self.ranks.step(group.ranks[number], repr(what), lambda fake: tuple(getattr(fake, name)(*given)))
        group = group._replace(ranks=_put(group.ranks, number, known))
        if number > 0:
            added = tuple(self.batches.put(message) for message in said)
            group = group._replace(from_rank=_put(group.from_rank, number, group.from_rank[number] + added))
            return state._replace(group=group)
        state = state._replace(group=group)
        for message in said:
            state = self._leader_told(state, 0, message)
        return state

    def _ran(self, state: State, stage: int, ended: tuple[JobId, ...]) -> State:
        """A stage's step ends on all its ranks; the next stage gets the hidden states."""
        fakes = [self.ranks.get(state.group.ranks[number]) for number in self._stages[stage]]
        assert all(repr(fake.running) == repr(fakes[0].running) for fake in fakes), "the ranks compute different rows"
        hidden = state.group.hidden
        if stage > 0:
            hidden = _put(hidden, stage, hidden[stage] - 1)
        if stage + 1 < len(self._stages):
            hidden = _put(hidden, stage + 1, hidden[stage + 1] + 1)
        state = state._replace(group=state.group._replace(hidden=hidden))
        for number in self._stages[stage]:
            tokens: tuple[SampledToken, ...] = ()
            if number == self._stages[-1][0]:
                tokens = tuple(SampledToken(job_id, 0, job_id in ended) for job_id in self._sampling(state, fakes[0]))
            state = self._rank_acts(state, number, ("ran", tokens))
        return state

    def _die(self, state: State, number: int, *, loses: bool) -> State:
        """A rank dies; what it had said arrives before the news, or is lost. A new process takes its place."""
        group: GroupState = state.group
        said = () if loses else group.from_rank[number]
        said = tuple(one for one in said if self.batches.get(one) != LOST_AND_BACK)
        group = group._replace(
            ranks=_put(group.ranks, number, self._new_rank()),
            to_rank=_put(group.to_rank, number, ()),
            from_rank=_put(group.from_rank, number, (*said, self.batches.put(LOST_AND_BACK))),
        )
        return state._replace(group=group)

    # --- the leader --------------------------------------------------------------------------------------------------

    def _leader_told(self, state: State, number: int, said: Any) -> State:
        if said != LOST_AND_BACK:
            return self._leader_takes(state, lead.RankSaid(number, said))
        state = self._leader_takes(state, lead.RankLost(number, "it died"))
        return self._leader_takes(state, lead.RankJoined(number))

    def _leader_takes(self, state: State, event: lead.Event) -> State:
        group: GroupState = state.group
        known, actions = self.leaders.step(group.leader, repr(event), lambda machine: tuple(machine.handle(event)))
        state = state._replace(group=group._replace(leader=known))
        for action in actions:
            state = self._leader_acts(state, action)
        return state

    def _leader_acts(self, state: State, action: lead.Action) -> State:
        group: GroupState = state.group
        match action:
            case lead.Tell(0, message):
                return self._rank_acts(state, 0, ("hear", message))
            case lead.Tell(number, message):
                if self.batches.put(LOST_AND_BACK) in group.from_rank[number]:
                    return state  # said into a connection that is dead already
                added = (*group.to_rank[number], self.batches.put(message))
                return state._replace(group=group._replace(to_rank=_put(group.to_rank, number, added)))
            case lead.Hello(epoch):
                return self._hello(state, epoch)
            case lead.Acknowledge(Done(command_number)):
                at = group.copies.index(command_number)
                done = kv.FromWorker(state.epoch, Done(state.copies[at]))
                group = group._replace(copies=group.copies[:at] + group.copies[at + 1 :])
                state = state._replace(group=group, copies=state.copies[:at] + state.copies[at + 1 :])
                return self._answer(state, done)
            case lead.Acknowledge(Applied()):
                return state  # said for the whole batch, see _commands_taken
            case lead.Report(report):
                at = group.plans.index(report.result.plan_number)
                plans = group.plans[:at] + group.plans[at + 1 :]
                samples = tuple(pair for pair in group.samples if pair[0] != report.result.plan_number)
                state = state._replace(group=group._replace(plans=plans, samples=samples))
                return self._say(state, IterationResult(state.epoch, NO_NUMBER, report.result.tokens, (), 1.0))
            case lead.EndEpoch():
                return self._end_epoch(state)
        raise AssertionError(action)

    def _commands_taken(self, state: State) -> State:
        epoch, batch = self.batches.get(state.commands[0])
        state = state._replace(commands=state.commands[1:])
        if epoch != state.epoch:
            return state
        command: KvToWorker
        for command in batch:
            number = 0
            if has_copies(command):
                group: GroupState = state.group
                number = _free(group.copies)
                state = state._replace(
                    group=group._replace(copies=(*group.copies, number)), copies=(*state.copies, command.command_number)
                )
            state = self._leader_takes(state, lead.CommandTaken(command._replace(command_number=CommandNumber(number))))
        return self._answer(state, *all_applied(epoch, batch))

    def _plan_taken(self, state: State) -> State:
        batch, plan = state.plans[0], self.batches.get(state.plans[0])
        state = state._replace(plans=state.plans[1:])
        if plan.epoch != state.epoch:
            return state
        group: GroupState = state.group
        number = _free(group.plans)
        group = group._replace(plans=(*group.plans, number), samples=(*group.samples, (number, batch)))
        entries = tuple(self._work(entry.job_id, entry.from_token, entry.to_token, plan) for entry in plan.entries)
        taken = lead.PlanTaken(Plan(plan.epoch, PlanNumber(number), entries))
        return self._leader_takes(state._replace(group=group), taken)

    def _work(self, job_id: JobId, from_token: int, to_token: int, plan: PlanOnLink) -> PlanWork:
        size = self.instance.jobs[ord(job_id) - ord("a")]
        assert from_token == 0 or job_id in plan.sampling_job_ids, "no chunks in a group's instances"
        if from_token > 0:
            return PlanWork(job_id, from_token, to_token, (), None, None)
        spec = JobSpec(size.prompt_tokens, to_token, JobSampling(size.max_tokens, seed=0))
        return PlanWork(job_id, 0, to_token, (0,) * to_token, spec, None)

    # --- epochs ------------------------------------------------------------------------------------------------------

    def _new_worker(self, state: State) -> State:
        """A leader starts, and all ranks connect. The first epoch is formed at once, later ones step by step."""
        instance = self.instance
        count = instance.rank_count
        leader = lead.LeaderMachine(instance.stages, instance.ranks_per_stage)
        for number in range(count):
            leader.handle(lead.RankJoined(number))
        ranks = tuple(self._new_rank() for _ in range(count))
        none: tuple[tuple[int, ...], ...] = ((),) * count
        group = GroupState(self.leaders.put(leader), ranks, none, none, (0,) * instance.stages)
        state = self._want_epoch(state._replace(group=group, epoch=Epoch(state.epoch + 1)))
        for number in range(1, count):
            state = self.take(state, ("hear", number))
        state = self.take(state, ("met",))
        for number in range(1, count):
            state = self.take(state, ("told", number))
        return state

    def _want_epoch(self, state: State) -> State:
        return self._leader_takes(state, lead.EpochWanted(Begin(state.epoch, 0, 0.0)))

    def _hello(self, state: State, epoch: Epoch) -> State:
        instance = self.instance
        assert epoch == state.epoch
        # A job's last token is never written, so its KV fits although the scheduler counts it.
        pool_tokens = instance.device_blocks * instance.block_size + 1
        joined = sched.WorkerJoined(epoch, pool_tokens, pool_tokens, instance.profile, instance.stages)
        pools = WorkerPools(epoch, instance.block_size, instance.device_blocks, instance.host_blocks)
        return self._say(self._answer(state, kv.FromWorker(epoch, pools)), joined)

    def _kill(self, state: State, *, loses: bool) -> State:
        """A peer has ended the worker's stream."""
        return self._end_epoch(state)

    def _end_epoch(self, state: State) -> State:
        """Both streams are closed; what was said before arrives. The leader wants the next epoch."""
        lost = kv.KvWorkerLost(state.epoch)
        state = self._answer(self._say(state, sched.WorkerLost(state.epoch)), lost)
        group = state.group._replace(copies=(), plans=(), samples=(), hidden=(0,) * len(self._stages))
        state = state._replace(group=group, epoch=Epoch(state.epoch + 1), commands=(), plans=(), copies=())
        return self._want_epoch(self._leader_takes(state, lead.EpochOver()))


def world_of(instance: Instance, *, merge: bool = True) -> World:
    """The world of an instance."""
    return GroupWorld(instance, merge=merge) if instance.rank_count > 1 else World(instance, merge=merge)
