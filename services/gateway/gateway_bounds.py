"""How much a gateway takes, and how long and how much it holds back."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayBounds:
    """At most so many requests are open; their jobs wait `resubmit_limit_s` seconds for a scheduler after the last. A
    client gets the tokens of a choice, after its first, `stream_interval` at a time.
    """

    most_requests: int
    resubmit_limit_s: float
    stream_interval: int
