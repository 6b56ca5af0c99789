"""Fixtures shared by the tests of the REST front."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from services.domain.submission import Submission
from tests.gateway.tiny_model import write_byte_level_folder
from tests.rest.running_front import Served, served

CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model folder that is served; it has a chat template."""
    folder = write_byte_level_folder(tmp_path_factory.mktemp("models") / "tiny")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@pytest.fixture
async def rest(model: Path, tmp_path: Path) -> AsyncIterator[Served]:
    """A front whose jobs the test runs. Its gateway does not wait long for another scheduler."""
    async with served(model, tmp_path, resubmit_limit=0.1) as everything:
        yield everything


def drawn(submission: Submission) -> Sequence[int]:
    """As many tokens as asked for, which depend on seed and choice alone, as those of a real worker do."""
    first = 40 + (submission.sampling.seed * 7 + submission.sampling.choice * 13) % 200
    return [40 + (first + 11 * number) % 200 for number in range(submission.sampling.max_tokens)]


@pytest.fixture
def scripted(rest: Served) -> Served:
    """The same; jobs run by themselves."""
    rest.scheduler.script = drawn
    return rest
