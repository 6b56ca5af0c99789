"""What an API key may use: requests and tokens a minute, and requests at a time. The clock comes with each question.

A rate is a bucket that holds a minute's worth. It begins full and fills evenly, so a key that was quiet may use a
minute's worth at once. A request takes one from the bucket of requests, and before it begins it takes from the bucket
of tokens all that it may use (prompt, and max_tokens for each choice), a full bucket at most: so one that may use more
than a minute's worth waits for a full bucket and is not refused for ever. When it ends, what it did not use comes back,
and what it used beyond is owed. A request that is refused by a limit takes nothing.
"""

from dataclasses import dataclass

from services.domain.errors import AdmissionFullError

MINUTE_S = 60.0
CONCURRENCY_RETRY_S = 1.0
"""When one of the key's requests ends is not known."""
_ROUNDING = 1e-3
"""A client that waits as long as it was told must get through, whatever the times were rounded to."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of a key. None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None


class RateBucket:
    """A bucket for `per_minute` units a minute. Its level is negative while something is owed."""

    __slots__ = ("_filled_s", "_level", "per_minute")

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._filled_s = now_s

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until the amount, or a full bucket if that is less, is there. 0: it is."""
        self._fill(now_s)
        lacking = min(amount, self.per_minute) - self._level
        return 0.0 if lacking <= _ROUNDING else lacking * MINUTE_S / self.per_minute

    def take(self, amount: float) -> None:
        """Takes the amount, or gives it back if it is negative; there is never more than a full bucket."""
        self._level = min(self.per_minute, self._level - amount)

    def resize(self, per_minute: int, now_s: float) -> None:
        """Another limit from now on. What is left stays, as far as there is room."""
        self._fill(now_s)
        self.per_minute = per_minute
        self.take(0)

    def _fill(self, now_s: float) -> None:
        self.take(-(now_s - self._filled_s) * self.per_minute / MINUTE_S)
        self._filled_s = now_s


def _resized(bucket: RateBucket | None, per_minute: int | None, now_s: float) -> RateBucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return RateBucket(per_minute, now_s)
    bucket.resize(per_minute, now_s)
    return bucket


class KeyMeter:
    """What a key has used. `name` is the key's, for its owner."""

    __slots__ = ("_limits", "_open", "_requests", "_tokens", "name")

    def __init__(self, name: str, limits: KeyLimits, now_s: float) -> None:
        self.name = name
        self._open = 0
        self._requests: RateBucket | None = None
        self._tokens: RateBucket | None = None
        self.set_limits(limits, now_s)

    def set_limits(self, limits: KeyLimits, now_s: float) -> None:
        """Other limits from now on."""
        self._limits = limits
        self._requests = _resized(self._requests, limits.requests_per_minute, now_s)
        self._tokens = _resized(self._tokens, limits.tokens_per_minute, now_s)

    def begin(self, now_s: float) -> None:
        """Counts a request that begins, and must `end`. Raises AdmissionFullError."""
        most = self._limits.max_concurrent
        if most is not None and self._open >= most:
            raise AdmissionFullError(
                f"API key {self.name!r} has reached its limit of {most} requests at a time", CONCURRENCY_RETRY_S
            )
        if self._requests is not None:
            self._check("requests", self._requests, 1, now_s)
            self._requests.take(1)
        self._open += 1

    def reserve(self, tokens: int, now_s: float) -> int:
        """Takes the tokens that a request which has begun may use; how many, for `end`.

        Raises AdmissionFullError; the request then does not count.
        """
        if self._tokens is None:
            return 0
        try:
            self._check("tokens", self._tokens, tokens, now_s)
        except AdmissionFullError:
            if self._requests is not None:
                self._requests.take(-1)
            raise
        taken = min(tokens, self._tokens.per_minute)
        self._tokens.take(taken)
        return taken

    def end(self, reserved: int, used: int, now_s: float) -> None:
        """A request has ended: it reserved and used so many tokens."""
        self._open -= 1
        if self._tokens is not None:
            # What came in meanwhile counts first, lest what comes back finds no room.
            self._tokens.wait_s(0, now_s)
            self._tokens.take(used - reserved)

    def _check(self, what: str, bucket: RateBucket, amount: int, now_s: float) -> None:
        wait_s = bucket.wait_s(amount, now_s)
        if wait_s > 0:
            limit = f"its limit of {bucket.per_minute} {what} per minute"
            raise AdmissionFullError(f"API key {self.name!r} has reached {limit}", wait_s)
