"""A decoder whose iterations are one compiled call each. What it computes is what model/llama.py says.

Theory of operation
-------------------
It is made of a filled LlamaModel and takes its weights: each matrix is repacked into the panels of decoder.h, and its
plain form is dropped at once, so that a load needs memory for the model and one more matrix. Tied weights are kept
once: the embedding's rows are read out of the head's panels.

With int8 weights a matrix is rounded output by output when it is packed, and turned back, a piece at a time, when it is
multiplied; embedding, norms and KV keep their type. Tables and norms are float32; weights, KV and what is multiplied
in the model's type; sums, and what layers hand on, in float32. In bfloat16 this rounds less often than the plain path.

A call releases the interpreter's lock. `keep_going` is asked without it where it is a StepLimit, which the compiled
code reads itself.

Legend: see llama.py; P panels, W words, O outputs of a panel.
"""

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.kernels.cpu.decoder_library import (
    DecoderView,
    GoesOn,
    InstructionSet,
    LayerView,
    MatrixView,
    StepView,
    SumOfRanks,
    best_instruction_set,
    loaded,
)
from services.worker.model.batch import BatchLayout, PagedKv
from services.worker.model.linear import Linear
from services.worker.model.llama import DecoderLayer, LlamaModel
from services.worker.model.llama_config import LlamaConfig
from services.worker.model.model_config import ModelConfig
from services.worker.model.prefill_cut import PrefillCut, StepLimit
from services.worker.model.rope import Rope

PANEL = 64
LANES = 16
MOST_HEAD_SIZE = 1024
_ACTIVATIONS = {"silu": 0, "swish": 0, "gelu": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "relu": 3}
_DTYPES = (torch.bfloat16, torch.float32)


def why_not(config: ModelConfig, dtype: torch.dtype) -> str | None:
    """Why the compiled decoder does not serve a model, None if it does."""
    if not isinstance(config, LlamaConfig):
        return f"models of the family {config.family}"
    if not config.first_stage or not config.last_stage or config.head_rows is not None:
        return "a share of a model"
    if dtype not in _DTYPES:
        return f"weights of type {str(dtype).removeprefix('torch.')}"
    if config.head_dim > MOST_HEAD_SIZE:
        return f"heads of more than {MOST_HEAD_SIZE} dimensions"
    return None


class NativeDecoder:
    """Used as a DecoderModel is. One forward pass at a time.

    Raises CompileError if it can't be compiled, OSError if it can't be loaded, and MemoryError.
    """

    def __init__(
        self,
        model: LlamaModel,
        threads: int,
        instruction_set: InstructionSet | None = None,
        *,
        quantized: bool = False,
    ) -> None:
        self._quantized = quantized
        assert isinstance(model.config, LlamaConfig), "a LlamaModel has the config of its family"
        self.config: ModelConfig = model.config
        self._llama = model.config
        self.max_model_len = model.max_model_len
        self.dtype = model.dtype
        self.device = torch.device("cpu")
        self.rope = Rope(self._llama.rope, self._llama.head_dim, self.max_model_len, torch.float32)
        self.instruction_set = instruction_set or best_instruction_set()
        self.kept: list[Tensor] = []  # all that the compiled code reads
        self._layers = (LayerView * self.config.layer_count)(*(self._layer(model, n) for n in range(len(model.layers))))
        self._view = self._described(model, threads)
        self._library = loaded()
        engine = self._library.fastserve_engine(self._view, self.instruction_set or 0)
        if engine is None:
            raise MemoryError("the compiled decoder gets no memory, or the processor lacks its instruction set")
        self._engine = ctypes.c_void_p(engine)
        # Not at the end of the process, when a step may still be under way.
        weakref.finalize(self, self._library.fastserve_close, self._engine).atexit = False

    def pool_shape(self, block_count: int, block_size: int) -> tuple[int, int, int, int, int, int]:
        """Shape of a PagedKv pool of `block_count` blocks."""
        return (block_count, self.config.layer_count, 2, block_size, self.config.kv_head_count, self.config.head_dim)

    def __call__(
        self,
        token_ids_T: Tensor,
        cache: PagedKv,
        batch: BatchLayout,
        keep_going: Callable[[], bool] | None = None,
    ) -> Tensor:
        """Logits of the rows that `batch.logit_rows` names, float32 [S, V].

        `keep_going` is asked before every layer; raises PrefillCut if it says no.
        """
        logits_SV = torch.empty(batch.logit_rows.shape[0], self.config.vocabulary_size)
        self.compute(token_ids_T, cache, batch, keep_going, logits_SV=logits_SV)
        return logits_SV

    def compute(
        self,
        token_ids_T: Tensor | None,
        cache: PagedKv,
        batch: BatchLayout,
        keep_going: Callable[[], bool] | None = None,
        *,
        first_layer: int = 0,
        stop_layer: int | None = None,
        hidden_in_TD: Tensor | None = None,
        hidden_out_TD: Tensor | None = None,
        logits_SV: Tensor | None = None,
        sum_of_ranks: Callable[[Any, int], None] | None = None,
    ) -> None:
        """Computes layers first_layer to stop_layer - 1, from tokens or from the hidden states of the layer before, and
        fills what is asked for: hidden states, logits. All tensors are contiguous and float32.

        `sum_of_ranks` is called twice a layer with an address of floats and their count, and adds up the parts of all
        ranks there.
        """
        assert cache.pool.dtype == self.dtype, "the pool's type is the model's"
        rope_rows_T = self.rope.rows(batch)
        step = StepView(
            positions=batch.position_ids_T.data_ptr(),
            rope_rows=rope_rows_T.data_ptr(),
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
            first_layer=first_layer,
            stop_layer=self.config.layer_count if stop_layer is None else stop_layer,
            token_ids=_address(token_ids_T),
            hidden_in=_address(hidden_in_TD),
            hidden_out=_address(hidden_out_TD),
            logits=_address(logits_SV),
        )
        if isinstance(keep_going, StepLimit):
            step.given_up, step.deadline_ns = keep_going.address, keep_going.deadline_ns
        elif keep_going is not None:
            step.goes_on = GoesOn(keep_going)
        if sum_of_ranks is not None:
            step.sum = SumOfRanks(sum_of_ranks)
        if self._library.fastserve_step(self._engine, step):
            raise PrefillCut

    # --- packing ------------------------------------------------------------------------------------------------------

    def _described(self, model: LlamaModel, threads: int) -> DecoderView:
        config = self._llama
        half = config.head_dim // 2
        assert model.head is not None, "a whole model"
        assert model.norm is not None, "a whole model"
        assert model.embedding is not None, "a whole model"
        shared = config.tied_embeddings and not self._quantized
        embedding = None if shared else self._keep(model.embedding.data)
        head = self._matrix(model.head)
        model.embedding.data = model.embedding.data.new_empty(0)
        return DecoderView(
            is_bfloat16=self.dtype == torch.bfloat16,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            heads=config.head_count,
            kv_heads=config.kv_head_count,
            head_size=config.head_dim,
            vocabulary=config.vocabulary_size,
            layer_count=config.layer_count,
            activation=_ACTIVATIONS[config.activation],
            threads=threads,
            layers=self._layers,
            embedding=embedding,
            head=head,
            norm=self._vector(model.norm.weight),
            cosines=self._keep(self.rope.cosines_ME[:, half:].contiguous()),
            sines=self._keep(self.rope.sines_ME[:, half:].contiguous()),
            epsilon=config.norm_epsilon,
        )

    def _layer(self, model: LlamaModel, number: int) -> LayerView:
        layer = model.layers[number]
        assert isinstance(layer, DecoderLayer)
        attention = layer.attention
        query_norm, key_norm = attention.query_norm, attention.key_norm
        return LayerView(
            query_key_value=self._matrix(attention.qkv),
            attention_output=self._matrix(attention.output),
            gate_up=self._matrix(layer.feed_forward.gate_up, halves=True),
            down=self._matrix(layer.feed_forward.down),
            attention_norm=self._vector(layer.attention_norm.weight),
            feed_forward_norm=self._vector(layer.feed_forward_norm.weight),
            query_norm=None if query_norm is None else self._vector(query_norm.weight),
            key_norm=None if key_norm is None else self._vector(key_norm.weight),
            window=self.config.windows[number] or 0,
        )

    def _matrix(self, linear: Linear, *, halves: bool = False) -> MatrixView:
        """Packs a layer and drops its plain weight. `halves`: outputs of both halves share a panel."""
        weight = linear.weight.data
        linear.weight.data = weight.new_empty(0)
        outputs, inputs = weight.shape
        arranged = _halves_together if halves else _whole_panels
        rows_NK = arranged(weight)
        bias = None if linear.bias is None else self._keep(arranged(linear.bias.data.float()))
        view = MatrixView(bias=bias, outputs=rows_NK.shape[0] if halves else outputs, inputs=inputs)
        if self._quantized:
            scales_N, panels = quantized_panels(rows_NK, word_numbers=4 // weight.itemsize)
            view.quantized, view.scales = self._keep(panels), self._keep(scales_N)
        else:
            view.packed = self._keep(packed_panels(rows_NK))
        return view

    def _vector(self, weight: Tensor) -> int:
        return self._keep(_whole_panels(weight.data.float()))

    def _keep(self, tensor: Tensor) -> int:
        self.kept.append(tensor)
        return tensor.data_ptr()


def packed_panels(weight_NK: Tensor) -> Tensor:
    """Panels of words, int32 [P, W, O], of a weight of whole panels."""
    if weight_NK.dtype == torch.bfloat16:
        weight_NK = F.pad(weight_NK, (0, weight_NK.shape[1] % 2)).contiguous()
    words_NW = weight_NK.view(torch.int32)
    return words_NW.view(-1, PANEL, words_NW.shape[1]).transpose(1, 2).contiguous()


def quantized_panels(weight_NK: Tensor, word_numbers: int) -> tuple[Tensor, Tensor]:
    """Scales of the outputs, float32 [N], and int8 panels, [P, W, groups of 16 outputs, numbers of a word, 16]. An
    output's greatest weight becomes 127 or -127.
    """
    weight_NK = F.pad(weight_NK.float(), (0, -weight_NK.shape[1] % word_numbers))
    scales_N = weight_NK.abs().amax(dim=1).div_(127).clamp_(min=torch.finfo(torch.float32).tiny)
    whole_NK = weight_NK.div_(scales_N[:, None]).round_().clamp_(-127, 127).to(torch.int8)
    split = whole_NK.view(-1, PANEL // LANES, LANES, whole_NK.shape[1] // word_numbers, word_numbers)
    return scales_N, split.permute(0, 3, 1, 4, 2).contiguous()


def _whole_panels(rows: Tensor) -> Tensor:
    """Padded with zeros to whole panels of rows."""
    missing = -rows.shape[0] % PANEL
    return torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:]))) if missing else rows.contiguous()


def _halves_together(rows: Tensor) -> Tensor:
    """Rows of gate, then of up, as panels that hold 32 rows of gate and the same 32 of up."""
    half = PANEL // 2
    missing = -(rows.shape[0] // 2) % half
    parts = [torch.cat((part, part.new_zeros(missing, *part.shape[1:]))) for part in rows.chunk(2)]
    return torch.stack([part.view(-1, half, *part.shape[1:]) for part in parts], dim=1).flatten(0, 2)


def _address(tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    assert tensor.is_contiguous(), "the compiled code reads rows one after the other"
    return tensor.data_ptr()
