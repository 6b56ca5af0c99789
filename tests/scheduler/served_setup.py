"""What the scheduler of these tests serves."""

from services.scheduler.scheduler_config import SchedulerConfig
from services.scheduler.worker_group import ServedSetup

FINGERPRINT = "cafe"
BLOCK_SIZE = 16
VOCABULARY_SIZE = 50_000


def served_with(config: SchedulerConfig, most_groups: int = 1) -> ServedSetup:
    """What the scheduler of these tests serves."""
    return ServedSetup("tiny", FINGERPRINT, VOCABULARY_SIZE, 2048, BLOCK_SIZE, config, most_groups)
