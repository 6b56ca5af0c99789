"""The examples of the documentation work as they stand."""

import asyncio
import sys
from pathlib import Path

from tests.fakes.fake_gateway_for_client import FakeGatewayForClient, serving

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


async def test_the_python_client_streams_a_completion() -> None:
    async with serving(FakeGatewayForClient()) as gateway:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLES / "generate.py"), gateway.address, "def main", stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert out.decode().startswith("w0 w1 w2 ")
    assert out.decode().endswith("[FINISH_REASON_LENGTH, 64 tokens, preempted 2x]\n")
