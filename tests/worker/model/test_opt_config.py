"""OPT's config.json, and what is refused by name."""

from typing import Any

import pytest

from services.domain.errors import ModelFolderError
from services.worker.model.config_json import parse_config
from services.worker.model.opt_config import OptConfig

PLAIN: dict[str, Any] = {
    "model_type": "opt",
    "hidden_size": 64,
    "ffn_dim": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 99,
}


def parsed(**changes: Any) -> OptConfig:
    config = parse_config({**PLAIN, **changes})
    assert isinstance(config, OptConfig)
    return config


def test_missing_fields_have_the_defaults_of_transformers() -> None:
    opt = parsed()
    assert (opt.max_position, opt.tied_embeddings, opt.embedding_size) == (2048, True, 64)
    assert (opt.norm_first, opt.final_norm, opt.norm_epsilon) == (True, True, 1e-5)
    assert (opt.kv_head_count, opt.head_dim, opt.windows) == (8, 8, (None, None, None))


def test_the_350m_shape_has_narrow_embeddings_norms_after_and_none_at_the_end() -> None:
    opt = parsed(word_embed_proj_dim=32, do_layer_norm_before=False)
    assert (opt.embedding_size, opt.hidden_size) == (32, 64)
    assert (opt.norm_first, opt.final_norm) == (False, False)


def test_a_fine_tuned_model_may_lack_the_norm_at_the_end() -> None:
    assert not parsed(_remove_final_layer_norm=True).final_norm


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "gelu"}, "activation_function 'gelu' is not supported; OPT has relu"),
        ({"enable_bias": False}, "enable_bias false is not supported"),
        ({"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine false is not supported"),
        ({"hidden_size": 60}, "hidden_size 60 is not a multiple of num_attention_heads 8"),
        ({"ffn_dim": None}, "ffn_dim is missing"),
        ({"word_embed_proj_dim": 0}, "word_embed_proj_dim must be a whole number from 1"),
        ({"do_layer_norm_before": 1}, "do_layer_norm_before must be true or false"),
        ({"architectures": ["OPTForQuestionAnswering"]}, "architectures .* must be OPTForCausalLM"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFolderError, match=message):
        parsed(**changes)
