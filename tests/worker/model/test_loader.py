"""Model folders: one file or several, other types of weights, and what is wrong with a folder that can't be loaded."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.domain.errors import ModelFolderError
from services.worker.model.loader import load_model
from tests.worker.model.reference_models import chunked_logits, plain_pair, reference_model, tokens

FILE = "model.safetensors"
DOWN = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The plain model's folder."""
    plain_pair()[0].save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder: Path, **changes: Tensor | None) -> None:
    """Replaces tensors of the file; None removes one. Dots in names are written as __."""
    tensors = load_file(folder / FILE)
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name.replace("__", ".")]
        else:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, folder / FILE)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    """The logits after a few tokens."""
    return chunked_logits(load_model(folder, "cpu", dtype), tokens(8), [8])


def test_weights_in_several_files_are_the_same_model(folder: Path) -> None:
    expected = load(folder)
    tensors = load_file(folder / FILE)
    (folder / FILE).unlink()
    parts = ("model-1.safetensors", "model-2.safetensors")
    places = {name: parts[number % 2] for number, name in enumerate(sorted(tensors))}
    for part in parts:
        save_file({name: tensor for name, tensor in tensors.items() if places[name] == part}, folder / part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert torch.equal(load(folder), expected)
    (folder / parts[1]).unlink()
    with pytest.raises(ModelFolderError, match=r"lacks model-2.safetensors, which model.safetensors.index.json names"):
        load(folder)


def test_weights_of_another_type_are_converted(folder: Path) -> None:
    expected = load(folder)
    rewrite(folder, **{name: tensor.half() for name, tensor in load_file(folder / FILE).items()})
    assert (load(folder) - expected).abs().max() < 0.01 * expected.abs().max()


def test_a_tied_model_does_not_need_the_head_and_ignores_one_that_is_there(tmp_path: Path) -> None:
    reference_model("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / FILE)
    expected = load(tmp_path)
    rewrite(tmp_path, lm_head__weight=torch.zeros(97, 48))
    assert torch.equal(load(tmp_path), expected)


def test_stored_rotary_frequencies_of_old_checkpoints_are_ignored(folder: Path) -> None:
    expected = load(folder)
    rewrite(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(6))
    assert torch.equal(load(folder), expected)


def test_packed_weights_are_not_kept_twice(folder: Path) -> None:
    model = load_model(folder, "cpu", torch.bfloat16)
    assert model.embedding is not None
    kept = sum(parameter.numel() for parameter in model.parameters())
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert kept < 2 * model.embedding.numel()
    else:
        assert kept == sum(parameter.numel() for parameter in plain_pair()[0].parameters())


def test_a_missing_tensor_is_named(folder: Path) -> None:
    rewrite(folder, model__layers__0__mlp__down_proj__weight=None)
    with pytest.raises(ModelFolderError, match=f"lacks the tensor {DOWN}$"):
        load(folder)
    rewrite(folder, model__norm__weight=None)
    with pytest.raises(ModelFolderError, match=f"lacks the tensor {DOWN} and 1 more"):
        load(folder)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder: Path) -> None:
    rewrite(folder, model__layers__0__mlp__down_proj__weight=torch.zeros(48, 79))
    with pytest.raises(ModelFolderError, match=rf"{DOWN} has the shape \[48, 79\]; config.json requires \[48, 80\]"):
        load(folder)


def test_a_tensor_that_the_model_would_not_use_is_named(folder: Path) -> None:
    rewrite(folder, model__layers__0__self_attn__q_norm__weight=torch.zeros(12))
    with pytest.raises(ModelFolderError, match=r"q_norm.weight, which the model described by config.json does not use"):
        load(folder)


def test_whole_numbers_as_weights_are_refused(folder: Path) -> None:
    rewrite(folder, model__layers__0__mlp__down_proj__weight=torch.zeros(48, 80, dtype=torch.int8))
    with pytest.raises(ModelFolderError, match="quantized weights are not supported"):
        load(folder)


@pytest.mark.parametrize("kept_bytes", [0, 7, 600, 20_000])
def test_a_truncated_file_is_an_error(folder: Path, kept_bytes: int) -> None:
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:kept_bytes])
    with pytest.raises(ModelFolderError, match=r"model.safetensors is truncated or not a safetensors file"):
        load(folder)


def test_a_folder_without_weights_is_an_error(folder: Path) -> None:
    (folder / FILE).unlink()
    with pytest.raises(ModelFolderError, match=r"neither model.safetensors nor model.safetensors.index.json$"):
        load(folder)


def test_pickles_are_not_read(folder: Path) -> None:
    (folder / FILE).rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelFolderError, match=r"only as pickles \(pytorch_model.bin\), which could run code"):
        load(folder)


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": {}}'])
def test_a_broken_index_is_an_error(folder: Path, index: str) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelFolderError, match="index"):
        load(folder)


OPT_POSITIONS = "model.decoder.embed_positions.weight"


@pytest.fixture
def opt_folder(tmp_path: Path) -> Path:
    reference_model("opt", word_embed_proj_dim=32).save_pretrained(tmp_path)
    return tmp_path


def rename(folder: Path, new_name: Callable[[str], str]) -> None:
    save_file({new_name(name): tensor for name, tensor in load_file(folder / FILE).items()}, folder / FILE)


@pytest.mark.parametrize("prefix", ["decoder.", "model.", ""])
def test_names_of_opt_may_lack_a_part_of_their_prefix(opt_folder: Path, prefix: str) -> None:
    expected = load(opt_folder)
    assert OPT_POSITIONS in load_file(opt_folder / FILE)
    rename(opt_folder, lambda name: prefix + name.removeprefix("model.decoder."))
    assert torch.equal(load(opt_folder), expected)


def test_opt_saved_without_its_tied_head_is_whole(opt_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    headless = tmp_path_factory.mktemp("headless")
    reference_model("opt", word_embed_proj_dim=32).model.save_pretrained(headless)
    assert json.loads((headless / "config.json").read_text())["architectures"] == ["OPTModel"]
    assert torch.equal(load(headless), load(opt_folder))


def test_a_tensor_that_is_there_under_two_names_is_an_error(opt_folder: Path) -> None:
    rewrite(opt_folder, decoder__embed_positions__weight=torch.zeros(162, 48))
    with pytest.raises(ModelFolderError, match=r"embed_positions.weight, of which there is another"):
        load(opt_folder)


def test_what_opt_misses_or_does_not_use_is_named(opt_folder: Path) -> None:
    rewrite(opt_folder, model__decoder__embed_positions__weight=None)
    with pytest.raises(ModelFolderError, match=f"lacks the tensor {OPT_POSITIONS}$"):
        load(opt_folder)
    rewrite(opt_folder, decoder__embed_positions__weight=torch.zeros(160, 48))
    with pytest.raises(ModelFolderError, match=r"shape \[160, 48\]; config.json requires \[162, 48\]"):
        load(opt_folder)
    rewrite(opt_folder, decoder__embed_positions__weight=torch.zeros(162, 48), norm__weight=torch.zeros(48))
    with pytest.raises(ModelFolderError, match=r"norm.weight, which the model described by config.json does not use"):
        load(opt_folder)
