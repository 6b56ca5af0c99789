"""Reads a model folder in Hugging Face layout without torch: checks that it is complete, and gets its dimensions and
its fingerprint.

All services with a `--model` flag read the same folder or a copy of it. The scheduler compares their fingerprints, so
that a worker with different weights, or a gateway with a different tokenizer, is refused when it joins instead of
producing gibberish. Computing a fingerprint must take only milliseconds, so of each weights file it covers the header,
the size and some samples of the data.

Only safetensors weights are supported: 8 bytes of header length (little endian), the header as JSON ({name: {dtype,
shape, data_offsets}}), then the data.
"""

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.domain.errors import ModelFolderError

BUNDLED_MODEL = Path(__file__).resolve().parents[2] / "models" / "bundled"
"""Part of the source tree, but not of a wheel."""
BUNDLED_MODEL_NAME = "fastserve-bundled"
MOST_NAME_CHARACTERS = 128
"""The most characters of the model name that clients see."""
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
_WEIGHTS_INDEX = "model.safetensors.index.json"
_WEIGHTS = "model.safetensors"
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_MOST_HEADER_BYTES = 100_000_000
_MOST_JSON_BYTES = 256 * 1024 * 1024
_SAMPLE_BYTES = 64 * 1024
_SAMPLES = 9
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts about a model that services without its weights need. Token ids are less than `vocabulary_size`."""

    max_model_len: int
    vocabulary_size: int
    eos_token_ids: tuple[int, ...]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_JSON_BYTES:
            raise ModelFolderError(f"{path} is larger than {_MOST_JSON_BYTES} bytes")
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelFolderError(
            f"{path.parent} has no {path.name}: it is not a model folder in Hugging Face layout"
        ) from None
    except OSError as error:
        raise ModelFolderError(f"can't read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ModelFolderError(f"{path} is truncated or damaged: it is not JSON") from None
    if not isinstance(document, dict):
        raise ModelFolderError(f"{path} is damaged: it must be a JSON object")
    return document


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json. Raises ModelFolderError."""
    if not folder.is_dir():
        raise ModelFolderError(f"{folder} is not a folder")
    return _read_json(folder / CONFIG)


def read_config_file(path: Path) -> dict[str, Any]:
    """The content of a file like config.json, whatever its name. Raises ModelFolderError."""
    if not path.is_file():
        raise ModelFolderError(f"{path} is not a file")
    return _read_json(path)


def _whole_number(config: dict[str, Any], key: str, folder: Path) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelFolderError(f"{folder / CONFIG}: {key} must be a whole number greater than 0, but is {value!r}")
    return value


def _ids(value: Any) -> list[int]:
    """The token ids of a field that holds one id, several or none."""
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, int) and not isinstance(one, bool)]


def read_facts(folder: Path) -> ModelFacts:
    """The facts about a model. End-of-sequence ids are those of config.json and generation_config.json together,
    because chat models define the end of a turn only in the latter. Raises ModelFolderError.
    """
    config = read_config(folder)
    generation_file = folder / "generation_config.json"
    generation = _read_json(generation_file) if generation_file.exists() else {}
    vocabulary_size = _whole_number(config, "vocab_size", folder)
    eos = {*_ids(config.get("eos_token_id")), *_ids(generation.get("eos_token_id"))}
    return ModelFacts(
        max_model_len=_whole_number(config, "max_position_embeddings", folder),
        vocabulary_size=vocabulary_size,
        eos_token_ids=tuple(sorted(one for one in eos if 0 <= one < vocabulary_size)),
    )


def tokenizer_file(folder: Path) -> Path:
    """The path of tokenizer.json. Raises ModelFolderError if the folder has none."""
    read_config(folder)
    path = folder / TOKENIZER
    if not path.is_file():
        raise ModelFolderError(f"{folder} has no {TOKENIZER}: no other tokenizer format is supported")
    return path


def _indexed_names(index_file: Path) -> set[str]:
    weight_map = _read_json(index_file).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFolderError(f"{index_file} is damaged: it has no weight_map")
    names = {name for name in weight_map.values() if isinstance(name, str)}
    if len(names) == 0 or any(Path(name).name != name for name in names):
        raise ModelFolderError(f"{index_file} must name files in its own folder only")
    return names


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of the model, sorted: those named in its index, or else model.safetensors. Other files may
    belong to another model, or hold the same model in another layout.

    Raises ModelFolderError.
    """
    read_config(folder)
    index_file = folder / _WEIGHTS_INDEX
    if index_file.exists():
        paths = tuple(sorted(folder / name for name in _indexed_names(index_file)))
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            raise ModelFolderError(f"{folder} lacks {', '.join(missing[:3])}, which {_WEIGHTS_INDEX} names")
        return paths
    if (folder / _WEIGHTS).is_file():
        return (folder / _WEIGHTS,)
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if others:
        raise ModelFolderError(f"{folder} has neither {_WEIGHTS} nor {_WEIGHTS_INDEX}, only {', '.join(others[:3])}")
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLE_SUFFIXES)
    if pickles:
        raise ModelFolderError(
            f"{folder} has weights only as pickles ({pickles[0]}), which could run code when they are loaded: "
            "convert them to safetensors"
        )
    raise ModelFolderError(f"{folder} has no weights: neither {_WEIGHTS} nor {_WEIGHTS_INDEX}")


def _end_of_data(header: dict[str, Any], path: Path) -> int:
    """The number of data bytes that the header describes."""
    ends = [0]
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        if not (isinstance(offsets, list) and len(offsets) == 2 and all(isinstance(one, int) for one in offsets)):
            raise ModelFolderError(f"{path} is damaged: its header has no data_offsets for {name}")
        ends.append(offsets[1])
    return max(ends)


def read_header(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The header of a safetensors file, raw and parsed.

    Raises ModelFolderError for a file that is shorter than its header says.
    """
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(_LENGTH_BYTES)
            length_bytes = struct.unpack("<Q", start)[0] if len(start) == _LENGTH_BYTES else _MOST_HEADER_BYTES + 1
            if length_bytes > min(_MOST_HEADER_BYTES, size_bytes - _LENGTH_BYTES):
                raise ModelFolderError(f"{path} is truncated or not a safetensors file: its header does not fit in it")
            raw = file.read(length_bytes)
    except OSError as error:
        raise ModelFolderError(f"can't read {path}: {error.strerror}") from None
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        raise ModelFolderError(f"{path} is damaged: its header is not JSON") from None
    if not isinstance(header, dict):
        raise ModelFolderError(f"{path} is damaged: its header must be a JSON object")
    whole_bytes = _LENGTH_BYTES + length_bytes + _end_of_data(header, path)
    if whole_bytes > size_bytes:
        raise ModelFolderError(f"{path} is truncated: it has {size_bytes} of {whole_bytes} bytes")
    return raw, header


def _add_samples(digest: "hashlib._Hash", path: Path) -> None:
    """Add samples from both ends of the file and in between: a fine-tuned model differs in most layers."""
    last_offset = max(0, path.stat().st_size - _SAMPLE_BYTES)
    with path.open("rb") as file:
        for number in range(_SAMPLES):
            file.seek(last_offset * number // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))


def fingerprint(folder: Path) -> str:
    """A hash that identifies the model, equal for copies of a folder. Checks the files too. Raises ModelFolderError."""
    digest = hashlib.sha256()
    config = read_config(folder)
    digest.update(json.dumps(config, sort_keys=True, separators=(",", ":")).encode())
    tokenizer = folder / TOKENIZER
    try:
        if tokenizer.is_file():
            digest.update(hashlib.sha256(tokenizer.read_bytes()).digest())
        for path in weight_files(folder):
            raw, _ = read_header(path)
            digest.update(f"{path.name}:{path.stat().st_size}:{len(raw)}\n".encode())
            digest.update(raw)
            _add_samples(digest, path)
    except OSError as error:
        raise ModelFolderError(f"can't read {error.filename}: {error.strerror}") from None
    return digest.hexdigest()


def served_name(folder: Path, given: str | None) -> str:
    """The model name that clients see: the given name, or that of the bundled model, or the folder's name."""
    if given is not None:
        return given
    resolved = folder.resolve()
    return BUNDLED_MODEL_NAME if resolved == BUNDLED_MODEL else resolved.name
