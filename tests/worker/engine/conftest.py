"""An engine, checked at its end, and the plans of a scheduler for it. A file that wants another model or other pools
has a `model` or `block_counts` of its own.
"""

from collections.abc import Iterator

import pytest

from services.worker.engine.engine import Engine
from services.worker.model.served_decoder import ServedDecoder
from tests.worker.fake_kv_commands import FakeKvCommands
from tests.worker.fake_scheduler_plans import FakeSchedulerPlans
from tests.worker.tiny_engine import new_engine, tiny_model


@pytest.fixture
def model() -> ServedDecoder:
    return tiny_model()


@pytest.fixture
def block_counts() -> tuple[int, int]:
    """On the device and on the host."""
    return 64, 64


@pytest.fixture
def engine(model: ServedDecoder, block_counts: tuple[int, int]) -> Iterator[Engine]:
    made = new_engine(*block_counts, model=model)
    yield made
    made.check()
    made.close()


@pytest.fixture
def runner(engine: Engine) -> FakeSchedulerPlans:
    """Whatever an engine computes with, a job's tokens are those that it gives alone with torch."""
    return FakeSchedulerPlans(FakeKvCommands(engine))
