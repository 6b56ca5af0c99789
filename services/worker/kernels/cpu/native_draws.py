"""Draws by the compiled code, which are those of its steps: a job has the same tokens in a run of iterations and
outside of one, bit for bit.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from services.worker.kernels.cpu.decoder_library import InstructionSet, loaded
from services.worker.sampling.choices import draws_of
from services.worker.sampling.sampler import DrawRows, SampleRow


def native_draw(instruction_set: InstructionSet) -> DrawRows:
    """Does what services.worker.sampling.sampler.draw does, for rows of float32 in host memory. Raises CompileError or
    OSError.
    """
    fastserve_draw = loaded().fastserve_draw

    def draw_rows(logits_RV: Tensor, rows: Sequence[SampleRow]) -> Tensor:
        assert logits_RV.is_contiguous(), "the compiled code reads rows one after the other"
        row_count, vocabulary_size = logits_RV.shape
        draws = draws_of(rows)
        chosen_R = torch.empty(row_count, dtype=torch.int64)
        scratch = torch.empty(vocabulary_size, dtype=torch.int64)
        fastserve_draw(
            instruction_set,
            logits_RV.data_ptr(),
            row_count,
            vocabulary_size,
            draws.ctypes.data,
            scratch.data_ptr(),
            chosen_R.data_ptr(),
        )
        return chosen_R

    return draw_rows
