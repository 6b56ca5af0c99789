"""The examples of docs/rest.md and README.md as they stand, against a gateway whose jobs run by themselves."""

import asyncio
import json
import re
import shlex
import sys
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from services.domain.submission import Submission
from tests.builders.repository_paths import BUNDLED, ROOT
from tests.gateway.running_gateway import MODEL_NAME
from tests.rest.running_front import Served, served

CURL = re.compile(r"^\$ (curl (?:.*\\\n)*.*)$", re.MULTILINE)
IN_DOCUMENTS = "127.0.0.1:8080"


def commands(document: str) -> list[str]:
    """The curl commands of a document."""
    return CURL.findall((ROOT / document).read_text(encoding="utf-8"))


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(BUNDLED, tmp_path) as everything:
        everything.scheduler.script = tokens
        yield everything


@cache
def words() -> list[int]:
    """Tokens that are words, so that no line breaks are among them."""
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    return [token_id for token_id in range(300, 900) if tokenizer.decode([token_id]).strip().isalpha()]


def tokens(submission: Submission) -> list[int]:
    return words()[: submission.sampling.max_tokens]


async def output(*argv: str) -> str:
    """What a command writes; it must succeed."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe)
    out, told = await process.communicate()
    assert process.returncode == 0, told.decode()
    return out.decode()


async def test_every_curl_command_gets_what_it_asks_for(rest: Served) -> None:
    asked = commands("docs/rest.md") + commands("README.md")
    assert len(asked) >= 8
    for command in asked:
        command = command.replace(IN_DOCUMENTS, rest.address).replace("fastserve-bundled", MODEL_NAME)
        argv = shlex.split(command.replace("\\\n", " "))
        out = await output(*argv, "--silent", "--show-error", "--fail-with-body", "--max-time", "20")
        first = out.splitlines()[0].removeprefix("data: ")
        assert "error" not in json.loads(first), command


async def test_the_openai_example_runs(rest: Served) -> None:
    example = ROOT / "docs" / "examples" / "openai_client.py"
    whole, streamed, chat = (await output(sys.executable, str(example), f"http://{rest.address}/v1")).splitlines()
    assert whole == streamed
    assert "completion_tokens=16" in chat


async def test_the_langchain_example_runs(rest: Served) -> None:
    example = ROOT / "docs" / "examples" / "langchain_client.py"
    url = f"http://{rest.address}/v1"
    whole, streamed = (await output(sys.executable, str(example), url, MODEL_NAME)).splitlines()
    text, _, usage = whole.partition(" {")
    assert text == streamed
    assert "'output_tokens': 16" in usage
