"""Model folders with random weights."""

from pathlib import Path

from models.make_random import PRESETS, write_random_model


def tiny_model_folder(parent: Path) -> Path:
    """A folder of the tiny preset: two layers, a vocabulary of 512, made in no time."""
    folder = parent / "tiny"
    write_random_model(PRESETS["tiny"], folder)
    return folder
