"""config.json in every spelling, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from services.domain.errors import ModelFolderError
from services.worker.model.config_json import parse_config, read_model_config
from services.worker.model.llama_config import LlamaConfig, RopeConfig, RopeType

PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 99,
}


def parsed(**changes: Any) -> LlamaConfig:
    config = parse_config({**PLAIN, **changes})
    assert isinstance(config, LlamaConfig)
    return config


def test_missing_fields_have_the_families_defaults() -> None:
    llama = parsed()
    assert (llama.kv_head_count, llama.head_dim, llama.max_position) == (8, 8, 2048)
    assert (llama.norm_epsilon, llama.activation, llama.tied_embeddings) == (1e-6, "silu", False)
    assert llama.rope == RopeConfig(original_max_position=2048)
    assert llama.windows == (None, None, None)
    assert (llama.dtype, llama.eos_token_ids) == (None, ())
    assert parsed(model_type="qwen3", num_attention_heads=32).head_dim == 128
    assert parsed(model_type="mistral").max_position == 131072
    assert parsed(model_type="qwen2", num_attention_heads=32).max_position == 32768


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_missing_count_of_kv_heads_is_the_families_and_null_is_that_of_the_query_heads(family: str) -> None:
    reference = transformers.AutoConfig.for_model(family, num_attention_heads=64)
    changes = {"model_type": family, "num_attention_heads": 64, "head_dim": 8}
    assert parsed(**changes).kv_head_count == reference.num_key_value_heads
    assert parsed(**changes, num_key_value_heads=None).kv_head_count == 64


def test_null_means_missing() -> None:
    assert parsed(head_dim=None, num_key_value_heads=None, rope_scaling=None, torch_dtype=None) == parsed()


@pytest.mark.parametrize(
    ("family", "switches"),
    [
        ("llama", (False, False, False, False)),
        ("mistral", (False, False, False, False)),
        ("qwen2", (True, False, False, False)),
        ("qwen3", (False, False, False, True)),
    ],
)
def test_each_family_has_its_biases_and_norms(family: str, switches: tuple[bool, ...]) -> None:
    config = parsed(model_type=family, num_key_value_heads=8)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm) == switches


def test_old_and_new_spellings_mean_the_same() -> None:
    new = parsed(
        dtype="bfloat16",
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    )
    old = parsed(
        torch_dtype="bfloat16",
        rope_theta=500000.0,
        rope_scaling={
            "type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    )
    assert new == old
    assert new.dtype == "bfloat16"
    assert new.rope.rope_type is RopeType.LLAMA3
    assert (new.rope.theta, new.rope.factor, new.rope.original_max_position) == (500000.0, 8.0, 512)


def test_rotary_parameters_may_be_given_for_each_layer_type_if_they_are_equal() -> None:
    linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}
    nested = {"full_attention": linear, "sliding_attention": dict(linear)}
    assert parsed(rope_parameters=nested) == parsed(rope_parameters=linear)
    nested["sliding_attention"] = {**linear, "factor": 4.0}
    with pytest.raises(ModelFolderError, match="differ between layer types"):
        parsed(rope_parameters=nested)


def test_a_model_s_own_original_length_wins_over_the_rotary_parameters() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert parsed(rope_scaling=scaling).rope.original_max_position == 128
    assert parsed(rope_scaling=scaling, original_max_position_embeddings=256).rope.original_max_position == 256


def test_a_scaling_without_a_factor_has_that_of_the_two_lengths() -> None:
    scaling = {"rope_type": "yarn", "original_max_position_embeddings": 512}
    assert parsed(rope_scaling=scaling).rope.factor == 4.0


def test_windows_follow_each_familys_rule() -> None:
    assert parsed(sliding_window=16).windows == (None, None, None)
    assert parsed(model_type="mistral").windows == (4096, 4096, 4096)
    assert parsed(model_type="mistral", sliding_window=None).windows == (None, None, None)
    assert parsed(model_type="qwen2", num_attention_heads=32, sliding_window=16).windows == (None, None, None)
    sliding = {"model_type": "qwen2", "num_attention_heads": 32, "use_sliding_window": True, "sliding_window": 16}
    assert parsed(**sliding).windows == (None, None, None)
    assert parsed(**sliding, max_window_layers=1).windows == (None, 16, 16)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert parsed(**sliding, layer_types=kinds).windows == (16, None, 16)


def test_end_tokens_may_be_one_or_several() -> None:
    assert parsed(eos_token_id=2).eos_token_ids == (2,)
    assert parsed(eos_token_id=[2, 5]).eos_token_ids == (2, 5)


LINEAR: dict[str, Any] = {"rope_type": "linear"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "mixtral"},
            "model_type 'mixtral' is not supported; supported are llama, mistral, qwen2, qwen3",
        ),
        ({"model_type": None}, "model_type None is not supported"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "LlamaForSequenceClassification.*must be LlamaForCausalLM",
        ),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized weights are not supported"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "models that bring their own code are not supported"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number from 1 to .*, not '64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number from 1"),
        ({"vocab_size": 10**12}, "vocab_size must be a whole number"),
        ({"num_key_value_heads": 3}, "num_attention_heads 8 is not a multiple of num_key_value_heads 3"),
        ({"hidden_size": 60}, "hidden_size 60 is not a multiple of num_attention_heads 8"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"hidden_act": "quick_gelu"}, "hidden_act 'quick_gelu' is not supported"),
        ({"hidden_act": 3}, "hidden_act must be a string"),
        ({"rope_scaling": {"type": "mrope"}}, "rope type 'mrope' is not supported"),
        ({"rope_scaling": "linear"}, "rope_parameters must be an object"),
        ({"rope_scaling": LINEAR}, "rope type linear needs a factor"),
        ({"rope_scaling": {**LINEAR, "factor": "2"}}, "rope_parameters: factor must be a number"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "low_freq_factor is missing"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
            "longrope needs short_factor and long_factor of 4",
        ),
        ({"rope_scaling": {"type": "longrope", "short_factor": "x"}}, "short_factor must be a list of numbers"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported with rope type default"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id or a list"),
        (
            {
                "model_type": "qwen2",
                "num_attention_heads": 32,
                "use_sliding_window": True,
                "layer_types": ["full_attention"],
            },
            "layer_types must name 3 layers",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFolderError, match=message):
        parsed(**changes)


def test_a_folder_must_hold_a_config_that_is_a_json_object(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="is not a folder"):
        read_model_config(tmp_path / "none")
    with pytest.raises(ModelFolderError, match=r"has no config\.json"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFolderError, match="is not JSON"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelFolderError, match="must be a JSON object"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    assert read_model_config(tmp_path) == parsed()
