"""Tiny random models of transformers, the reference, and ways to run the worker's decoder on the same tokens."""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import Tensor

from services.worker.kernels.attention_cuda import CudaAttention
from services.worker.kernels.cpu.decoder_library import InstructionSet, instruction_sets
from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.kv.pools import BlockShape
from services.worker.model.batch import BatchLayout, PagedKv, SequenceRows
from services.worker.model.decoder import DecoderModel
from services.worker.model.loader import filled_model, load_model
from services.worker.model.served_decoder import ServedDecoder

torch.set_num_threads(1)

VOCABULARY = 97
BLOCK_COUNT = 120
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 160,
    "attn_implementation": "eager",
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OPT_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "ffn_dim": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
    "attn_implementation": "eager",
    "pad_token_id": None,
}
FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "opt": "OPT"}
"""What the classes' names begin with. They are loaded when one is needed: that takes seconds, and every process that
collects tests has this module.
"""


def reference_model(family: str, **changes: Any) -> Any:
    """A transformers model whose every parameter, biases and norms too, is random and matters."""
    name = FAMILIES[family]
    config_class, model_class = getattr(transformers, f"{name}Config"), getattr(transformers, f"{name}ForCausalLM")
    shape = OPT_SHAPE if family == "opt" else SHAPE
    model = model_class(config_class(**{**shape, **changes})).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else noise * (0.2 if parameter.dim() > 1 else 0.5))
    return model


def ours_of(model: Any, dtype: torch.dtype = torch.float32, max_model_len: int | None = None) -> DecoderModel:
    """The worker's decoder with the same weights, by way of a folder."""
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_model(Path(folder), "cpu", dtype, max_model_len)


def native_of(
    model: Any,
    dtype: torch.dtype = torch.float32,
    instruction_set: InstructionSet | None = None,
    threads: int = 1,
    max_model_len: int | None = None,
    quantized: bool = False,
    coded: bool | None = None,
) -> NativeDecoder:
    """The compiled decoder with the same weights."""
    filled = filled_of(model, dtype, max_model_len)
    return NativeDecoder(filled, threads, instruction_set, quantized=quantized, coded=coded)


def filled_of(model: Any, dtype: torch.dtype, max_model_len: int | None = None) -> DecoderModel:
    """The worker's decoder with the same weights, before any kernels are chosen for it."""
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return filled_model(Path(folder), "cpu", dtype, max_model_len)


def reference_logits(model: Any, token_ids: Tensor) -> Tensor:
    """Logits of one full forward pass, [length, vocabulary]."""
    with torch.no_grad():
        logits: Tensor = model(token_ids[None]).logits[0].float()
    return logits


def tokens(count: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


@cache
def plain_pair() -> tuple[Any, DecoderModel]:
    """One grouped-query Llama and the decoder with its weights. Nothing changes them."""
    model = reference_model("llama", num_key_value_heads=2)
    return model, ours_of(model)


@cache
def native_pair() -> tuple[Any, NativeDecoder]:
    """The same for the compiled decoder."""
    model = plain_pair()[0]
    return model, native_of(model)


def every_way(model: Any) -> dict[str, ServedDecoder]:
    """The decoder with each kind of attention: those of float32 on a CPU, of bfloat16 on a CPU and of a GPU; and the
    compiled one for every instruction set of this processor.

    The second computes in float64 here, which takes the same way without bfloat16's rounding; the third is plain torch,
    which a CPU has too.
    """
    gpu = ours_of(model)
    gpu.attention = CudaAttention(gpu.config)
    ways: dict[str, ServedDecoder] = {"exact": ours_of(model), "fast": ours_of(model, torch.float64), "gpu": gpu}
    ways.update((each.name, native_of(model, instruction_set=each)) for each in instruction_sets())
    return ways


class Pool:
    """A small pool whose free blocks are handed out in a shuffled order, so that no sequence's blocks lie together."""

    def __init__(self, model: ServedDecoder, block_size: int = 4, seed: int = 0) -> None:
        self.block_size = block_size
        config = model.config
        shape = BlockShape(config.layer_count, block_size, config.kv_head_count, config.head_dim, model.dtype)
        self.cache = PagedKv(torch.zeros(shape.pool_shape(BLOCK_COUNT), dtype=model.dtype))
        self._free = list(range(BLOCK_COUNT))
        random.Random(seed).shuffle(self._free)

    def blocks(self, token_count: int) -> list[int]:
        return [self._free.pop() for _ in range(-(-token_count // self.block_size))]

    def run(self, model: ServedDecoder, sequences: Sequence[SequenceRows], token_ids: Sequence[Tensor]) -> Tensor:
        logits: Tensor = model(torch.cat(list(token_ids)), self.cache, BatchLayout.of(sequences, self.block_size))
        return logits

    def begun(self, model: ServedDecoder, texts: Sequence[Tensor]) -> list[SequenceRows]:
        """The decodes of these texts' last tokens, whose other tokens are in the pool."""
        rows = []
        for text in texts:
            length, blocks = len(text), self.blocks(len(text))
            if length > 1:
                self.run(model, [SequenceRows(0, length - 1, blocks, samples=False)], [text[:-1]])
            rows.append(SequenceRows(length - 1, length, blocks))
        return rows


def chunked_logits(model: ServedDecoder, token_ids: Tensor, chunks: Sequence[int], block_size: int = 4) -> Tensor:
    """Logits after each chunk of a sequence that is computed chunk by chunk, [chunks, vocabulary]."""
    pool = Pool(model, block_size)
    blocks = pool.blocks(len(token_ids))
    found = []
    for start, stop in spans(chunks):
        sequence = SequenceRows(start, stop, blocks, longest_tokens=len(token_ids))
        found.append(pool.run(model, [sequence], [token_ids[start:stop]]))
    return torch.cat(found)


def spans(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for size in sizes:
        yield start, start + size
        start += size
