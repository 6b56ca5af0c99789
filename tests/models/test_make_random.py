"""Random models: the shapes promised, loadable by `transformers`, the same bytes for the same seed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from models.make_random import PRESETS, RandomModel, ShapeError, config_of, parse, write_random_model

TINY = PRESETS["tiny"]


def figures(model: RandomModel) -> tuple[Any, ...]:
    config = config_of(model)
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    return tuple(config[name] for name in (*names, "vocab_size", "max_position_embeddings", "torch_dtype"))


def test_presets_s_and_m_have_the_shapes_that_speed_is_measured_on() -> None:
    assert figures(PRESETS["S"]) == (384, 8, 6, 6, 2048, 8192, 2048, "bfloat16")
    assert figures(PRESETS["M"]) == (1024, 24, 16, 4, 3584, 16000, 2048, "bfloat16")


def test_flags_change_figures_of_the_preset() -> None:
    model, out, device = parse(["--preset", "S", "--layers", "3", "--vocab", "4000", "--tie", "--seed", "9"])
    assert model == replace(PRESETS["S"], layers=3, vocabulary=4000, tied=True, seed=9)
    assert (out, device) == (Path("models/random/S"), "cpu")
    assert parse(["--preset", "8B", "--device", "cuda"])[2] == "cuda"


def test_preset_8b_has_the_shape_of_llama_3_8b() -> None:
    assert figures(PRESETS["8B"]) == (4096, 32, 32, 8, 14336, 128256, 8192, "bfloat16")


OPT: dict[str, Any] = {"family": "opt", "kv_heads": 4}
SHAPES: dict[str, dict[str, Any]] = {
    **{family: {"family": family} for family in ("llama", "mistral", "qwen2", "qwen3")},
    "opt": OPT,
    "opt as the 350m model": {**OPT, "embedding": 32, "norm_after": True},
}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_family_loads_in_transformers_and_its_two_best_logits_stand_apart(
    shape: str, tied: bool, tmp_path: Path
) -> None:
    write_random_model(replace(TINY, **SHAPES[shape], tied=tied), tmp_path)
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    model, report = loaded
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids = torch.randint(0, TINY.vocabulary, (2, 64), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        best = model(ids).logits.topk(2).values
    assert best.isfinite().all()
    assert (best[..., 0] - best[..., 1]).median() >= 0.3


def test_the_same_seed_writes_the_same_bytes_and_another_seed_other_weights(tmp_path: Path) -> None:
    for name, seed in (("first", 5), ("again", 5), ("other", 6)):
        write_random_model(replace(TINY, seed=seed), tmp_path / name)
    first, again, other = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("first", "again", "other")
    )
    assert first == again
    assert [name for name in first if first[name] != other[name]] == ["model.safetensors"]


def test_the_size_of_a_head_may_differ_from_hidden_over_heads(tmp_path: Path) -> None:
    write_random_model(replace(TINY, head_size=32, family="qwen3", dtype="bfloat16"), tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.model.layers[0].self_attn.q_proj.weight.shape == (4 * 32, 64)
    assert model.dtype is torch.bfloat16


@pytest.mark.parametrize("vocabulary", [262, 512, 8192])
def test_every_id_decodes_to_some_text_and_every_text_survives(vocabulary: int, tmp_path: Path) -> None:
    write_random_model(replace(TINY, vocabulary=vocabulary), tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == vocabulary
    assert all(tokenizer.decode([number], skip_special_tokens=False) for number in range(vocabulary))
    text = "the quick fox\n\tgrößer 数 \U0001f40d"
    ids = tokenizer.encode(text).ids
    assert max(ids) < vocabulary
    assert tokenizer.decode(ids) == text


def test_a_random_model_has_a_chat_template(tmp_path: Path) -> None:
    write_random_model(TINY, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert text == "<|begin_of_text|><|user|>\nhi<|end_of_turn|>\n"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"heads": 3}, "kv_heads"),
        ({"hidden": 66, "heads": 4}, "hidden"),
        ({"hidden": 60, "heads": 4, "head_size": 15}, "head size"),
        ({"vocabulary": 261}, "vocabulary"),
        ({"layers": 0}, "layers"),
        ({"family": "opt"}, "as many kv_heads as heads"),
        ({"embedding": 32}, "for the family opt"),
    ],
)
def test_a_shape_that_no_model_has_is_refused_before_anything_is_written(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    wrong = RandomModel(**({name: getattr(TINY, name) for name in TINY.__slots__} | changes))
    with pytest.raises(ShapeError, match=named):
        write_random_model(wrong, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_folder_says_where_generation_ends(tmp_path: Path) -> None:
    write_random_model(TINY, tmp_path)
    config = json.loads((tmp_path / "generation_config.json").read_text())
    assert config["eos_token_id"] == json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == [1, 5]
