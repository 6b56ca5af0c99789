"""Triton's kernels compile for GPUs of two generations, which needs no GPU: Triton's interpreter, with which the other
tests run them, allows what its compiler does not.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from services.worker.kernels.kernel_choice import with_kernels
from services.worker.model.batch import SequenceRows
from tests.worker.model.reference_models import Pool, filled_of, reference_model, tokens

triton = pytest.importorskip("triton", minversion="3.6")

TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.int64: "*i64"}
SHARED_BYTES = {80: 163 << 10, 90: 227 << 10}
"""What a program may have of a processor's memory: compute capability 8.0 (A100) and 9.0 (H100, H200)."""
KERNELS = {"_write_row", "_attend_item", "_join_slots", "_attend_tile", "_rotate_heads", "_norm_row", "_gate_row"}


class Compiler:
    """Compiles what is launched, and launches nothing."""

    def __init__(self, capability: int) -> None:
        self._target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
        self.shared_bytes: dict[str, int] = {}

    def run(self, kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        given = dict(zip(kernel.arg_names, arguments, strict=True))
        constants = {(each.num,): given[each.name] for each in kernel.params if each.is_constexpr}
        types = {each.name: "constexpr" if each.is_constexpr else type_of(given[each.name]) for each in kernel.params}
        source = triton.compiler.ASTSource(kernel, types, constants)
        made = triton.compile(source, target=self._target, options=options)
        self.shared_bytes[kernel.__name__] = made.metadata.shared


def type_of(argument: Any) -> str:
    if isinstance(argument, torch.Tensor):
        return TYPES[argument.dtype]
    return "i32" if isinstance(argument, int) else "fp32"


@pytest.fixture(params=SHARED_BYTES)
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    compiler = Compiler(request.param)
    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", lambda kernel, *a, **o: compiler.run(kernel, *a, **o))
    yield compiler
    assert max(compiler.shared_bytes.values()) <= SHARED_BYTES[request.param]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_they_compile_for_heads_of_128_in_every_type(dtype: torch.dtype, compiler: Compiler) -> None:
    reference = reference_model("llama", hidden_size=256, head_dim=128, num_attention_heads=4, num_key_value_heads=1)
    model = with_kernels(filled_of(reference, dtype), False, by_triton=True)
    pool = Pool(model)
    pool.run(model, [SequenceRows(0, 1, pool.blocks(1)), SequenceRows(0, 5, pool.blocks(5))], [tokens(1), tokens(5)])
    assert set(compiler.shared_bytes) == KERNELS
