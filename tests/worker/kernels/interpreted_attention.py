"""Triton's attention of decodes as its interpreter runs it, on a CPU."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PACKAGE = "services.worker.kernels.gpu"


def _made_anew(name: str) -> bool:
    """Triton too, whose own functions are interpreted or not; but its compiled part can't be loaded twice."""
    is_triton = name.partition(".")[0] == "triton" and not name.startswith("triton._C")
    return is_triton or name in (f"{PACKAGE}.paged_decode", f"{PACKAGE}.paged_attention")


@contextmanager
def interpreted_attention(parts: int = 2) -> Iterator[Any]:
    """The class PagedAttention, whose kernels are interpreted: that is chosen as modules are loaded. Every sequence is
    cut into so many parts.
    """
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if _made_anew(name)}
    try:
        with pytest.MonkeyPatch.context() as only_here:
            only_here.setenv("TRITON_INTERPRET", "1")
            kernel = importlib.import_module(f"{PACKAGE}.paged_decode")
            only_here.setattr(kernel, "parts_of", lambda programs, device: parts)
            yield importlib.import_module(f"{PACKAGE}.paged_attention").PagedAttention
    finally:
        for name in [name for name in sys.modules if _made_anew(name)]:
            del sys.modules[name]
        sys.modules.update(kept)
