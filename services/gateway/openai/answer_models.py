"""The answers as pydantic models: for the OpenAPI description, and for the tests, which validate by them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Document(BaseModel):
    """A JSON object of an answer, without unknown members."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ErrorObject(Document):
    """What went wrong. All four members are always there."""

    message: str
    type: str
    param: str | None = Field(description="path of the field that is wrong")
    code: str | None


class ErrorDocument(Document):
    """The body of every refusal."""

    error: ErrorObject


class AnswerUsage(Document):
    """The tokens of a request, over all its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobsObject(Document):
    """The log probabilities of a choice, token by token. null only for the first token of a prompt that is echoed."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


FinishName = Literal["stop", "length"]
ChatFinishName = Literal["stop", "length", "tool_calls"]


class CompletionChoiceObject(Document):
    """A choice of a completion."""

    index: int
    text: str
    logprobs: CompletionLogprobsObject | None
    finish_reason: FinishName | None = Field(description="null in all chunks of a choice but the last")


class CompletionObject(Document):
    """A completion, or a chunk of one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoiceObject]
    usage: AnswerUsage | None = None


class TokenObject(Document):
    """A token and its log probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenTokenObject(TokenObject):
    """A chosen token, with the most probable ones in its place."""

    top_logprobs: list[TokenObject]


class ChatLogprobsObject(Document):
    """The log probabilities of a choice."""

    content: list[ChosenTokenObject]
    refusal: None


class CalledFunctionObject(Document):
    """The function of a call."""

    name: str
    arguments: str = Field(description="JSON; whole if the choice's finish_reason is tool_calls")


class ToolCallObject(Document):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunctionObject


class ChatMessageObject(Document):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None = Field(description="null if there are calls and nothing else")
    reasoning_content: str | None = Field(None, description="what the model's response template calls reasoning")
    refusal: None
    tool_calls: list[ToolCallObject] | None = None


class ChatChoiceObject(Document):
    """A choice of a chat answer."""

    index: int
    message: ChatMessageObject
    logprobs: ChatLogprobsObject | None
    finish_reason: ChatFinishName


class ChatObject(Document):
    """A chat answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoiceObject]
    usage: AnswerUsage


class FunctionDeltaObject(Document):
    """What a chunk adds to a call's function: first its name, then its arguments piece by piece."""

    name: str | None = None
    arguments: str


class ToolCallDeltaObject(Document):
    """What a chunk adds to the call with this index. The first has its id and type."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDeltaObject


class DeltaObject(Document):
    """What a chunk adds to the message. The first has the role."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDeltaObject] | None = None


class ChatChunkChoiceObject(Document):
    """A choice of a chunk."""

    index: int
    delta: DeltaObject
    logprobs: ChatLogprobsObject | None
    finish_reason: ChatFinishName | None


class ChatChunkObject(Document):
    """A chunk of a chat answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoiceObject]
    usage: AnswerUsage | None = None


class ModelObject(Document):
    """A served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int = Field(description="most tokens of prompt and output together")


class ModelListObject(Document):
    """The served models."""

    object: Literal["list"]
    data: list[ModelObject]


class HealthObject(Document):
    """The state of the server."""

    status: Literal["ok", "ready"]
