"""Fixtures shared by the gateway's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.gateway.fake_scheduler_for_gateway import FakeSchedulerForGateway
from tests.gateway.running_gateway import Pair, running_pair
from tests.gateway.tiny_model import write_byte_level_folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model folder that is served."""
    return write_byte_level_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@pytest.fixture
async def pair(model: Path) -> AsyncIterator[Pair]:
    async with running_pair(model) as both:
        yield both


@pytest.fixture
async def scheduler() -> AsyncIterator[FakeSchedulerForGateway]:
    fake = FakeSchedulerForGateway()
    await fake.start()
    yield fake
    await fake.stop()
