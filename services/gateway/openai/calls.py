"""The OpenAI API of one gateway: what each call answers. It stands on the same requests as Generate."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from services.domain.errors import AdmissionFullError, FastServeError, UnknownModelError
from services.domain.generation import EndReason, GenerateRequest
from services.domain.guide import Guide
from services.gateway.access.metered_call import count_usage, reserve_tokens
from services.gateway.driver import MOST_LONG_TEXTS, RETRY_S, SHORT_TEXT_CHARACTERS, GatewayDriver
from services.gateway.guides.guide_checker import GuideChecker
from services.gateway.openai.answer_shapes import CHAT, COMPLETION, JSON, Words, document
from services.gateway.openai.answers import OpenAnswer, Part, Shape, Sink
from services.gateway.openai.chat_prompt import ChatPrompts, Prompt
from services.gateway.openai.chat_template import ChatTemplate
from services.gateway.openai.error_kinds import RefusedBodyError
from services.gateway.openai.openapi import openapi_document
from services.gateway.openai.quiet_streams import QuietStreams
from services.gateway.openai.reading import read_chat, read_completion
from services.gateway.openai.requests import ChatBody, CompletionBody
from services.gateway.openai.tool_use import ToolUse, tool_use
from services.gateway.openai.translation import ClientPaths, chat_paths, chat_request, completion_requests, guide_of
from services.gateway.request_log import log_opened
from services.gateway.tools.response_template import ResponseTemplate


class FixedAnswer:
    """An answer that is there already."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def send(self, sink: Sink, deadline_s: float | None) -> None:
        """Sends it."""
        await sink.write(self._body, JSON)


Answer = OpenAnswer | FixedAnswer


class OpenAiCalls:
    """The calls. Each checks its request, opens what it needs and returns the answer, which then must be sent.

    `template` is the model's chat template, or the sentence that says why there is none; `response_template` says how
    the model's answers are read, if its folder does, or is the sentence about what is wrong there. `run` must be
    running.
    """

    def __init__(
        self,
        driver: GatewayDriver,
        template: ChatTemplate | str,
        response_template: ResponseTemplate | str | None,
        quiet: QuietStreams,
        guides: GuideChecker,
    ) -> None:
        self._driver = driver
        self._guides = guides
        self._quiet = quiet
        tokenizer = driver.model.tokenizer
        self._prompts: ChatPrompts | str = template if isinstance(template, str) else ChatPrompts(template, tokenizer)
        if isinstance(template, str):
            self._tool_prompts: ChatPrompts | str = template
        elif isinstance(response_template, str):
            self._tool_prompts = response_template
        else:
            self._tool_prompts = ChatPrompts(template.for_tools, tokenizer, response_template)
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="chat-template")
        self._long_conversations = 0

    async def run(self) -> None:
        """Keeps quiet streams alive, for ever."""
        try:
            await self._quiet.run()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # --- models ------------------------------------------------------------------------------------------------------

    async def list_models(self) -> Answer:
        """The served models."""
        return FixedAnswer(document({"object": "list", "data": [self._model()]}))

    async def get_model(self, name: str) -> Answer:
        """One model. Raises UnknownModelError."""
        if name != self._driver.model.name:
            raise UnknownModelError(f"model {name[:64]!r} is not served here; {self._driver.model.name!r} is")
        return FixedAnswer(document(self._model()))

    def _model(self) -> dict[str, object]:
        model = self._driver.model
        return {
            "id": model.name,
            "object": "model",
            "created": model.created_s,
            "owned_by": "fastserve",
            "max_model_len": model.limits.max_model_len,
        }

    async def get_openapi(self) -> Answer:
        """The description of the REST interface."""
        return FixedAnswer(openapi_document())

    # --- completions -------------------------------------------------------------------------------------------------

    async def create_completion(self, data: bytes, deadline_in_s: float | None) -> Answer:
        """Raises InvalidFieldError with the client's own path, UnknownModelError, NotReadyError, AdmissionFullError."""
        body = read_completion(data)
        requests = completion_requests(body)
        for request, paths in requests:
            _told(paths, partial(self._driver.check, request))
        await self._check_guide(requests[0][0].sampling.guide, requests[0][1])
        shape = self._shape(COMPLETION, body, body.best_of or body.choice_count, body.logprobs is not None)
        echoes = [self._text_of(prompt) if body.echo else "" for prompt in body.prompts]
        return await self._open(requests, echoes, hashlib.sha256(data).digest(), deadline_in_s, shape)

    def _text_of(self, prompt: str | Sequence[int]) -> str:
        return prompt if isinstance(prompt, str) else self._driver.model.tokenizer.decode(prompt)

    # --- chat --------------------------------------------------------------------------------------------------------

    async def create_chat_completion(self, data: bytes, deadline_in_s: float | None) -> Answer:
        """Raises as create_completion does; also RefusedBodyError if the model has no chat template."""
        body = read_chat(data)
        paths = chat_paths(body)
        tools = tool_use(body, self._tool_prompts, self._driver.model.tokenizer)
        # All but the prompt, before the work of rendering it.
        unrendered = chat_request(body, (0,), self._driver.model.limits.max_model_len, tools)
        _told(paths, lambda: self._driver.check(unrendered))
        for path, schema in () if tools is None else tools.schemas:
            await self._check_guide(schema, replace(paths, guide=path))
        await self._check_guide(unrendered.sampling.guide, paths)
        prompt, text = await self._rendered(body, tools, len(data))
        limits = self._driver.usable_limits()
        context = min(self._driver.model.limits.max_model_len, limits.max_model_len, limits.device_pool_tokens)
        request = chat_request(body, prompt, context - len(prompt), tools)
        _told(paths, lambda: self._driver.check(request))
        shape = self._shape(CHAT, body, body.choice_count, bool(body.logprobs), tools)
        digest = hashlib.sha256(data).digest()
        kept = "" if tools is None else text
        return await self._open([(request, paths)], [""], digest, deadline_in_s, shape, kept)

    async def _rendered(self, body: ChatBody, tools: ToolUse | None, size_bytes: int) -> Prompt:
        """The conversation; a long one is rendered in a thread."""
        prompts = self._prompts if tools is None else self._tool_prompts
        given = None if tools is None else tools.tools
        if isinstance(prompts, str):
            raise RefusedBodyError("messages", prompts, "chat_template_missing")
        context = self._driver.model.limits.max_model_len
        if size_bytes <= SHORT_TEXT_CHARACTERS:
            return prompts.prepared(body.messages, context, given)
        if self._long_conversations >= MOST_LONG_TEXTS:
            raise AdmissionFullError(f"at most {MOST_LONG_TEXTS} conversations can wait to be rendered", RETRY_S)
        self._long_conversations += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, prompts.prepared, body.messages, context, given)
        finally:
            self._long_conversations -= 1

    # --- both --------------------------------------------------------------------------------------------------------

    async def _check_guide(self, guide: Guide | None, paths: ClientPaths) -> None:
        try:
            await self._guides.check(guide)
        except FastServeError as error:
            raise paths.refusal(error) from None

    def _shape(
        self, words: Words, body: CompletionBody | ChatBody, made: int, has_logprobs: bool, tools: ToolUse | None = None
    ) -> Shape:
        model = self._driver.model
        is_guided = guide_of(body) is not None or (tools is not None and tools.guide is not None)
        own_stops = () if body.ignore_eos and not is_guided else model.limits.eos_token_ids
        return Shape(
            words=words,
            model=model.name,
            streams=body.streams,
            includes_usage=body.includes_usage,
            usage_in_every_chunk=body.usage_in_every_chunk,
            kept=body.choice_count,
            made=made,
            has_logprobs=has_logprobs,
            echoes=isinstance(body, CompletionBody) and bool(body.echo),
            stop_token_ids=frozenset((*(body.stop_token_ids or ()), *own_stops)),
            tools=tools,
        )

    async def _open(
        self,
        requests: Sequence[tuple[GenerateRequest, ClientPaths]],
        echoes: Sequence[str],
        digest: bytes,
        deadline_in_s: float | None,
        shape: Shape,
        prompt: str = "",
    ) -> OpenAnswer:
        """Opens all requests or none. `prompt`: the text of the only one, if there are tools."""
        reserve_tokens(request for request, _ in requests)
        parts: list[Part] = []
        try:
            for (request, paths), echo in zip(requests, echoes, strict=True):
                try:
                    listener = self._driver.open(request, digest, deadline_in_s)
                except FastServeError as error:
                    raise paths.refusal(error) from None
                parts.append(Part(listener, paths, echo, prompt))
                count_usage(listener.request)
                if len(requests) > 1:
                    # Short prompts are tokenized here and now; other calls may have their turn in between.
                    await asyncio.sleep(0)
            opened = zip(parts, requests, strict=True)
            log_opened([(part.listener.request.request_id, request) for part, (request, _) in opened])
            return OpenAnswer(parts, shape, self._driver.model.tokenizer, self._quiet)
        except BaseException:
            for part in parts:
                part.listener.close(EndReason.CANCELLED)
            raise


def _told(paths: ClientPaths, check: Callable[[], None]) -> None:
    """Runs a check; its refusal names the client's own fields."""
    try:
        check()
    except FastServeError as error:
        raise paths.refusal(error) from None
