"""Triton's attention as its interpreter runs it, on a CPU."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from services.worker.kernels.gpu import attention_work

PACKAGE = "services.worker.kernels.gpu"

_interpreted: dict[str, ModuleType] = {}
"""What was loaded to be interpreted, by name: Triton takes long to load."""


def _made_anew(name: str) -> bool:
    """Triton too, whose own functions are interpreted or not; but its compiled part can't be loaded twice."""
    is_triton = name.partition(".")[0] == "triton" and not name.startswith("triton._C")
    return is_triton or name.startswith((f"{PACKAGE}.paged_", f"{PACKAGE}.fused"))


def _taken_out() -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if _made_anew(name)}


def _put_in(modules: dict[str, ModuleType]) -> None:
    """Into their packages too, where a dotted name is looked up."""
    sys.modules.update(modules)
    for name, module in modules.items():
        package, _, last = name.rpartition(".")
        if package in sys.modules:
            setattr(sys.modules[package], last, module)


@contextmanager
def interpreted_attention(items: int = 8, joined: int = 2) -> Iterator[Any]:
    """The class PagedAttention, whose kernels are interpreted: that is chosen as modules are loaded. The contexts of
    decodes are cut into so many items, if they are long enough, of which so many are joined together.
    """
    pytest.importorskip("triton", minversion="3.7", reason="interpreters before it can't loop with NumPy 2.4")
    kept = _taken_out()
    _put_in(_interpreted)
    try:
        with pytest.MonkeyPatch.context() as only_here:
            only_here.setenv("TRITON_INTERPRET", "1")
            kernel = importlib.import_module(f"{PACKAGE}.paged_decode")
            only_here.setattr(kernel, "JOINED", joined)
            only_here.setattr(attention_work, "ITEMS_OF_PROCESSOR", items)
            yield importlib.import_module(f"{PACKAGE}.paged_attention").PagedAttention
    finally:
        _interpreted.update(_taken_out())
        _put_in(kept)
