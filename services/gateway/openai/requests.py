"""The bodies of /v1/completions and /v1/chat/completions."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, ModelWrapValidatorHandler, PrivateAttr, Tag, model_validator

from services.gateway.openai.body_fields import INT32_MAX, MOST_CHOICES, MOST_LOGPROBS, Body, SamplingFields, TokenIds

MOST_PROMPTS = 128
MOST_MESSAGES = 4096
MOST_TOOLS = 128


def _kind_of_prompt(value: Any) -> str:
    if not isinstance(value, list):
        return "#text"
    first = value[0] if value else 0
    return "#texts" if isinstance(first, str) else "#id_lists" if isinstance(first, list) else "#ids"


PromptText = Annotated[str, Field(min_length=1)]
Prompt = Annotated[
    Annotated[PromptText, Tag("#text")]
    | Annotated[list[PromptText], Field(max_length=MOST_PROMPTS), Tag("#texts")]
    | Annotated[TokenIds, Tag("#ids")]
    | Annotated[list[TokenIds], Field(max_length=MOST_PROMPTS), Tag("#id_lists")],
    Discriminator(_kind_of_prompt),
]


class CompletionBody(SamplingFields):
    """The body of POST /v1/completions."""

    prompt: Prompt = Field(description="a text, several texts, the token ids of a prompt, or those of several")
    best_of: int | None = Field(
        None, ge=1, le=MOST_CHOICES, description="make so many choices and answer the n most probable ones a token"
    )
    max_tokens: int | None = Field(
        None,
        ge=0,
        le=INT32_MAX,
        description="most output tokens of a choice; 0, the prompt alone, only with echo: true",
    )
    echo: bool | None = Field(None, description="begin the text, and the log probabilities, with the prompt")
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS, description="number of alternatives for each token")
    suffix: Literal[""] | None = Field(None, description="changes nothing: nothing can follow the output")

    @property
    def prompts(self) -> Sequence[str | Sequence[int]]:
        """The prompts, one by one."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        several: Any = self.prompt
        return (several,) if isinstance(several[0], int) else several

    @property
    def has_one_prompt(self) -> bool:
        """Whether the prompt was given as such, not in a list."""
        return isinstance(self.prompt, str) or isinstance(self.prompt[0], int)


class TextPart(Body):
    """A part of a message's content. There are no others than text."""

    type: Literal["text"]
    text: str


def _kind_of_content(value: Any) -> str:
    return "#parts" if isinstance(value, list) else "#text"


Content = Annotated[
    Annotated[str, Tag("#text")] | Annotated[list[TextPart], Field(min_length=1), Tag("#parts")],
    Discriminator(_kind_of_content),
]


class CalledFunction(Body):
    """The function of an earlier tool call."""

    name: str
    arguments: str


class ToolCall(Body):
    """A tool call in an earlier message of the assistant, for the template."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class Message(Body):
    """A message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    # Clients send the messages of earlier answers as they got them.
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


class SchemaFormat(Body):
    """What `json_schema` of a response format holds. An output always keeps to the schema, whatever `strict` says."""

    name: str = Field(pattern="^[A-Za-z0-9_-]{1,64}$", description="changes nothing")
    description: str | None = Field(None, description="changes nothing")
    schema_: Annotated[dict[str, Any], Field(min_length=1)] = Field(
        alias="schema", description="a JSON Schema: the output is a JSON value that it allows"
    )
    strict: bool | None = Field(None, description="changes nothing: every output keeps to the schema")


class ResponseFormat(Body):
    """The output's format."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = Field(None, description="required with the type json_schema, and only there")


FunctionName = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")]


class FunctionTool(Body):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        None, description="a JSON Schema of an object, the arguments; without it there are none"
    )
    strict: bool | None = Field(
        None, description="changes nothing: where calls are constrained, arguments keep to the schema"
    )


class Tool(Body):
    """What the model may use: a function. The chat template gets it with its keys in the order of the request."""

    type: Literal["function"]
    function: FunctionTool
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _kept(cls, value: Any, handler: "ModelWrapValidatorHandler[Tool]") -> "Tool":
        tool = handler(value)
        if isinstance(value, dict):
            tool._given = value
        return tool

    @property
    def given(self) -> dict[str, Any]:
        """The tool as it stands in the request."""
        return self._given


class NamedFunction(Body):
    """A function of the request's tools."""

    name: FunctionName


class NamedToolChoice(Body):
    """The function that is to be called."""

    type: Literal["function"]
    function: NamedFunction


def _kind_of_choice(value: Any) -> str:
    return "#named" if isinstance(value, dict) else "#mode"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("#mode")] | Annotated[NamedToolChoice, Tag("#named")],
    Discriminator(_kind_of_choice),
]


class ChatBody(SamplingFields):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    max_completion_tokens: int | None = Field(
        None, ge=1, le=INT32_MAX, description="most output tokens of a choice; as many as fit if absent"
    )
    logprobs: bool | None = Field(None, description="report the log probability of each token")
    top_logprobs: int | None = Field(
        None, ge=0, le=MOST_LOGPROBS, description="number of alternatives for each token; only with logprobs: true"
    )
    response_format: ResponseFormat | None = Field(
        None, description="text, a JSON object, or JSON that a schema allows"
    )
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS)] | None = Field(
        None, description="functions that the model may call"
    )
    tool_choice: ToolChoice | None = Field(
        None,
        description="none: no call; auto, also if absent: what the model makes; required: at least one call; or the "
        "function to call. The last two are constrained: arguments keep to the schema",
    )
    parallel_tool_calls: bool | None = Field(
        None, description="false: at most one call; true: several, which constrained outputs have only then"
    )
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = Field(
        None, description="changes nothing"
    )
