"""What the worker's driver needs of the ranks that do the work, one or several, and what it hears from them."""

from collections.abc import Sequence
from typing import Protocol

from services.domain.ids import Epoch, PlanNumber
from services.domain.iteration import Plan, WorkerResult
from services.domain.protocol import Applied, Done, KvToWorker, PlansGivenBack
from services.domain.worker_facts import WorkerFacts


class HearsRanks(Protocol):
    """Called on the event loop. What belongs to an epoch that has ended is to be dropped."""

    def results_ready(self, results: Sequence[WorkerResult]) -> None: ...
    def answered(self, epoch: Epoch, answer: Applied | Done) -> None: ...
    def gave_back(self, given_back: PlansGivenBack) -> None: ...
    def failed(self, epoch: Epoch, error: Exception) -> None: ...


class Ranks(Protocol):
    """All ranks of a worker. Used on the event loop."""

    def attach(self, hears: HearsRanks) -> None:
        """Names who hears of results, acknowledgements and failures. Called once, first."""
        ...

    async def begin_epoch(self, epoch: Epoch) -> None:
        """Forgets everything. Returns when every rank is ready; raises FastServeError if one was lost meanwhile."""
        ...

    def narrowed(self, facts: WorkerFacts) -> WorkerFacts:
        """The facts, with the pools that every rank has."""
        ...

    def take_plan(self, plan: Plan) -> None:
        """Runs a plan in its turn. Raises ProtocolError."""
        ...

    def recall(self, first_plan_number: PlanNumber) -> None:
        """Gives back the plans from this number on that have not been begun."""
        ...

    def take_command(self, command: KvToWorker) -> None:
        """Applies a command at once. Raises ProtocolError."""
        ...

    def end_epoch(self) -> None:
        """Nothing of the present epoch is begun any more."""
        ...

    async def stop(self) -> None:
        """Gives up what is under way, and returns when that has ended."""
        ...
