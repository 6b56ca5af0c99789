"""Streams and events as torch.cuda's, on a machine without a GPU: what is enqueued is done at once."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch


class FakeCudaStream:
    """Does at once what it is given."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self.waited_for: list[FakeCudaEvent] = []

    def wait_event(self, event: "FakeCudaEvent") -> None:
        self.waited_for.append(event)

    def synchronize(self) -> None:
        """There is nothing to come."""


class FakeCudaEvent:
    """Tells when it was recorded."""

    def __init__(self, **_: bool) -> None:
        self.recorded_s: float | None = None

    def record(self, _: FakeCudaStream) -> None:
        self.recorded_s = time.perf_counter()

    def synchronize(self) -> None:
        """An event that is recorded has come."""

    def elapsed_time(self, later: "FakeCudaEvent") -> float:
        assert self.recorded_s is not None
        assert later.recorded_s is not None
        return (later.recorded_s - self.recorded_s) * 1e3


class FakeCudaRuntime:
    """What pins memory. `error` is what CUDA answers."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.pinned: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:
        assert flags == 0
        if self.error == 0:
            self.pinned[address] = size_bytes
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


def install(patch: pytest.MonkeyPatch) -> FakeCudaStream:
    """Puts the fakes where the worker looks for torch.cuda. Gives the stream of compute."""
    compute = FakeCudaStream()

    @contextlib.contextmanager
    def on_stream(_: FakeCudaStream) -> Iterator[None]:
        yield

    fakes: dict[str, Any] = {
        "Stream": FakeCudaStream,
        "Event": FakeCudaEvent,
        "stream": on_stream,
        "set_device": lambda _: None,
        "current_stream": lambda _: compute,
    }
    for name, fake in fakes.items():
        patch.setattr(torch.cuda, name, fake)
    return compute
