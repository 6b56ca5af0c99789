"""Leaves the test process as it was: an engine sets its thread's floating-point mode, other tests draw subnormals."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _subnormals_after_each_test() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)
