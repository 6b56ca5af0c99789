"""Model folders with random weights."""

from dataclasses import replace
from pathlib import Path

from models.make_random import PRESETS, write_random_model


def tiny_model_folder(parent: Path) -> Path:
    """A folder of the tiny preset: two layers, a vocabulary of 512, made in no time."""
    folder = parent / "tiny"
    write_random_model(PRESETS["tiny"], folder)
    return folder


def tiny_opt_folder(parent: Path, *, like_350m: bool = False) -> Path:
    """A folder of a tiny OPT: norms before, or narrow embeddings and norms after, as the 350m model has them."""
    folder = parent / "tiny-opt"
    opt = replace(PRESETS["tiny"], family="opt", kv_heads=4, tied=True)
    write_random_model(replace(opt, embedding=32, norm_after=True) if like_350m else opt, folder)
    return folder
