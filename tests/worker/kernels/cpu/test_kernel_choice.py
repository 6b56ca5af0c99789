"""What computes: the compiled decoder where it can be had, else torch; who asks for the one gets it or an error."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from services.domain.errors import InvalidFieldError
from services.worker.build import build
from services.worker.kernels.cpu import compiled, decoder_library, native_decoder
from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.kernels.kernel_choice import Kernels, computes_by_triton, computes_natively
from services.worker.model.config_json import read_model_config
from services.worker.model.decoder import DecoderModel
from services.worker.model.model_config import ModelConfig
from services.worker.settings import EngineSettings
from tests.builders.model_folders import tiny_model_folder

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("models"))


@pytest.fixture
def config(folder: Path) -> ModelConfig:
    return read_model_config(folder)


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that has neither the library nor a compiler."""
    monkeypatch.setattr(compiled, "_folders", lambda: (tmp_path / "a", tmp_path / "b"))
    monkeypatch.setattr(compiled, "COMPILERS", ("no-such-compiler",))
    decoder_library.loaded.cache_clear()  # and filled again by whoever comes next


def test_a_worker_computes_natively_unless_told_otherwise(folder: Path, tmp_path: Path) -> None:
    sizes = {"threads": 1, "max_batch": 2, "kv_device_tokens": 64, "kv_host_tokens": 64, "max_model_len": 16}
    plain = EngineSettings.model_validate({"model": folder, **sizes})
    for kernels, kind in (("auto", NativeDecoder), ("native", NativeDecoder), ("torch", DecoderModel)):
        built = build(plain.model_copy(update={"kernels": kernels}), profile_folder=tmp_path)
        built.engine.close()
        assert isinstance(built.engine.model, kind)
        assert built.profile.source["kernels"] == ("native" if kind is NativeDecoder else "torch")
    assert len(list((tmp_path / "profiles").iterdir())) == 2


def test_a_profile_of_another_instruction_set_is_not_taken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processors of one name may have others, as hosts hide some."""
    sizes = {"threads": 1, "max_batch": 2, "kv_device_tokens": 64, "kv_host_tokens": 64, "max_model_len": 16}
    settings = EngineSettings.model_validate({"model": folder, **sizes})
    programs = []
    for chosen in (decoder_library.InstructionSet.AVX2, decoder_library.instruction_sets()[-1]) * 2:
        for module in (decoder_library, native_decoder):
            monkeypatch.setattr(module, "best_instruction_set", partial(decoder_library.InstructionSet, chosen))
        built = build(settings, profile_folder=tmp_path)
        built.engine.close()
        programs.append(str(built.profile.source["program"]))
        assert programs[-1].startswith(f"{chosen.name} of ")
    assert len(list((tmp_path / "profiles").iterdir())) == len(set(programs))


def test_what_other_sources_were_compiled_to_is_removed_before_an_image_is_made(tmp_path: Path) -> None:
    made, other, lock = (tmp_path / name for name in ("decoder-12.so", "decoder-34.so", "lock"))
    for file in (made, other, lock):
        file.touch()
    compiled.remove_others(made)
    assert set(tmp_path.iterdir()) == {made, lock}


@pytest.mark.usefixtures("nothing_compiled")
def test_without_a_compiler_torch_computes_and_the_log_says_so_once(
    config: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    assert not computes_natively("auto", config, CPU, torch.bfloat16)
    (record,) = caplog.records
    assert "the compiled decoder is not used, torch computes: there is no C++ compiler" in record.getMessage()


def test_on_a_gpu_where_triton_does_not_work_torch_computes_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without_a_compiler(device: torch.device) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr("services.worker.kernels.gpu.paged_decode.try_out", without_a_compiler)
    assert not computes_by_triton("auto", torch.device("cuda"))
    (record,) = caplog.records
    assert record.getMessage() == "Triton's kernels are not used, torch computes: Failed to find C compiler"


@pytest.mark.parametrize(("kernels", "device"), [("torch", torch.device("cuda")), ("auto", CPU), ("native", CPU)])
def test_triton_is_not_tried_where_it_is_not_to_compute(
    kernels: Kernels, device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    assert not computes_by_triton(kernels, device)
    assert not caplog.records


@pytest.mark.usefixtures("nothing_compiled")
def test_without_a_compiler_native_is_refused(config: ModelConfig) -> None:
    with pytest.raises(InvalidFieldError, match="--kernels: native is not possible: there is no C\\+\\+ compiler"):
        computes_natively("native", config, CPU, torch.bfloat16)


@pytest.mark.parametrize(
    ("device", "dtype", "why"),
    [
        (CPU, torch.float16, "it does not serve weights of type float16"),
        (torch.device("cuda"), torch.bfloat16, "it computes on a CPU, not on cuda"),
    ],
)
def test_what_it_does_not_serve_is_computed_by_torch_or_refused(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, why: str
) -> None:
    assert not computes_natively("auto", config, device, dtype)
    with pytest.raises(InvalidFieldError, match=why):
        computes_natively("native", config, device, dtype)


def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiled, "_folders", lambda: (tmp_path, tmp_path))
    monkeypatch.setattr(compiled, "COMPILERS", ("false",))
    with pytest.raises(compiled.CompileError, match="false fails"):
        compiled.library()


def test_the_library_is_made_once_for_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled.library()
    monkeypatch.setattr(compiled, "COMPILERS", ())
    assert compiled.library() == made


def test_every_process_takes_the_same_instruction_set() -> None:
    """Where AVX-512 has products of bfloat16 it is measured whether they are quicker, whatever else runs."""
    asked = "from services.worker.kernels.cpu.decoder_library import best_instruction_set as best; print(repr(best()))"
    processes = [subprocess.Popen([sys.executable, "-c", asked], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    found = {process.communicate()[0].strip() for process in processes}
    assert found == {repr(decoder_library.best_instruction_set())}
    assert decoder_library.best_instruction_set() in decoder_library.instruction_sets()
