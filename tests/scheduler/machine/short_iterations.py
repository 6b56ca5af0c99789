"""A scheduler whose worker's iterations are short, so that it plans ahead."""

from services.domain.ids import JobId
from services.scheduler.machine.plan_lead import LEAD_S
from services.scheduler.scheduler_config import SchedulerConfig
from tests.scheduler.machine.checked_scheduler import CheckedScheduler, fcfs, plans, started
from tests.scheduler.machine.events_from_kv import resident

SHORT_S = LEAD_S / 100


def short_iterations(*names: JobId, config: SchedulerConfig | None = None, output: int = 100) -> CheckedScheduler:
    """These jobs have their prefills behind them, and iterations are short."""
    machine = started(config or fcfs(), *names, output=output)
    first, *_ = plans(machine.turn(*(resident(name) for name in names)))
    machine.turn(machine.result(first, duration_s=SHORT_S))
    return machine


def under_way(machine: CheckedScheduler) -> int:
    """How many plans have no result yet."""
    return len(machine.scheduler.iterations.unfinished)
