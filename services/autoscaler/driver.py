"""The loop of the autoscaler: what is wanted, what there is, and what to set. What talks to the API server is behind
ScaledWorkers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from services.autoscaler.scaling import Scaling
from services.domain.errors import FastServeError
from services.runtime.api_server_errors import ApiServerError, WriteConflictError

_log = logging.getLogger(__name__)


class ScaledWorkers(Protocol):
    """The workers' object. All methods raise ApiServerError."""

    async def others(self) -> list[str]:
        """Whatever else scales the object, each as KIND NAME."""

    async def replicas(self) -> int:
        """How many replicas it is to have now."""

    async def set_replicas(self, count: int) -> None:
        """How many it is to have from now on."""


class RivalError(FastServeError):
    """Something else scales the same object: two would undo each other's work."""


class AutoscaleDriver:
    """Runs the loop. `wanted` tells the groups that the scheduler wants; None: it can't be asked."""

    def __init__(
        self, workers: ScaledWorkers, wanted: Callable[[], Awaitable[int | None]], scaling: Scaling, period_s: float
    ) -> None:
        self._workers = workers
        self._wanted = wanted
        self._scaling = scaling
        self._period_s = period_s
        self._clock = asyncio.get_running_loop().time
        self._trouble = ""

    async def check_alone(self) -> None:
        """Raises RivalError beside another autoscaler of the object."""
        rivals = await self._workers.others()
        if rivals:
            raise RivalError(f"{' and '.join(rivals)} scales the same object: delete one of the two")

    async def run(self) -> None:
        """Scales for ever."""
        while True:
            await self.step()
            await asyncio.sleep(self._period_s)

    async def step(self) -> None:
        """One look, and what follows from it. Trouble with the API server is told once and tried again."""
        try:
            wanted = await self._wanted()
            present = await self._workers.replicas()
            count = self._scaling.replicas(wanted, present, self._clock())
            if count is not None:
                await self._workers.set_replicas(count)
                _log.info("%d -> %d replicas: %s groups are wanted", present, count, wanted)
            trouble = "" if wanted is not None else "the scheduler's forecast can't be read: leaving the scale as it is"
        except WriteConflictError:
            return
        except ApiServerError as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            _log.error("%s", trouble)
        self._trouble = trouble
