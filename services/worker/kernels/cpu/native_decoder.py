"""A decoder whose iterations are one compiled call each. What it computes is what model/llama.py and model/opt.py say.

Theory of operation
-------------------
It is made of a filled model, or of a rank's share of one, and takes its weights: each matrix is repacked into the
panels of decoder.h, and its plain form is dropped at once (packed_weights.py). With int8 weights a matrix is turned
back, a piece at a time, when it is multiplied. Tables and norms are float32; weights, KV and what is multiplied in the
model's type; sums, and what layers hand on, in float32. In bfloat16 this rounds less often than the plain path.

A share begins and ends with hidden states where other stages have the rest. They are float32 in every type, so that
stages change no bit. With several ranks a stage the compiled code calls back for the two sums of every layer, with
the parts of all rows, float32.

A call releases the interpreter's lock. `keep_going` is asked without it where it is a StepLimit, which the compiled
code reads itself.

Legend: see llama.py.
"""

import ctypes
import weakref
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from services.worker.kernels.cpu.decoder_library import (
    DecoderView,
    GoesOn,
    InstructionSet,
    StepView,
    SumOfRanks,
    best_instruction_set,
    loaded,
)
from services.worker.kernels.cpu.decoder_views import llama_view, opt_view
from services.worker.kernels.cpu.packed_weights import PackedWeights
from services.worker.model.batch import BatchLayout, PagedKv
from services.worker.model.decoder import DecoderModel
from services.worker.model.llama import LlamaModel
from services.worker.model.llama_config import LlamaConfig
from services.worker.model.model_config import ModelConfig
from services.worker.model.opt import OptModel
from services.worker.model.opt_config import OptConfig
from services.worker.model.prefill_cut import PrefillCut, StepLimit
from services.worker.model.rope import Rope
from services.worker.sampling.choices import Choices

MOST_HEAD_SIZE = 1024
_DTYPES = (torch.bfloat16, torch.float32)
_CODED = (InstructionSet.AVX512, InstructionSet.AVX512_BF16)
"""Where weights are coded unless it is said otherwise: reading them takes longer than decoding them."""


def why_not(config: ModelConfig, dtype: torch.dtype) -> str | None:
    """Why the compiled decoder does not serve a model, None if it does."""
    if not isinstance(config, LlamaConfig | OptConfig):
        return f"models of the family {config.family}"
    if dtype not in _DTYPES:
        return f"weights of type {str(dtype).removeprefix('torch.')}"
    if config.head_dim > MOST_HEAD_SIZE:
        return f"heads of more than {MOST_HEAD_SIZE} dimensions"
    if config.head_dim % 2:
        return f"heads of {config.head_dim} dimensions, an odd number"
    return None


class NativeDecoder:
    """Used as a DecoderModel is. One forward pass at a time.

    Raises CompileError if it can't be compiled, OSError if it can't be loaded, and MemoryError.
    """

    hidden_dtype = torch.float32

    def __init__(
        self,
        model: DecoderModel,
        threads: int,
        instruction_set: InstructionSet | None = None,
        *,
        quantized: bool = False,
        coded: bool | None = None,
    ) -> None:
        self.config: ModelConfig = model.config
        self.max_model_len = model.max_model_len
        self.dtype = model.dtype
        self.device = torch.device("cpu")
        self.add_up: Callable[[Tensor], None] | None = None
        """Replaces the parts of a product, which other ranks have in the same shape, by the sum of all."""
        self._rope: Rope | None = None
        self._library = loaded()
        chosen_set = instruction_set or best_instruction_set()
        weights = PackedWeights(
            quantized=quantized,
            coded=chosen_set in _CODED if coded is None else coded,
            by_vector=chosen_set == InstructionSet.AVX2,
        )
        self.kept = weights.kept
        self._view = self._described(model, weights)
        self._view.threads = threads
        engine = self._library.fastserve_engine(self._view, chosen_set or 0)
        if engine is None or chosen_set is None:
            raise MemoryError("the compiled decoder gets no memory, or the processor lacks its instruction set")
        self.instruction_set = chosen_set
        self._engine = ctypes.c_void_p(engine)
        # Not at the end of the process, when a step may still be under way.
        weakref.finalize(self, self._library.fastserve_close, self._engine).atexit = False

    def _described(self, model: DecoderModel, weights: PackedWeights) -> DecoderView:
        if isinstance(model, OptModel):
            return opt_view(model, weights)
        assert isinstance(model, LlamaModel), "why_not has refused the others"
        config = model.config
        assert isinstance(config, LlamaConfig), "a LlamaModel has the config of its family"
        self._rope = Rope(config.rope, config.head_dim, model.max_model_len, torch.float32)
        return llama_view(model, self._rope, weights)

    @property
    def taken_over(self) -> int:
        """Units of work so far that one thread took over from another, which had lost its core (team.cpp)."""
        return int(self._library.fastserve_taken_over(self._engine))

    def pool_shape(self, block_count: int, block_size: int) -> tuple[int, int, int, int, int, int]:
        """Shape of a PagedKv pool of `block_count` blocks."""
        return (block_count, self.config.layer_count, 2, block_size, self.config.kv_head_count, self.config.head_dim)

    def __call__(
        self,
        inputs: Tensor,
        cache: PagedKv,
        batch: BatchLayout,
        keep_going: Callable[[], bool] | None = None,
    ) -> Tensor:
        """Logits of the rows that `batch.logit_rows` names, float32 [S, V]; or, if the model is not the last stage, the
        hidden states of all rows, float32 [T, D].

        `inputs` are token ids [T], or hidden states if the model is not the first stage. `keep_going` is asked before
        every layer; raises PrefillCut if it says no, and what `add_up` raises.
        """
        config = self.config
        if config.last_stage:
            token_count = config.vocabulary_size if config.head_rows is None else len(config.head_rows)
            output = torch.empty(batch.logit_rows.shape[0], token_count)
        else:
            output = torch.empty(batch.row_count, config.hidden_size)
        self.compute(
            cache,
            batch,
            keep_going,
            token_ids_T=inputs if config.first_stage else None,
            hidden_in_TD=None if config.first_stage else inputs,
            hidden_out_TD=None if config.last_stage else output,
            logits_SV=output if config.last_stage else None,
        )
        return output

    def compute(
        self,
        cache: PagedKv,
        batch: BatchLayout,
        keep_going: Callable[[], bool] | None = None,
        *,
        first_layer: int = 0,
        stop_layer: int | None = None,
        token_ids_T: Tensor | None = None,
        hidden_in_TD: Tensor | None = None,
        hidden_out_TD: Tensor | None = None,
        logits_SV: Tensor | None = None,
    ) -> None:
        """Computes layers first_layer to stop_layer - 1, from tokens or from the hidden states of the layer before, and
        fills what is asked for: hidden states, logits. All tensors are contiguous, all but the tokens float32. Raises
        like a call.
        """
        assert (token_ids_T is None) != (hidden_in_TD is None), "a pass begins from one of them"
        rope_rows_T = self._rope_rows(batch)
        step = self._step(cache, batch)
        step.rope_rows = _address(rope_rows_T)
        step.first_layer = first_layer
        step.stop_layer = self.config.layer_count if stop_layer is None else stop_layer
        step.token_ids, step.hidden_in = _address(token_ids_T), _address(hidden_in_TD)
        step.hidden_out, step.logits = _address(hidden_out_TD), _address(logits_SV)
        self._run(step, keep_going)

    def next_tokens(
        self,
        token_ids: Sequence[int],
        cache: PagedKv,
        batch: BatchLayout,
        rows_left: Sequence[int],
        last_token_ids: Collection[int] = (),
        keep_going: Callable[[], bool] | None = None,
        choices: Choices | None = None,
    ) -> list[tuple[list[int], int]]:
        """The tokens of one iteration, or of several in one call, each of which goes on from the tokens of the one
        before. The model is whole. `choices` are of the first iteration, and counted on in place; without them every
        token is the likeliest.

        One iteration is of any batch: `rows_left` is [number of its logit rows]. The first of several has decodes
        alone, and its block table the blocks of all. Of its rows, the first `rows_left[i]` take part in iteration i,
        which is the last if it gives one of `last_token_ids`.

        Returns for each iteration that was computed its tokens, and when it ended, in nanoseconds of the monotonic
        clock. Raises like a call.
        """
        count, logit_count = len(rows_left), batch.logit_rows.shape[0]
        logits_SV = torch.empty(logit_count, self.config.vocabulary_size)
        # What has a row for each iteration: positions, then what follows from them.
        positions_IT, rope_rows_IT = batch.position_ids_T, self._rope_rows(batch)
        lengths_IS = batch.context_lengths_S
        if count > 1:
            assert batch.row_count == batch.decode_count == logit_count, "decodes alone"
            ahead_I = torch.arange(count)[:, None]
            positions_IT, rope_rows_IT = positions_IT + ahead_I, rope_rows_IT + ahead_I
            lengths_IS = lengths_IS + ahead_I
        chosen = torch.empty(count, logit_count, dtype=torch.int64)
        ended_I = torch.zeros(count, dtype=torch.int64)
        token_ids_T, rows_left_I = torch.tensor(token_ids), torch.tensor(rows_left)
        last_tokens = torch.tensor(list(last_token_ids), dtype=torch.int64)
        step = self._step(cache, batch)
        step.stop_layer = self.config.layer_count
        step.positions, step.rope_rows = _address(positions_IT), _address(rope_rows_IT)
        step.context_lengths = _address(lengths_IS)
        step.token_ids, step.logits = _address(token_ids_T), _address(logits_SV)
        step.iterations, step.rows_left = count, _address(rows_left_I)
        step.last_tokens, step.last_token_count = _address(last_tokens), len(last_tokens)
        if choices is not None:
            step.draws, step.adjustments = choices.draws.ctypes.data, choices.adjustments_address
        step.chosen, step.ended_ns = _address(chosen), _address(ended_I)
        self._run(step, keep_going)
        chosen_ids: list[list[int]] = chosen.tolist()
        ended_ns: list[int] = ended_I.tolist()
        return [
            (tokens[:rows], ended) for tokens, rows, ended in zip(chosen_ids, rows_left, ended_ns, strict=True) if ended
        ]

    def _rope_rows(self, batch: BatchLayout) -> Tensor:
        return batch.position_ids_T if self._rope is None else self._rope.rows(batch)

    def _step(self, cache: PagedKv, batch: BatchLayout) -> StepView:
        """What every call says of its batch."""
        assert cache.pool.dtype == self.dtype, "the pool's type is the model's"
        return StepView(
            positions=batch.position_ids_T.data_ptr(),
            block_table=batch.block_table_SP.data_ptr(),
            context_lengths=batch.context_lengths_S.data_ptr(),
            logit_rows=batch.logit_rows.data_ptr(),
            rows=batch.row_count,
            sequences=len(batch.sequences),
            table_width=batch.block_table_SP.shape[1],
            logit_count=batch.logit_rows.shape[0],
            pool=cache.pool.data_ptr(),
            block_size=batch.block_size,
            pool_layers=cache.layer_count,
        )

    def _run(self, step: StepView, keep_going: Callable[[], bool] | None) -> None:
        if isinstance(keep_going, StepLimit):
            step.given_up, step.deadline_ns = keep_going.address, keep_going.deadline_ns
        elif keep_going is not None:
            step.goes_on = GoesOn(keep_going)
        sums = None if self.add_up is None else _Sums(self.add_up)
        if sums is not None:
            step.sum = SumOfRanks(sums)
        was_cut = self._library.fastserve_step(self._engine, step)
        if sums is not None and sums.error is not None:
            raise sums.error
        if was_cut:
            raise PrefillCut


class _Sums:
    """What the compiled code calls for a sum. An error is kept until its caller can raise it."""

    def __init__(self, add_up: Callable[[Tensor], None]) -> None:
        self._add_up = add_up
        self.error: BaseException | None = None

    def __call__(self, address: int, count: int) -> int:
        try:
            self._add_up(torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32))
        except BaseException as error:
            self.error = error
            return 0
        return 1


def _address(tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    assert tensor.is_contiguous(), "the compiled code reads rows one after the other"
    return tensor.data_ptr()
