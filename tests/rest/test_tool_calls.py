"""Tool calls for the official client, unmodified: whole and streamed, in each form, through a gateway and a REST front
whose jobs run by themselves.
"""

import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.domain.generation import EndReason
from services.domain.submission import ServingLimits, Submission
from services.gateway.model_tokenizer import ModelTokenizer
from services.gateway.openai.answer_models import ChatChunkObject, ChatObject
from services.runtime.guide_compiler import GuideCompiler
from tests.gateway.openai.tool_templates import CLOCK, HERMES, MISTRAL_ARGS, WEATHER, tools_folder
from tests.gateway.running_gateway import MODEL_NAME
from tests.gateway.tools.response_templates import CHAT_ML
from tests.rest.running_front import Served, served

MESSAGES: Any = [{"role": "user", "content": "windy?"}]
ROOM = ServingLimits(ready=True, max_model_len=2048, device_pool_tokens=2048)
NAMED: Any = {"type": "function", "function": {"name": "clock"}}


@asynccontextmanager
async def tool_server(folder: Path, template: str, response_template: Any = None) -> AsyncIterator[tuple[Served, Any]]:
    """The server, and a client's function that asks it with tools."""
    model = tools_folder(folder / "model", template, response_template)
    async with (
        served(model, folder, limits=ROOM) as rest,
        openai.AsyncOpenAI(base_url=f"http://{rest.address}/v1", api_key="none", max_retries=0) as client,
    ):
        rest.scheduler.script_finish = EndReason.STOP

        async def ask(**fields: Any) -> Any:
            how = {"messages": MESSAGES, "tools": [CLOCK, WEATHER], "max_completion_tokens": 60, **fields}
            return await client.chat.completions.create(model=MODEL_NAME, **how)

        yield rest, ask


def saying(rest: Served, text: str) -> None:
    """Has every job say this."""
    tokenizer = ModelTokenizer(rest.gateway.process.settings.model)
    token_ids = [*tokenizer.encode_rendered(text), 0]
    rest.scheduler.script = lambda submission: token_ids


class GuidedModel:
    """A model that has no preferences, and makes what its guide allows."""

    def __init__(self, folder: Path) -> None:
        self._compiler = GuideCompiler(folder)

    def __call__(self, submission: Submission) -> Sequence[int]:
        assert submission.sampling.guide is not None
        matcher, dice = self._compiler.compile(submission.sampling.guide), random.Random(submission.sampling.seed)
        token_ids: list[int] = []
        while not token_ids or (token_ids[-1] != 0 and not matcher.is_stopped()):
            mask = matcher.compute_bitmask()
            allowed = [place * 8 + bit for place, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]
            token_ids.append(dice.choice(allowed))
            matcher.consume_token(token_ids[-1])
        return token_ids


async def put_together(stream: Any) -> dict[str, Any]:
    """A stream as a choice of a whole answer. Each call's id and name come before its arguments."""
    message: dict[str, Any] = {}
    finish = None
    async for chunk in stream:
        document = chunk.model_dump(exclude_unset=True)
        ChatChunkObject.model_validate(document)
        ChatCompletionChunk.model_validate(document)
        (choice,) = document["choices"]
        assert finish is None, "nothing follows the finish"
        finish = choice["finish_reason"]
        for name, value in choice["delta"].items():
            if name == "tool_calls":
                for call in value:
                    calls = message.setdefault("tool_calls", [])
                    if call["index"] == len(calls):
                        assert call["function"]["name"]
                        calls.append({"id": call["id"], "type": "function", "function": call["function"]})
                    else:
                        assert set(call) == {"index", "function"}
                        calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            elif message.get(name) is None:
                message[name] = value
            else:
                message[name] += value
    return {"message": message, "finish_reason": finish}


def parts_of(choice: dict[str, Any]) -> tuple[Any, ...]:
    """A choice without ids, which are those of one answer."""
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return message["role"], message["content"], message.get("reasoning_content"), calls, choice["finish_reason"]


async def both(ask: Any, **fields: Any) -> tuple[Any, ...]:
    """What is answered, whole and streamed, which is the same."""
    whole = await ask(**fields)
    document = whole.model_dump(exclude_unset=True)
    ChatObject.model_validate(document)
    ChatCompletion.model_validate(document)
    parts = parts_of(document["choices"][0])
    assert parts_of(await put_together(await ask(**fields, stream=True))) == parts
    return parts


CALL = '<tool_call>\n{"name": "weather", "arguments": {"days": "3", "city": "Oslo"}}\n</tool_call>'
TOLD = ("weather", '{"days": 3, "city": "Oslo"}')


async def test_calls_are_found_in_what_the_model_makes_of_itself(tmp_path: Path) -> None:
    async with tool_server(tmp_path, HERMES) as (rest, ask):
        saying(rest, f"Let me see.\n{CALL}")
        assert await both(ask) == ("assistant", "Let me see.", None, [TOLD], "tool_calls")
        saying(rest, f"{CALL}\n{CALL}")
        assert await both(ask) == ("assistant", None, None, [TOLD, TOLD], "tool_calls")
        assert await both(ask, parallel_tool_calls=False) == ("assistant", None, None, [TOLD], "tool_calls")
        # Without calls the answer is text, also if there is none.
        saying(rest, "No wind.")
        assert await both(ask) == ("assistant", "No wind.", None, [], "stop")
        saying(rest, "")
        assert await both(ask) == ("assistant", "", None, [], "stop")
        # A call that is cut short has the arguments that there are.
        rest.scheduler.script_finish = EndReason.LENGTH
        saying(rest, CALL[:52])
        assert await both(ask) == ("assistant", None, None, [("weather", '{"days"')], "length")


async def test_with_tool_choice_none_a_call_is_text_and_the_template_gets_no_tools(tmp_path: Path) -> None:
    async with tool_server(tmp_path, HERMES) as (rest, ask):
        saying(rest, CALL)
        assert await both(ask, tool_choice="none") == ("assistant", CALL, None, [], "stop")
        prompts = {tuple(job.submission.prompt) for job in rest.scheduler.jobs.values()}
        await ask(tools=openai.omit)
        assert {tuple(job.submission.prompt) for job in rest.scheduler.jobs.values()} == prompts


@pytest.mark.parametrize(("template", "spec"), [(MISTRAL_ARGS, None), (HERMES, CHAT_ML.spec)])
async def test_a_required_call_is_one_whatever_the_model(template: str, spec: Any, tmp_path: Path) -> None:
    async with tool_server(tmp_path, template, spec) as (rest, ask):
        rest.scheduler.script = GuidedModel(rest.gateway.process.settings.model)
        for seed in range(3):
            role, content, _, ((name, arguments),), finish = await both(ask, tool_choice="required", seed=seed)
            assert (role, content, finish) == ("assistant", None, "tool_calls")
            assert name in ("weather", "clock")
            assert set(json.loads(arguments)) <= {"days", "city", "wind"}
        assert (await both(ask, tool_choice=NAMED, seed=1))[3] == [("clock", "{}")]


async def test_log_probabilities_choices_and_usage_come_with_calls(tmp_path: Path) -> None:
    async with tool_server(tmp_path, HERMES) as (rest, ask):
        saying(rest, CALL)
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = [chunk async for chunk in await ask(n=2, stream=True, stream_options=options)]
        whole = await ask(n=2)
        assert chunks[-1].usage == whole.usage
        assert all(chunk.usage is not None for chunk in chunks)
        names = [
            call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or [] if call.id
        ]
        assert len({call.id for call in names}) == 2, "each choice has a call of its own"
        assert [choice.finish_reason for choice in whole.choices] == ["tool_calls"] * 2


async def test_a_turn_with_calls_and_their_results_goes_back_to_the_template(tmp_path: Path) -> None:
    async with tool_server(tmp_path, HERMES) as (rest, ask):
        saying(rest, CALL)
        message = (await ask()).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "calm"}
        await ask(messages=[*MESSAGES, message, result])
        last = list(rest.scheduler.jobs.values())[-1]
        text = ModelTokenizer(rest.gateway.process.settings.model).decode(last.submission.prompt)
        assert '<tool_call>\n{"name": "weather", "arguments": {"days": 3, "city": "Oslo"}}\n</tool_call>' in text
        assert "<tool_response>\ncalm\n</tool_response>" in text


UNFOLLOWED = {
    "a.not": {"a": {"not": {}}},
    "a.format": {"a": {"type": "string", "format": "own"}},
    "a.type": {"a": {"type": "text"}},
}


async def test_a_schema_that_no_output_can_be_held_to_is_refused_at_its_place(tmp_path: Path) -> None:
    async with tool_server(tmp_path, HERMES) as (_, ask):
        for place, properties in UNFOLLOWED.items():
            function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
            with pytest.raises(openai.BadRequestError) as refused:
                await ask(tools=[CLOCK, {"type": "function", "function": function}], tool_choice="required")
            assert refused.value.param == f"tools[1].function.parameters.properties.{place}"
