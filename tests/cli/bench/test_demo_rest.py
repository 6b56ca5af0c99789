"""The demo's completion over REST: both ways bring the text that Generate brings."""

import io
from pathlib import Path

from rich.console import Console

from services.cli.bench.demo_rest import show_over_rest
from services.domain.generation import SamplingRequest
from services.runtime.model_files import BUNDLED_MODEL_NAME
from tests.builders.repository_paths import BUNDLED
from tests.rest.conftest import drawn
from tests.rest.running_front import served

SAMPLING = SamplingRequest(max_tokens=8, temperature=0.7, repetition_penalty=1.1, frequency_penalty=0.2, seed=3)


async def test_curl_and_the_openai_client_bring_the_same_text(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), record=True, width=200)
    async with served(BUNDLED, tmp_path, served_model_name=BUNDLED_MODEL_NAME) as rest:
        rest.scheduler.script = drawn
        by_curl, by_client = await show_over_rest(rest.address, "def main(", SAMPLING, console)
        asked = {submission.submission.sampling.seed for submission in rest.scheduler.jobs.values()}
    assert by_curl == by_client != ""
    assert asked == {3}
    shown = console.export_text()
    assert f"$ curl --silent --show-error http://{rest.address}/v1/completions" in shown
    assert "completions.create(model='fastserve-bundled'" in shown
