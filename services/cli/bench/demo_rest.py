"""The demo's completion once more, over REST: by curl, and by the official `openai` client."""

import asyncio
import json
import shlex
import shutil
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from services.domain.generation import SamplingRequest
from services.runtime.command_line import CommandError
from services.runtime.model_files import BUNDLED_MODEL_NAME

CURL_LIMIT_S = 60
_EXTENSIONS = ("min_tokens", "top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos")
"""Fields that OpenAI's API lacks: its client takes them as `extra_body`."""


def completion_body(prompt: str, sampling: SamplingRequest) -> dict[str, Any]:
    """The body of /v1/completions for a request of Generate. Only the fields that are set."""
    names = ("max_tokens", "temperature", "repetition_penalty", "frequency_penalty", "seed")
    given = {name: getattr(sampling, name) for name in names if getattr(sampling, name) is not None}
    return {"model": BUNDLED_MODEL_NAME, "prompt": prompt, **given}


async def show_over_rest(http: str, prompt: str, sampling: SamplingRequest, console: Console) -> list[str]:
    """Prints both ways and what they bring; returns the texts. Raises CommandError if one fails."""
    body = completion_body(prompt, sampling)
    url = f"http://{http}/v1"
    texts = []
    if shutil.which("curl") is None:
        console.print("(curl is not installed)", style="dim")
    else:
        argv = ["curl", "--silent", "--show-error", f"{url}/completions", "-H", "Content-Type: application/json", "-d"]
        argv.append(json.dumps(body))
        texts.append(await _by_curl(argv))
        _show(console, f"$ {shlex.join(argv)}", texts[-1])
    try:
        import openai
    except ImportError:
        console.print("(the openai client is not installed)", style="dim")
        return texts
    own = {name: value for name, value in body.items() if name not in _EXTENSIONS}
    extra = {name: value for name, value in body.items() if name in _EXTENSIONS}
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        try:
            answer = await client.completions.create(**own, extra_body=extra)
        except openai.OpenAIError as error:
            raise CommandError(f"the openai client failed: {error}") from error
    texts.append(answer.choices[0].text)
    arguments = ", ".join(f"{name}={value!r}" for name, value in [*own.items(), ("extra_body", extra)])
    _show(console, f">>> openai.OpenAI(base_url={url!r}, api_key='none').completions.create({arguments})", texts[-1])
    return texts


async def _by_curl(argv: list[str]) -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, "--max-time", str(CURL_LIMIT_S), stdout=pipe, stderr=pipe)
    out, told = await process.communicate()
    try:
        answer: Mapping[str, Any] = json.loads(out)
        text: str = answer["choices"][0]["text"]
    except (ValueError, LookupError):
        raise CommandError(f"curl got no completion: {(told or out).decode('utf-8', 'replace')[:200]}") from None
    return text


def _show(console: Console, command: str, text: str) -> None:
    console.print(command, style="cyan", markup=False, highlight=False, soft_wrap=True)
    console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)
