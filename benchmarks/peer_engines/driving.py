"""Jobs driven through a peer's engine, and when their tokens came. Runs in the peer's environment, so it knows the
standard library alone.

Theory of operation
-------------------
A peer is asked step by step, as its own server does: jobs that have arrived are added, then one step runs, then the
tokens that it made are noted with the time. Arrivals during a step wait for its end. A peer that works in threads or a
process of its own gives a step's tokens whenever it has some, and waits no longer than to the next arrival.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

IDLE_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class TimedJob:
    """A prompt and the number of tokens to make from it; `arrival_s` counts from the start of the run."""

    arrival_s: float
    prompt: tuple[int, ...]
    output_tokens: int


@dataclass(slots=True)
class TimedOutput:
    """The tokens of a job and when each came to hand, in seconds from the start of the run."""

    token_ids: list[int]
    times_s: list[float]


class PeerEngine(Protocol):
    """An engine with continuous batching. Jobs are known by numbers, which are never used twice."""

    def add(self, number: int, prompt: Sequence[int], output_tokens: int, watched: bool) -> None:
        """Adds a job that makes exactly so many tokens, greedily. The tokens of a job that is not watched may all come
        at its end.
        """

    def step(self, limit_s: float) -> list[tuple[int, Sequence[int]]]:
        """New tokens of jobs. Runs an iteration; an engine that works by itself waits at most `limit_s` for tokens."""


class Clock:
    """The time since it was made."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    def now_s(self) -> float:
        """Seconds."""
        return time.perf_counter() - self._began_s

    def wait(self, seconds: float) -> None:
        """Sleeps."""
        time.sleep(seconds)


class WrongLengthError(Exception):
    """An engine made more or fewer tokens than a job asked for."""


def drive(
    engine: PeerEngine, jobs: Sequence[TimedJob], clock: Clock, first_number: int, watched: bool = False
) -> list[TimedOutput]:
    """The outputs of all jobs, which must be in order of arrival. Raises WrongLengthError."""
    outputs = [TimedOutput([], []) for _ in jobs]
    waiting = deque(enumerate(jobs))
    running: set[int] = set()
    while waiting or running:
        while waiting and waiting[0][1].arrival_s <= clock.now_s():
            place, job = waiting.popleft()
            engine.add(first_number + place, job.prompt, job.output_tokens, watched)
            running.add(place)
        until_next_s = max(waiting[0][1].arrival_s - clock.now_s(), 0.0) if waiting else IDLE_WAIT_S
        if not running:
            clock.wait(until_next_s)
            continue
        for number, token_ids in engine.step(until_next_s):
            place = number - first_number
            output, asked = outputs[place], jobs[place].output_tokens
            output.token_ids += token_ids
            output.times_s += [clock.now_s()] * len(token_ids)
            if len(output.token_ids) > asked:
                raise WrongLengthError(f"a job of {asked} tokens made {len(output.token_ids)}")
            if len(output.token_ids) == asked:
                running.remove(place)
    return outputs


def trace_figures(jobs: Sequence[TimedJob], outputs: Sequence[TimedOutput]) -> dict[str, float]:
    """What a trace run is told by: the time to its last token, its tokens, and job completion times in seconds."""
    jcts_s = sorted(output.times_s[-1] - job.arrival_s for job, output in zip(jobs, outputs, strict=True))
    duration_s = max(output.times_s[-1] for output in outputs)
    tokens = sum(len(output.token_ids) for output in outputs)
    return {
        "duration_s": duration_s,
        "output_tokens": tokens,
        "output_tokens_per_s": tokens / duration_s,
        "mean_jct_s": sum(jcts_s) / len(jcts_s),
        "p95_jct_s": jcts_s[min(int(0.95 * len(jcts_s)), len(jcts_s) - 1)],
    }
