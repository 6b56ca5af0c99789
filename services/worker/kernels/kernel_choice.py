"""Which kernels a worker computes with: the compiled decoder (kernels/cpu), those of Triton (kernels/gpu), or torch's
operators.
"""

import logging
from typing import Literal

import torch

from services.domain.errors import InvalidFieldError
from services.worker.kernels.cpu.compiled import CompileError
from services.worker.kernels.cpu.decoder_library import best_instruction_set
from services.worker.kernels.cpu.native_decoder import NativeDecoder, why_not
from services.worker.kernels.gpu.recorded_decoder import RecordedDecoder, can_be_recorded
from services.worker.model.decoder import DecoderModel
from services.worker.model.loader import prepare
from services.worker.model.model_config import ModelConfig
from services.worker.model.served_decoder import ServedDecoder

_log = logging.getLogger(__name__)

Kernels = Literal["auto", "native", "torch"]


def computes_natively(
    kernels: Kernels, config: ModelConfig, device: torch.device, dtype: torch.dtype, *, says_why: bool = True
) -> bool:
    """Whether the compiled decoder is to compute this model. Compiles it if that has not been done yet; where `auto`
    can't have it, the log says why if `says_why`.

    Raises InvalidFieldError if `native` can't be.
    """
    if kernels == "torch" or (kernels == "auto" and device.type != "cpu"):
        return False
    why = _why_not(config, device, dtype)
    if why is None:
        return True
    if kernels == "native":
        raise InvalidFieldError("--kernels", f"native is not possible: {why}")
    if says_why:
        _log.warning("the compiled decoder is not used, torch computes: %s", why)
    return False


def computes_by_triton(kernels: Kernels, device: torch.device) -> bool:
    """Whether decodes are to be computed by Triton's kernels: on a GPU, unless torch is asked for, or Triton does not
    work here, which the log says. It needs a C compiler.
    """
    if kernels == "torch" or device.type != "cuda":
        return False
    try:
        from services.worker.kernels.gpu.paged_decode import try_out

        try_out(device)
    except Exception as error:  # whatever it lacks, torch computes the same
        _log.warning("Triton's kernels are not used, torch computes: %s", error)
        return False
    return True


def with_kernels(
    model: DecoderModel, natively: bool, *, quantized: bool = False, by_triton: bool = False, is_whole: bool = True
) -> ServedDecoder:
    """The filled model, ready to compute; with int8 weights if `quantized`, which torch does not have here. `is_whole`:
    it is no rank's share. A RecordedDecoder has still to record its passes.
    """
    assert natively or not quantized, "int8 weights are for the compiled decoder"
    if natively:
        decoder = NativeDecoder(model, torch.get_num_threads(), quantized=quantized)
        _log.info("the compiled decoder computes, with %s", decoder.instruction_set.name)
        return decoder
    prepare(model)
    if not by_triton:
        return model
    from services.worker.kernels.gpu.fused import fuse  # needs Triton
    from services.worker.kernels.gpu.paged_attention import PagedAttention

    model.attention = PagedAttention(model.config)
    fuse(model)
    return RecordedDecoder(model) if is_whole and can_be_recorded(model) else model


def _why_not(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str | None:
    if device.type != "cpu":
        return f"it computes on a CPU, not on {device.type}"
    if (why := why_not(config, dtype)) is not None:
        return f"it does not serve {why}"
    try:
        best = best_instruction_set()
    except (CompileError, OSError) as error:
        return str(error)
    return None if best is not None else "the processor lacks AVX2"
