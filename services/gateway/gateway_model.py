"""The model as a gateway knows it: its name, its limits and its tokenizer, and what follows from them for a prompt."""

from array import array
from dataclasses import dataclass

from services.domain.errors import ContextLengthError
from services.domain.generation import GenerateRequest
from services.gateway.generation.validation import ModelLimits, check_request, utf8_length
from services.gateway.model_tokenizer import ModelTokenizer


def _over_context(context: int, least: int) -> ContextLengthError:
    return ContextLengthError(
        "text", f"must leave room for output in the context of {context} tokens, got at least {least} tokens"
    )


@dataclass(frozen=True, slots=True)
class GatewayModel:
    """The model that the gateway serves. `created_s` is Unix time."""

    name: str
    limits: ModelLimits
    tokenizer: ModelTokenizer
    created_s: int

    def check(self, request: GenerateRequest) -> None:
        """Refuses whatever can be refused without tokenizing and whatever state the server is in. Raises
        InvalidFieldError, UnknownModelError.
        """
        check_request(request, self.name, self.limits)
        context = self.limits.max_model_len
        if request.text is not None:
            least = self.tokenizer.least_tokens(utf8_length(request.text))
            if least >= context:
                raise _over_context(context, least)

    def encode(self, request: GenerateRequest) -> "array[int]":
        """The prompt. Raises InvalidFieldError for a text that is far too long, without tokenizing all of it."""
        if request.text is None:
            return array("I", request.token_ids or ())
        context = self.limits.max_model_len
        if self.tokenizer.far_exceeds(request.text, context):
            raise _over_context(context, context)
        return self.tokenizer.encode(request.text)
