"""How many worker groups the scheduler wants, kept up to date: what autoscalers are told and /metrics shows."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.domain.group_backlog import GroupBacklog
from services.runtime.status_metrics import PREFIX
from services.scheduler.policies.group_demand import Demand, DemandLimits, GroupDemand

PERIOD_S = 0.5


class DemandWatch:
    """`backlogs` tells those of all groups, `ready` how many groups serve. Must be created on the event loop."""

    def __init__(
        self, limits: DemandLimits, backlogs: Callable[[], Sequence[GroupBacklog | None]], ready: Callable[[], int]
    ) -> None:
        self._backlogs = backlogs
        self._ready = ready
        self._clock = asyncio.get_running_loop().time
        self._demand = GroupDemand(limits)
        self.latest = self.update()

    @property
    def ready_count(self) -> int:
        """Groups that serve."""
        return self._ready()

    def update(self) -> Demand:
        """Ask anew."""
        self.latest = self._demand.update(self._backlogs(), self._clock())
        return self.latest

    async def run(self) -> None:
        """Updates forever, so that what was wanted a while ago is remembered whoever asks."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.update()


class DemandCollector(Collector):
    """The gauges of a demand. `read` returns it, or None if the scheduler is too busy to answer."""

    def __init__(self, model_name: str, read: Callable[[], tuple[Demand, int] | None]) -> None:
        self._model_name = model_name
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Empty, so that registering the collector does not ask the scheduler."""
        return ()

    def collect(self) -> Iterator[Metric]:
        answer = self._read()
        if answer is None:
            return
        demand, ready = answer
        for name, text, value in (
            ("backlog_seconds", "Seconds of one worker group that all admitted jobs still cost.", demand.backlog_s),
            ("groups_busy", "Worker groups' worth of jobs that run, at full batches.", demand.busy_groups),
            ("groups_wanted", "Worker groups that the backlog asks for.", demand.wanted),
            ("groups_ready", "Worker groups that serve.", ready),
        ):
            family = GaugeMetricFamily(PREFIX + name, text, labels=("model_name",))
            family.add_metric((self._model_name,), value)
            yield family
