"""What tests of the worker share."""

from collections.abc import AsyncIterator, Iterator

import pytest
import torch

from services.worker import worker_links
from tests.builders.channels import patient_channel
from tests.worker.worker_rig import FakeEngine, Rig, rig_of


@pytest.fixture(autouse=True)
def _subnormals_after_each_test() -> Iterator[None]:
    """An engine sets its thread's floating-point mode; other tests draw subnormals."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """A worker that dials. An attempt to connect that a busy machine keeps waiting would begin another epoch."""
    monkeypatch.setattr(worker_links, "open_channel", patient_channel)
    async with rig_of(FakeEngine()) as made:
        yield made
