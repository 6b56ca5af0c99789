"""A model folder is read without torch; an incomplete one is refused in one sentence."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from services.domain.errors import ModelFolderError
from services.runtime.model_files import (
    ModelFacts,
    fingerprint,
    read_facts,
    read_header,
    tokenizer_file,
    weight_files,
)

CONFIG = {
    "model_type": "llama",
    "vocab_size": 32,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
}


def write_weights(path: Path, data: bytes = bytes(range(256)) * 8, name: str = "model.norm.weight") -> None:
    """A safetensors file with one tensor."""
    header = {name: {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)


def write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    write_json(path / "config.json", CONFIG)
    write_json(path / "tokenizer.json", {"version": "1.0"})
    write_weights(path / "model.safetensors")
    return path


def test_the_numbers_of_a_model_are_read(folder: Path) -> None:
    assert read_facts(folder) == ModelFacts(128, 32, (2,))


def test_the_ends_of_a_turn_in_generation_config_end_a_sequence_too(folder: Path) -> None:
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 7, 5, 999]})
    assert read_facts(folder).eos_token_ids == (2, 5, 7)


def test_a_model_may_have_no_end_of_sequence_token(folder: Path) -> None:
    write_json(folder / "config.json", {**CONFIG, "eos_token_id": None})
    assert read_facts(folder) == ModelFacts(128, 32, ())


@pytest.mark.parametrize("value", [None, 0, -1, "128", 1.5, True])
def test_a_context_that_is_no_number_is_told_by_its_name(folder: Path, value: object) -> None:
    write_json(folder / "config.json", {**CONFIG, "max_position_embeddings": value})
    with pytest.raises(ModelFolderError, match="max_position_embeddings must be a whole number"):
        read_facts(folder)


def test_a_copy_of_a_folder_has_the_same_fingerprint(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    write_json(copy / "config.json", dict(reversed(CONFIG.items())))
    (copy / "README.md").write_text("anything")
    assert fingerprint(copy) == fingerprint(folder)


@pytest.mark.parametrize("at", [0, 1_000_000, 1_999_999])
def test_other_weights_have_another_fingerprint(folder: Path, at: int) -> None:
    data = bytearray(2_000_000)
    write_weights(folder / "model.safetensors", bytes(data))
    before = fingerprint(folder)
    data[at] = 1
    write_weights(folder / "model.safetensors", bytes(data))
    assert fingerprint(folder) != before


def test_another_config_or_tokenizer_or_name_of_a_tensor_has_another_fingerprint(folder: Path) -> None:
    seen = {fingerprint(folder)}
    write_json(folder / "config.json", {**CONFIG, "rope_theta": 5e5})
    seen.add(fingerprint(folder))
    write_json(folder / "tokenizer.json", {"version": "1.1"})
    seen.add(fingerprint(folder))
    write_weights(folder / "model.safetensors", name="model.other.weight")
    seen.add(fingerprint(folder))
    assert len(seen) == 4


def test_the_index_names_the_files_of_a_model_in_several(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for name in ("b.safetensors", "a.safetensors", "consolidated.safetensors"):
        write_weights(folder / name)
    index = {"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}
    write_json(folder / "model.safetensors.index.json", index)
    assert [path.name for path in weight_files(folder)] == ["a.safetensors", "b.safetensors"]
    (folder / "a.safetensors").unlink()
    with pytest.raises(ModelFolderError, match=r"lacks a\.safetensors"):
        fingerprint(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": {"x": 1}}, {"weight_map": {"x": "../y"}}])
def test_an_index_that_is_none_is_refused(folder: Path, index: dict[str, Any]) -> None:
    write_json(folder / "model.safetensors.index.json", index)
    with pytest.raises(ModelFolderError, match="index"):
        weight_files(folder)


def test_a_folder_that_is_missing_or_no_model_is_refused(folder: Path) -> None:
    with pytest.raises(ModelFolderError, match="is not a folder"):
        fingerprint(folder / "nowhere")
    (folder / "config.json").unlink()
    with pytest.raises(ModelFolderError, match=r"has no config\.json"):
        fingerprint(folder)


def test_a_folder_without_the_one_kind_of_tokenizer_is_refused_where_text_is_needed(folder: Path) -> None:
    assert tokenizer_file(folder) == folder / "tokenizer.json"
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    with pytest.raises(ModelFolderError, match=r"has no tokenizer\.json"):
        tokenizer_file(folder)
    assert fingerprint(folder)


def test_pickled_weights_are_refused_and_never_opened(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelFolderError, match=r"only as pickles \(pytorch_model\.bin\)"):
        fingerprint(folder)


def test_weights_under_a_name_of_their_own_are_refused_as_no_index_says_what_they_are(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")
    with pytest.raises(ModelFolderError, match=r"neither model\.safetensors nor .*, only consolidated\.safetensors$"):
        fingerprint(folder)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFolderError, match="has no weights"):
        fingerprint(folder)


@pytest.mark.parametrize("kept_bytes", [0, 4, 8, 20, 500])
def test_truncated_weights_are_refused(folder: Path, kept_bytes: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(ModelFolderError, match="is truncated"):
        fingerprint(folder)


@pytest.mark.parametrize(
    "header", [b"[1]", b"{nojson", b'{"x": {}}', b'{"x": {"data_offsets": [0]}}', b'{"x": 3}', b"\xff"]
)
def test_weights_with_a_damaged_header_are_refused(folder: Path, header: bytes) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    with pytest.raises(ModelFolderError, match="is damaged"):
        read_header(path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": ' + "[" * 100_000])
def test_a_config_that_is_cut_or_no_object_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelFolderError, match="damaged"):
        read_facts(folder)
