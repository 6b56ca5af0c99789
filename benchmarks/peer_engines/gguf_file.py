"""A Llama model's folder as a GGUF file, the format that llama.cpp reads. Its own converter refuses tokenizers that it
does not know by name, as the random models' are.

Matrices stay bfloat16, vectors become float32, which llama.cpp asks for. Its rotary turn pairs neighbouring numbers
where the folder's pairs the halves of a head, so the rows of the query and key matrices change places. A token that is
a part of a character gets another text: see token_texts.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy

from benchmarks.peer_engines.token_texts import whole_text

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
HEADER_BYTES = 8


def gguf_name(name: str) -> str:
    """The name of a tensor in a GGUF file: `model.layers.3.mlp.up_proj.weight` is `blk.3.ffn_up.weight`."""
    if name in NAMES:
        return NAMES[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[part]}.weight"


def _tensors(file: Path) -> dict[str, Any]:
    """The bfloat16 tensors of a safetensors file, as 16-bit numbers."""
    content = file.read_bytes()
    header_bytes = int.from_bytes(content[:HEADER_BYTES], "little")
    header = json.loads(content[HEADER_BYTES : HEADER_BYTES + header_bytes])
    start = HEADER_BYTES + header_bytes
    found = {}
    for name, about in header.items():
        if name != "__metadata__":
            if about["dtype"] != "BF16":
                raise ValueError(f"{file}: {name} is {about['dtype']}, not BF16")
            begin, end = about["data_offsets"]
            found[name] = numpy.frombuffer(content[start + begin : start + end], numpy.uint16).reshape(about["shape"])
    return found


def _by_neighbours(matrix: Any, heads: int) -> Any:
    rows = matrix.reshape(heads, 2, matrix.shape[0] // heads // 2, matrix.shape[1])
    return numpy.ascontiguousarray(rows.swapaxes(1, 2).reshape(matrix.shape))


def _write_shape(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _write_tokenizer(writer: Any, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    special = {token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"].items(), key=lambda entry: entry[1])
    tokens += [(f"[unused{number}]", number) for number in range(len(tokens), config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([whole_text(token, number) for token, number in tokens])
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if number in special else kinds.NORMAL for _, number in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    ends = config["eos_token_id"]
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(ends[0] if isinstance(ends, list) else ends)
    writer.add_add_bos_token(False)


def write_gguf(folder: Path, file: Path) -> None:
    """Writes the model of a folder with bfloat16 weights in one file. Raises ValueError for weights of another type."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(str(unfinished), "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    _write_shape(writer, config)
    _write_tokenizer(writer, tokenizer, config)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, numbers in _tensors(folder / "model.safetensors").items():
        if numbers.ndim == 1:
            writer.add_tensor(gguf_name(name), (numbers.astype(numpy.uint32) << 16).view(numpy.float32))
            continue
        part = name.split(".")[-2]
        matrix = _by_neighbours(numbers, heads[part]) if part in heads else numpy.ascontiguousarray(numbers)
        writer.add_tensor(gguf_name(name), matrix.view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(file)
