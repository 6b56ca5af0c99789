"""The worker's two streams: to the scheduler, plans in and results out; to the KV manager, commands in and
acknowledgements out.

Each `run` is one stream of one epoch of the worker. It always ends with an error that says why (see runtime/dialling).
What is to be sent is put into an outbox from the event loop; acknowledgements that wait together travel together.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from fastserve.v1 import kvmanager_pb2 as kv_wire
from fastserve.v1 import kvmanager_pb2_grpc, scheduler_pb2_grpc
from fastserve.v1 import scheduler_pb2 as wire
from services.domain.errors import ProtocolError
from services.domain.ids import Epoch, PlanNumber
from services.domain.iteration import Plan, WorkerResult
from services.domain.protocol import Applied, Done, KvToWorker, PlansGivenBack
from services.domain.worker_facts import KvWorkerFacts, WorkerDraining, WorkerFacts
from services.runtime.channel import open_channel
from services.runtime.dialling import DialledStream
from services.runtime.outbox import Outbox
from services.runtime.terms import NewestTerm
from services.runtime.tls.tls_files import Certificates
from services.wire.kvmanager_worker import acknowledgements_to_wire, commands_from_wire, kv_hello_to_wire
from services.wire.scheduler_worker import (
    draining_to_wire,
    given_back_to_wire,
    plan_from_wire,
    result_to_wire,
    scored_to_wire,
    worker_facts_to_wire,
)

MOST_UNSENT = 100_000


ToScheduler = WorkerResult | PlansGivenBack | WorkerDraining


class ResultOutbox(Outbox[ToScheduler]):
    """Results on their way to the scheduler, answers to recalls, and the word that the worker is about to end."""

    def __init__(self) -> None:
        super().__init__(MOST_UNSENT, "the scheduler")


class AcknowledgementOutbox(Outbox[Applied | Done]):
    """Acknowledgements on their way to the KV manager."""

    def __init__(self) -> None:
        super().__init__(MOST_UNSENT, "the KV manager")


class HearsScheduler(Protocol):
    """Told what the scheduler says on one stream."""

    def welcomed(self, epoch: Epoch) -> None:
        """The worker has joined, and this epoch begins."""
        ...

    def take_plan(self, plan: Plan) -> None:
        """A plan of that epoch. Raises ProtocolError."""
        ...

    def recall(self, first_plan_number: PlanNumber) -> None:
        """The plans of that epoch from this number on need not be run."""
        ...

    def released(self) -> None:
        """The worker is about to end, and no job needs it."""
        ...


async def run_scheduler_stream(
    address: str,
    facts: WorkerFacts,
    results: ResultOutbox,
    hears: HearsScheduler,
    terms: NewestTerm,
    tls: Certificates | None = None,
) -> None:
    """One stream to the scheduler, until it ends. Plans of other epochs than the one it gave are dropped. A scheduler
    of an older term than `terms` has heard of is left. Always raises.
    """
    epoch = Epoch(0)

    def to_wire(some: Sequence[ToScheduler]) -> Iterable[wire.WorkerLinkRequest]:
        together = wire.IterationResults()
        for one in some:
            is_alone = not isinstance(one, WorkerResult) or bool(one.scored)
            if is_alone and together.results:
                yield wire.WorkerLinkRequest(results=together)
                together = wire.IterationResults()
            if isinstance(one, WorkerDraining):
                yield wire.WorkerLinkRequest(draining=draining_to_wire(one))
                continue
            if isinstance(one, PlansGivenBack):
                yield wire.WorkerLinkRequest(given_back=given_back_to_wire(one._replace(epoch=epoch)))
                continue
            for scored in one.scored:
                yield wire.WorkerLinkRequest(scored=scored_to_wire(epoch, scored))
            result = result_to_wire(one)
            # The ranks have a number of their own for it.
            result.epoch = epoch
            together.results.append(result)
        if together.results:
            yield wire.WorkerLinkRequest(results=together)

    def on_message(message: wire.WorkerLinkResponse) -> None:
        if message.HasField("plans"):
            for plan in message.plans.plans:
                if plan.epoch == epoch:
                    hears.take_plan(plan_from_wire(plan))
        elif message.HasField("recall"):
            if message.recall.epoch == epoch:
                hears.recall(PlanNumber(message.recall.first_plan_number))
        elif message.HasField("released"):
            hears.released()
        else:
            raise ProtocolError("a scheduler's message must be plans, a recall, or that the worker may go")

    peer = f"the scheduler at {address}"
    async with (
        open_channel(address, tls=tls) as channel,
        DialledStream(scheduler_pb2_grpc.SchedulerServiceStub(channel).WorkerLink(), peer) as stream,
    ):
        await stream.say(wire.WorkerLinkRequest(hello=worker_facts_to_wire(facts)))
        first = await stream.answer()
        if first.WhichOneof("message") != "welcome" or first.welcome.epoch <= facts.last_epoch:
            raise ProtocolError("the scheduler's first message is not its welcome with a new epoch")
        terms.check_dialled(await stream.term(), peer)
        epoch = Epoch(first.welcome.epoch)
        hears.welcomed(epoch)
        await stream.exchange(results, to_wire, on_message)


async def run_kv_manager_stream(
    address: str,
    facts: KvWorkerFacts,
    acknowledgements: AcknowledgementOutbox,
    on_open: Callable[[], None],
    on_commands: Callable[[Sequence[KvToWorker]], None],
    tls: Certificates | None = None,
) -> None:
    """The stream to the KV manager of the epoch `facts.pools.epoch`, until it ends. Commands of other epochs are
    dropped. Always raises.
    """
    epoch: Epoch = facts.pools.epoch

    def to_wire(some: Sequence[Applied | Done]) -> Iterable[kv_wire.KvManagerServiceWorkerLinkRequest]:
        return (acknowledgements_to_wire(epoch, some),)

    def on_message(batch: kv_wire.KvManagerServiceWorkerLinkResponse) -> None:
        if batch.epoch == epoch:
            on_commands(commands_from_wire(batch)[1])

    peer = f"the KV manager at {address}"
    async with (
        open_channel(address, tls=tls) as channel,
        DialledStream(kvmanager_pb2_grpc.KvManagerServiceStub(channel).WorkerLink(), peer) as stream,
    ):
        await stream.say(kv_hello_to_wire(facts))
        on_open()
        await stream.exchange(acknowledgements, to_wire, on_message)
