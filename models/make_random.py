"""Writes model folders with random weights, of any shape, in seconds, for measurements and tests.

Theory of operation
-------------------
Matrices are normal with variance 1 / fan-in, so that every layer adds about as much as it gets and the context
matters; embedding and head are scaled so that logits spread by LOGIT_DEVIATION, which sets the two best of them apart
by about LOGIT_DEVIATION * ln 2 / sqrt(2 ln vocabulary), 0.5 at usual vocabularies.  Numbers come from one generator
with the given seed, tensor by tensor in a fixed order: the same command writes the same bytes.

The tokenizer is byte-level: special tokens, the 256 bytes, then made-up merges of two, three and four letters up to
the vocabulary, so that every text can be encoded and every id decodes to some text.

    python models/make_random.py --preset S
    python models/make_random.py --preset 8B --device cuda    # 16 GB, whose numbers a GPU draws in seconds: others
    python models/make_random.py --out models/random/x --hidden 256 --layers 4 --heads 8 --kv-heads 2 --intermediate 704
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers import models as tokenizer_models
from torch import Tensor

from models.folder import (
    BEGIN_ID,
    BEGIN_OF_TEXT,
    END_IDS,
    SPECIAL_TOKENS,
    generation_config,
    tokenizer_config,
    write_folder,
)

LOGIT_DEVIATION = 3.0
VOCABULARY_MIN = len(SPECIAL_TOKENS) + 256
VOCABULARY_MAX = VOCABULARY_MIN + 26**2 + 26**3 + 26**4
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "opt": "OPTForCausalLM",
}


class ShapeError(ValueError):
    """The requested shape can't be built; the message names the figure."""


@dataclass(frozen=True, slots=True)
class RandomModel:
    """Everything that determines the bytes of a folder. The last two are for OPT: the width of the embeddings if it is
    not that of the layers, and whether norms come after attention and feed-forward; the 350m model has both.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    context: int = 2048
    dtype: str = "bfloat16"
    tied: bool = False
    family: str = "llama"
    seed: int = 0
    head_size: int | None = None
    embedding: int | None = None
    norm_after: bool = False

    @property
    def head_dim(self) -> int:
        return self.head_size or self.hidden // self.heads

    def validate(self) -> None:
        """Raises ShapeError if no model can have this shape."""
        for name in ("hidden", "layers", "heads", "kv_heads", "intermediate", "context"):
            if getattr(self, name) < 1:
                raise ShapeError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise ShapeError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_size is None and self.hidden % self.heads:
            raise ShapeError(
                f"hidden ({self.hidden}) must be a multiple of heads ({self.heads}) unless head_size is given"
            )
        if self.family == "opt" and (self.kv_heads != self.heads or self.head_size is not None):
            raise ShapeError(f"opt has as many kv_heads as heads ({self.heads}), and no head_size of its own")
        if self.family != "opt" and (self.embedding is not None or self.norm_after):
            raise ShapeError("embedding and norm_after are for the family opt")
        if self.embedding is not None and self.embedding < 1:
            raise ShapeError(f"embedding must be at least 1, got {self.embedding}")
        if self.head_dim < 2 or self.head_dim % 2:
            raise ShapeError(f"the head size must be even, got {self.head_dim}")
        if not VOCABULARY_MIN <= self.vocabulary <= VOCABULARY_MAX:
            raise ShapeError(f"vocabulary must be from {VOCABULARY_MIN} to {VOCABULARY_MAX}, got {self.vocabulary}")
        if self.dtype not in DTYPES or self.family not in ARCHITECTURES:
            raise ShapeError(f"unknown dtype or family: {self.dtype}, {self.family}")


PRESETS = {
    "S": RandomModel(hidden=384, layers=8, heads=6, kv_heads=6, intermediate=2048, vocabulary=8192),
    "XS": RandomModel(hidden=384, layers=4, heads=6, kv_heads=6, intermediate=2048, vocabulary=8192),
    "M": RandomModel(hidden=1024, layers=24, heads=16, kv_heads=4, intermediate=3584, vocabulary=16000),
    "8B": RandomModel(4096, 32, 32, 8, intermediate=14336, vocabulary=128256, context=8192),
    "tiny": RandomModel(64, 2, 4, 2, intermediate=128, vocabulary=512, context=512, dtype="float32"),
}


def config_of(model: RandomModel) -> dict[str, object]:
    """`config.json` in the spelling that both old and new `transformers` read."""
    if model.family == "opt":
        return _opt_config_of(model)
    config: dict[str, object] = {
        "architectures": [ARCHITECTURES[model.family]],
        "model_type": model.family,
        "bos_token_id": BEGIN_ID,
        "eos_token_id": list(END_IDS),
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "max_position_embeddings": model.context,
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": model.tied,
        "torch_dtype": model.dtype,
        "vocab_size": model.vocabulary,
    }
    if model.family in ("llama", "qwen3"):
        config["attention_bias"] = False
    if model.family == "llama":
        config["mlp_bias"] = False
    if model.family == "mistral":
        config["sliding_window"] = None
    if model.family in ("qwen2", "qwen3"):
        config["use_sliding_window"] = False
    return config


def _opt_config_of(model: RandomModel) -> dict[str, object]:
    return {
        "architectures": [ARCHITECTURES[model.family]],
        "model_type": model.family,
        "activation_function": "relu",
        "bos_token_id": BEGIN_ID,
        "do_layer_norm_before": not model.norm_after,
        "eos_token_id": list(END_IDS),
        "ffn_dim": model.intermediate,
        "hidden_size": model.hidden,
        "max_position_embeddings": model.context,
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "tie_word_embeddings": model.tied,
        "torch_dtype": model.dtype,
        "vocab_size": model.vocabulary,
        "word_embed_proj_dim": model.embedding or model.hidden,
    }


class Draws:
    """Random tensors of a model, in the order in which they are asked for, drawn on a device."""

    def __init__(self, model: RandomModel, device: str) -> None:
        self._dtype = DTYPES[model.dtype]
        self._device = device
        self._source = torch.Generator(device).manual_seed(model.seed)

    def matrix(self, rows: int, columns: int, scale: float = 1.0) -> Tensor:
        return self._normal(rows, columns).mul_(scale * columns**-0.5).to(self._dtype).cpu()

    def vector(self, size: int, mean: float) -> Tensor:
        return self._normal(size).mul_(0.1).add_(mean).to(self._dtype).cpu()

    def _normal(self, *sizes: int) -> Tensor:
        return torch.randn(sizes, generator=self._source, device=self._device)


def weights_of(model: RandomModel, device: str = "cpu") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the checkpoint by its name, in the order in which its numbers are drawn."""
    draws = Draws(model, device)
    return _opt_weights_of(model, draws) if model.family == "opt" else _llama_weights_of(model, draws)


def _llama_weights_of(model: RandomModel, draws: Draws) -> Iterator[tuple[str, Tensor]]:
    matrix, vector = draws.matrix, draws.vector
    q_size, kv_size = model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield "model.embed_tokens.weight", matrix(model.vocabulary, model.hidden, LOGIT_DEVIATION)
    for index in range(model.layers):
        layer = f"model.layers.{index}"
        yield f"{layer}.input_layernorm.weight", vector(model.hidden, 1.0)
        for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            yield f"{layer}.self_attn.{name}_proj.weight", matrix(size, model.hidden)
            if model.family == "qwen2":
                yield f"{layer}.self_attn.{name}_proj.bias", vector(size, 0.0)
            if model.family == "qwen3" and name != "v":
                yield f"{layer}.self_attn.{name}_norm.weight", vector(model.head_dim, 1.0)
        yield f"{layer}.self_attn.o_proj.weight", matrix(model.hidden, q_size)
        yield f"{layer}.post_attention_layernorm.weight", vector(model.hidden, 1.0)
        yield f"{layer}.mlp.gate_proj.weight", matrix(model.intermediate, model.hidden)
        yield f"{layer}.mlp.up_proj.weight", matrix(model.intermediate, model.hidden)
        yield f"{layer}.mlp.down_proj.weight", matrix(model.hidden, model.intermediate)
    yield "model.norm.weight", vector(model.hidden, 1.0)
    if not model.tied:
        yield "lm_head.weight", matrix(model.vocabulary, model.hidden, LOGIT_DEVIATION)


def _opt_weights_of(model: RandomModel, draws: Draws) -> Iterator[tuple[str, Tensor]]:
    hidden = model.hidden
    width = model.embedding or hidden

    def with_bias(name: str, rows: int, columns: int) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", draws.matrix(rows, columns)
        yield f"{name}.bias", draws.vector(rows, 0.0)

    def norm(name: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", draws.vector(hidden, 1.0)
        yield f"{name}.bias", draws.vector(hidden, 0.0)

    yield "model.decoder.embed_tokens.weight", draws.matrix(model.vocabulary, width, LOGIT_DEVIATION)
    yield "model.decoder.embed_positions.weight", draws.matrix(model.context + 2, hidden)
    if width != hidden:
        yield "model.decoder.project_in.weight", draws.matrix(hidden, width)
        yield "model.decoder.project_out.weight", draws.matrix(width, hidden)
    for index in range(model.layers):
        layer = f"model.decoder.layers.{index}"
        yield from norm(f"{layer}.self_attn_layer_norm")
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from with_bias(f"{layer}.self_attn.{name}", hidden, hidden)
        yield from norm(f"{layer}.final_layer_norm")
        yield from with_bias(f"{layer}.fc1", model.intermediate, hidden)
        yield from with_bias(f"{layer}.fc2", hidden, model.intermediate)
    if not model.norm_after:
        yield from norm("model.decoder.final_layer_norm")
    if not model.tied:
        yield "lm_head.weight", draws.matrix(model.vocabulary, width, LOGIT_DEVIATION)


def made_up_merges() -> Iterator[tuple[str, str]]:
    """Pairs of letters, then pair and letter, then pair and pair: every merge joins tokens that exist by then."""
    letter_pairs = [(first, second) for first in ascii_lowercase for second in ascii_lowercase]
    pairs = [first + second for first, second in letter_pairs]
    yield from letter_pairs
    yield from product(pairs, ascii_lowercase)
    yield from product(pairs, pairs)


def byte_level_tokenizer(vocabulary: int) -> Tokenizer:
    """A tokenizer of exactly `vocabulary` ids whose every id decodes to some text."""
    merges = list(islice(made_up_merges(), vocabulary - VOCABULARY_MIN))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIAL_TOKENS, *alphabet, *(first + second for first, second in merges)]
    assert len(tokens) == vocabulary == len(set(tokens))
    tokenizer = Tokenizer(tokenizer_models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN_OF_TEXT} $A", special_tokens=[(BEGIN_OF_TEXT, BEGIN_ID)]
    )
    return tokenizer


def write_random_model(model: RandomModel, out: Path, device: str = "cpu") -> None:
    """Writes the folder, with numbers that `device` draws; raises ShapeError before anything is written."""
    model.validate()
    values = {
        "config.json": config_of(model),
        "generation_config.json": generation_config(),
        "tokenizer_config.json": tokenizer_config(model.context),
    }
    texts = {"tokenizer.json": byte_level_tokenizer(model.vocabulary).to_str() + "\n"}
    write_folder(out, texts, values, dict(weights_of(model, device)))


def parse(arguments: list[str]) -> tuple[RandomModel, Path, str]:
    """The command line: a preset, and flags that override its figures; where to write, and what draws."""
    parser = argparse.ArgumentParser(description="Write a model folder with random weights.")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument("--out", type=Path, help="folder to write [models/random/PRESET]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what draws the numbers [cpu]")
    for name in ("hidden", "layers", "heads", "kv-heads", "intermediate", "context", "seed"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--vocab", dest="vocabulary", type=int)
    parser.add_argument("--head-dim", dest="head_size", type=int, help="head size [hidden / heads]")
    parser.add_argument("--embedding", type=int, help="width of OPT's embeddings [hidden]")
    parser.add_argument(
        "--norm-after", action=argparse.BooleanOptionalAction, help="OPT's norms come after what they follow (350m)"
    )
    parser.add_argument("--dtype", choices=sorted(DTYPES))
    parser.add_argument("--family", choices=sorted(ARCHITECTURES))
    parser.add_argument(
        "--tie", dest="tied", action=argparse.BooleanOptionalAction, help="share the weights of embedding and head"
    )
    flags = vars(parser.parse_args(arguments))
    preset, out, device = flags.pop("preset"), flags.pop("out"), flags.pop("device")
    model = replace(PRESETS[preset], **{name: value for name, value in flags.items() if value is not None})
    try:
        model.validate()
    except ShapeError as error:
        parser.error(str(error))
    return model, out or Path("models/random") / preset, device


def main(arguments: list[str]) -> None:
    model, out, device = parse(arguments)
    write_random_model(model, out, device)
    print(f"{out}: {(out / 'model.safetensors').stat().st_size} bytes of weights")


if __name__ == "__main__":
    main(sys.argv[1:])
