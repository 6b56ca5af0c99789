"""The compiled library by ctypes: the structures of decoder.h and its functions. See there for what they mean."""

import ctypes
from enum import IntEnum
from functools import cache
from pathlib import Path

from services.worker.kernels.cpu.compiled import library


class InstructionSet(IntEnum):
    """What the decoder is compiled for. A processor that has one has those before it."""

    AVX2 = 1
    AVX512 = 2
    AVX512_BF16 = 3
    AMX_BF16 = 4


def _fields(kind: type, *names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names]


_WORD, _ADDRESS = ctypes.c_int64, ctypes.c_void_p
GoesOn = ctypes.CFUNCTYPE(ctypes.c_int32)
SumOfRanks = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)


CODED_BYTES = 192
"""Of a panel's word."""


class CodedView(ctypes.Structure):
    _fields_ = (*_fields(_ADDRESS, "bytes", "upper_bytes", "first_whole", "whole_at", "whole"),)


class MatrixView(ctypes.Structure):
    _fields_ = (
        *_fields(_ADDRESS, "packed", "quantized"),
        ("coded", CodedView),
        *_fields(_ADDRESS, "scales", "bias"),
        *_fields(_WORD, "outputs", "inputs"),
    )


class NormView(ctypes.Structure):
    _fields_ = (*_fields(_ADDRESS, "weight", "bias"),)


class LayerView(ctypes.Structure):
    _fields_ = (
        *_fields(MatrixView, "query_key_value", "attention_output", "up", "down"),
        *_fields(NormView, "attention_norm", "feed_forward_norm"),
        *_fields(_ADDRESS, "query_norm", "key_norm"),
        ("window", _WORD),
    )


class DecoderView(ctypes.Structure):
    _fields_ = (
        *_fields(_WORD, "is_bfloat16", "hidden_size", "embedding_size", "intermediate_size", "heads", "kv_heads"),
        *_fields(_WORD, "head_size", "vocabulary", "first_logit", "layer_count", "activation", "gated", "norms_after"),
        ("threads", _WORD),
        ("layers", ctypes.POINTER(LayerView)),
        *_fields(_ADDRESS, "embedding", "positions"),
        *_fields(MatrixView, "project_in", "project_out", "head"),
        ("norm", NormView),
        *_fields(_ADDRESS, "cosines", "sines"),
        ("epsilon", ctypes.c_float),
    )


class StepView(ctypes.Structure):
    _fields_ = (
        *_fields(_ADDRESS, "token_ids", "positions", "rope_rows", "block_table", "context_lengths", "logit_rows"),
        *_fields(_WORD, "rows", "sequences", "table_width", "logit_count"),
        ("pool", _ADDRESS),
        *_fields(_WORD, "block_size", "pool_layers", "first_layer", "stop_layer"),
        *_fields(_ADDRESS, "hidden_in", "hidden_out", "logits", "given_up"),
        ("deadline_ns", _WORD),
        ("goes_on", GoesOn),
        ("sum", SumOfRanks),
        ("iterations", _WORD),
        *_fields(_ADDRESS, "rows_left", "last_tokens"),
        ("last_token_count", _WORD),
        *_fields(_ADDRESS, "draws", "adjustments", "chosen", "ended_ns"),
    )


@cache
def loaded(path: Path | None = None) -> ctypes.CDLL:
    """The library, compiled now if it is not yet. Raises CompileError, or OSError if it can't be loaded."""
    functions = ctypes.CDLL(str(path or library()))
    functions.fastserve_last_instruction_set.restype = ctypes.c_int
    functions.fastserve_best_instruction_set.restype = ctypes.c_int
    functions.fastserve_engine.restype = ctypes.c_void_p
    functions.fastserve_engine.argtypes = [ctypes.POINTER(DecoderView), ctypes.c_int]
    functions.fastserve_close.restype = None
    functions.fastserve_close.argtypes = [ctypes.c_void_p]
    functions.fastserve_step.restype = ctypes.c_int
    functions.fastserve_step.argtypes = [ctypes.c_void_p, ctypes.POINTER(StepView)]
    functions.fastserve_draw.restype = None
    functions.fastserve_draw.argtypes = [ctypes.c_int, _ADDRESS, _WORD, _WORD, _ADDRESS, _ADDRESS, _ADDRESS]
    functions.fastserve_code.restype = ctypes.c_int64
    functions.fastserve_code.argtypes = [_ADDRESS, _WORD, _ADDRESS, _ADDRESS, _ADDRESS]
    functions.fastserve_taken_over.restype = ctypes.c_int64
    functions.fastserve_taken_over.argtypes = [ctypes.c_void_p]
    return functions


def instruction_sets() -> list[InstructionSet]:
    """Those of this processor. Raises CompileError or OSError."""
    last = loaded().fastserve_last_instruction_set()
    return [each for each in InstructionSet if each <= last]


def best_instruction_set() -> InstructionSet | None:
    """The one that multiplies most on this processor, None if it has none of them. Raises CompileError or OSError."""
    number = loaded().fastserve_best_instruction_set()
    return InstructionSet(number) if number else None


def best_program() -> str:
    """What computes where that instruction set is there: what was measured of another program says little of it."""
    instruction_set = best_instruction_set()
    assert instruction_set is not None, "the compiled decoder computes here"
    return f"{instruction_set.name} of {library().stem}"
