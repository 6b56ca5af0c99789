"""Ranks read their shares of the files and no more; what is wrong with a folder is wrong on every rank."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.make_random import PRESETS, write_random_model
from services.domain.errors import ModelFolderError
from services.worker.kernels.kernel_choice import with_kernels
from services.worker.model.config_json import read_model_config
from services.worker.model.served_decoder import ServedDecoder
from services.worker.parallel.layout import GroupRank, Layout
from services.worker.parallel.share_weights import filled_rank

FILE = "model.safetensors"
LARGE = replace(PRESETS["tiny"], hidden=512, layers=4, heads=8, kv_heads=4, intermediate=1536, vocabulary=1024)
MIB = 1 << 20


def load(folder: Path, number: int, layout: Layout, *, natively: bool = False) -> ServedDecoder:
    whole = read_model_config(folder)
    size = whole.layer_count // layout.pp
    stages = tuple(range(first, first + size) for first in range(0, whole.layer_count, size))
    return with_kernels(filled_rank(folder, whole, GroupRank(number, layout), stages, "cpu", torch.float32), natively)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_random_model(PRESETS["tiny"], tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def rewrite(folder: Path) -> Callable[[dict[str, torch.Tensor | None]], None]:
    """Replaces tensors of the file; None removes one."""

    def change(changes: dict[str, torch.Tensor | None]) -> None:
        tensors = {**load_file(folder / FILE), **changes}
        save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / FILE)

    return change


RANKS = [(0, Layout(tp=2)), (1, Layout(pp=2)), (3, Layout(tp=2, pp=2))]


@pytest.mark.parametrize(("number", "layout"), RANKS)
def test_a_tensor_that_the_whole_model_does_not_use_is_refused_on_every_rank(
    number: int, layout: Layout, folder: Path, rewrite: Callable[[dict[str, torch.Tensor | None]], None]
) -> None:
    rewrite({"model.layers.0.self_attn.q_norm.weight": torch.zeros(16)})
    with pytest.raises(ModelFolderError, match=r"layers.0.self_attn.q_norm.weight, which the model .* does not use"):
        load(folder, number, layout)


@pytest.mark.parametrize(("number", "layout"), RANKS)
def test_a_tensor_that_the_whole_model_lacks_or_has_in_another_shape_is_named_on_every_rank(
    number: int, layout: Layout, folder: Path, rewrite: Callable[[dict[str, torch.Tensor | None]], None]
) -> None:
    rewrite({"model.layers.0.self_attn.k_proj.weight": torch.zeros(16, 64)})
    with pytest.raises(ModelFolderError, match=r"k_proj.weight has the shape \[16, 64\]; config.json .* \[32, 64\]"):
        load(folder, number, layout)
    rewrite({"model.layers.0.self_attn.k_proj.weight": None})
    with pytest.raises(ModelFolderError, match=r"lacks the tensor model.layers.0.self_attn.k_proj.weight$"):
        load(folder, number, layout)


def peak_mib(work: Callable[[], object]) -> float:
    """MiB of memory by which the process grew at most, mapped files included."""

    def status(field: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))

    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    before = status("VmRSS")
    work()
    return status("VmHWM") - before


@pytest.mark.parametrize("natively", [False, True], ids=["torch", "native"])
def test_loading_takes_the_memory_of_the_share_and_one_more_tensor(natively: bool, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    write_random_model(LARGE, folder)
    whole_mib = (folder / FILE).stat().st_size / MIB
    kept: list[ServedDecoder] = []
    load(folder, 3, Layout(tp=2, pp=2), natively=natively)  # what the libraries need once
    grown_mib = peak_mib(lambda: kept.append(load(folder, 3, Layout(tp=2, pp=2), natively=natively)))
    largest_mib = LARGE.hidden * LARGE.intermediate * 4 / MIB
    assert whole_mib > 50
    assert grown_mib < whole_mib / 4 + 2 * largest_mib
