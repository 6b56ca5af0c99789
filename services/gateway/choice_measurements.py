"""What the metrics are told of a choice: its tokens as they come, and its end. Of a job that another request had
submitted before nothing is counted, as it was counted there.
"""

from services.domain.generation import EndReason
from services.gateway.metrics import GatewayMetrics
from services.gateway.open_request import Choice


def measure_tokens(metrics: GatewayMetrics, choice: Choice, new_tokens: int, now_s: float) -> None:
    """So many new tokens have arrived together."""
    if not new_tokens or choice.is_joined:
        return
    metrics.tokens_made(new_tokens)
    if choice.first_token_s is None:
        metrics.first_token(now_s - choice.request.arrived_s)
        _prompt_was_read(metrics, choice, now_s)
    else:
        metrics.token_gap(now_s - choice.last_token_s)
    for _ in range(new_tokens - 1):
        metrics.token_gap(0.0)
    choice.last_token_s = now_s


def measure_end(metrics: GatewayMetrics, choice: Choice, finish: EndReason, now_s: float) -> None:
    """The choice ended. Where its time went is known only if one scheduler had it from start to end."""
    if choice.request.trace is not None:
        choice.request.trace.ended(finish, len(choice.output.token_ids), choice.first_token_s)
    if choice.is_joined:
        return
    if choice.first_token_s is None and finish.completes:  # its prompt alone was wanted
        _prompt_was_read(metrics, choice, now_s)
        choice.last_token_s = now_s
    decode_s = 0.0 if choice.first_token_s is None else choice.last_token_s - choice.first_token_s
    timings = None if choice.is_resumed else choice.timings
    metrics.choice_ended(finish, len(choice.output.token_ids), now_s - choice.request.arrived_s, decode_s, timings)


def _prompt_was_read(metrics: GatewayMetrics, choice: Choice, now_s: float) -> None:
    """Counts the prompt with the first of the request's choices that has read it."""
    choice.first_token_s = now_s
    if not any(other.first_token_s is not None for other in choice.request.choices if other is not choice):
        metrics.prompt_admitted(choice.request.prompt_tokens)
