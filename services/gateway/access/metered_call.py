"""A call that counts against the limits of its API key.

The call is known to whatever runs on its behalf, by a context variable: what opens requests need not pass it on. Where
no keys are asked for there is none, and nothing is counted.
"""

from collections.abc import Callable, Iterable
from contextvars import ContextVar

from services.domain.generation import GenerateRequest
from services.gateway.access.rate_limits import KeyMeter
from services.gateway.generation.validation import utf8_length
from services.gateway.open_request import OpenRequest

BYTES_PER_TOKEN = 4
"""What a text is taken for until it is tokenized; at its end a call pays for the tokens that there were."""


def most_tokens(request: GenerateRequest) -> int:
    """The tokens that a request may use: its prompt, and its output at full length."""
    if request.text is not None:
        prompt = -(-utf8_length(request.text) // BYTES_PER_TOKEN)
    else:
        prompt = len(request.token_ids or ())
    return prompt + request.sampling.choice_count * request.sampling.max_tokens_or_default


class MeteredCall:
    """One call; a context manager, for the task that serves it."""

    __slots__ = ("_clock", "_meter", "_opened", "_reserved")

    def __init__(self, meter: KeyMeter, clock: Callable[[], float]) -> None:
        self._meter = meter
        self._clock = clock
        self._reserved = 0
        self._opened: list[OpenRequest] = []

    def __enter__(self) -> None:
        """Raises AdmissionFullError."""
        self._meter.begin(self._clock())
        # A task serves one call, and its context ends with it.
        _CURRENT.set(self)

    def __exit__(self, *_: object) -> None:
        used = sum(opened.usage.total_tokens for opened in self._opened)
        self._meter.end(self._reserved, used, self._clock())

    def reserve(self, tokens: int) -> None:
        """Raises AdmissionFullError."""
        self._reserved += self._meter.reserve(tokens, self._clock())

    def add(self, opened: OpenRequest) -> None:
        """What this request uses is the call's."""
        self._opened.append(opened)


_CURRENT: ContextVar[MeteredCall | None] = ContextVar("metered_call", default=None)


def reserve_tokens(requests: Iterable[GenerateRequest]) -> None:
    """To be called before requests are opened. Raises AdmissionFullError if the call's key may not use so many tokens
    now.
    """
    call = _CURRENT.get()
    if call is not None:
        call.reserve(sum(most_tokens(request) for request in requests))


def count_usage(opened: OpenRequest) -> None:
    """To be called with every request that was opened."""
    call = _CURRENT.get()
    if call is not None:
        call.add(opened)
