"""The committed cost profiles: they are what their script writes, and say what is known of the hardware."""

from dataclasses import replace
from pathlib import Path

import pytest

from profiles import derive
from profiles.derive import derived, name_of, stale_files
from profiles.hardware import (
    A100_40GB,
    H100,
    H200,
    LAYOUTS,
    LLAMA_3_8B,
    OPT_2_7B,
    OPT_13B,
    OPT_66B,
    OPT_175B,
    Layout,
    Shape,
)
from profiles.roofline import (
    all_reduce_s,
    decode_s,
    device_kv_tokens,
    kv_bytes_per_token,
    link_speed,
    prefill_s,
    stored_weights,
)
from services.domain.errors import InvalidFieldError
from services.experiments.named_profiles import PROFILES, find_profile, profile_names
from services.runtime.profile_file import write_profile

MEASURED = ("cpu-2c-bundled", "cpu-2c-S", "cpu-2c-M")
OPT_ON_16 = Layout(OPT_175B, A100_40GB, tensor_parallel=8, stages=2)


def test_every_derived_file_is_what_the_script_writes() -> None:
    assert [file.name for file in stale_files(PROFILES)] == []


def test_a_changed_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for layout in LAYOUTS[1:]:
        write_profile(tmp_path / f"{name_of(layout)}.json", derived(layout))
    write_profile(tmp_path / f"{name_of(LAYOUTS[0])}.json", replace(derived(LAYOUTS[0]), device_kv_tokens=1))
    assert [file.stem for file in stale_files(tmp_path)] == [name_of(LAYOUTS[0])]
    monkeypatch.setattr(derive, "PROFILES", tmp_path)
    assert derive.main(["--check"]) == 1
    assert derive.main([]) == 0
    assert derive.main(["--check"]) == 0


def test_the_papers_models_and_this_machine_are_there() -> None:
    assert profile_names() == sorted(
        [
            "opt-2.7b-a100-40gb",
            "opt-13b-a100-40gb",
            "opt-66b-a100-40gb-tp4",
            "opt-175b-a100-40gb-tp8-pp2",
            "llama-3-8b-a100-40gb",
            "llama-3-8b-h100",
            "llama-3-8b-h200",
            *MEASURED,
        ]
    )


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_has_all_that_a_simulation_needs(name: str) -> None:
    profile = find_profile(name)
    assert profile.name == name
    assert profile.description
    assert profile.kv_bytes_per_token
    assert profile.device_kv_tokens
    assert profile.host_kv_tokens
    assert profile.link
    assert profile.max_model_len
    assert profile.source["kind"] == ("measured" if name in MEASURED else "derived")


@pytest.mark.parametrize("name", MEASURED)
def test_measured_profiles_name_their_hardware(name: str) -> None:
    source = find_profile(name).source
    assert source["device"]
    assert source["threads"] == 2
    assert source["dtype"] == "bfloat16"
    assert "avx512_bf16" in str(source["instructions"])


@pytest.mark.parametrize(
    ("shape", "parameters"), [(OPT_2_7B, 2.7e9), (OPT_13B, 13e9), (OPT_66B, 66e9), (OPT_175B, 175e9), (LLAMA_3_8B, 8e9)]
)
def test_a_shape_has_as_many_weights_as_its_name_says(shape: Shape, parameters: float) -> None:
    assert stored_weights(shape) == pytest.approx(parameters, rel=0.03)


def test_kv_of_a_job_is_what_the_papers_say() -> None:
    assert 512 * kv_bytes_per_token(OPT_175B) / 2**30 == pytest.approx(2.3, abs=0.06)
    assert kv_bytes_per_token(LLAMA_3_8B) == 128 * 1024


def test_the_room_for_kv_is_within_2_percent_of_the_published_one() -> None:
    assert device_kv_tokens(Layout(OPT_13B, A100_40GB)) == pytest.approx(15_700, rel=0.02)
    assert device_kv_tokens(Layout(OPT_66B, A100_40GB, tensor_parallel=4)) == pytest.approx(9_700, rel=0.02)


def test_swapping_a_job_costs_as_much_of_a_decode_step_as_in_the_paper() -> None:
    swap_s = 512 * kv_bytes_per_token(OPT_175B) / OPT_ON_16.stages / link_speed(OPT_ON_16).bytes_per_s
    assert swap_s / decode_s(OPT_ON_16, 16, 512) == pytest.approx(0.036 / 0.250, rel=0.1)


@pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
def test_prefill_is_about_linear_and_decode_nearly_flat_in_the_batch(layout: Layout) -> None:
    long = layout.shape.context
    assert prefill_s(layout, long) / prefill_s(layout, long // 2) == pytest.approx(2, rel=0.2)
    assert decode_s(layout, 16, 256) < 2 * decode_s(layout, 1, 256)


def test_decode_of_one_job_is_reading_the_weights() -> None:
    read_s = 2 * stored_weights(OPT_13B) / (1555e9 * 0.8)
    assert decode_s(Layout(OPT_13B, A100_40GB), 1, 1) == pytest.approx(read_s + 40 * 20e-6 + 1e-3, rel=0.01)


def test_faster_memory_decodes_faster_and_the_same_compute_prefills_alike() -> None:
    on_h100, on_h200 = Layout(LLAMA_3_8B, H100), Layout(LLAMA_3_8B, H200)
    assert decode_s(on_h200, 16, 512) < decode_s(on_h100, 16, 512) < decode_s(Layout(LLAMA_3_8B, A100_40GB), 16, 512)
    assert prefill_s(on_h200, 4096) == prefill_s(on_h100, 4096)


def test_one_gpu_reduces_nothing_and_more_gpus_send_more() -> None:
    assert all_reduce_s(Layout(OPT_66B, A100_40GB), 512) == 0
    four, eight = (all_reduce_s(Layout(OPT_66B, A100_40GB, ranks), 512) for ranks in (4, 8))
    assert 0 < four < eight


@pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
def test_between_the_points_of_the_file_is_what_the_formula_gives(layout: Layout) -> None:
    cost = derived(layout).cost
    for tokens in (100, 200, 333, 700, 1500):
        assert cost.prefill_s(tokens) == pytest.approx(prefill_s(layout, tokens), rel=0.08 if tokens < 300 else 0.02)
    for batch, context in ((1, 100), (3, 900), (16, 333), (100, 1000)):
        assert cost.decode_s(batch, context) == pytest.approx(decode_s(layout, batch, context), rel=0.02)


def test_a_profile_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    name = name_of(LAYOUTS[0])
    assert find_profile(name) == find_profile(str(PROFILES / f"{name}.json")) == derived(LAYOUTS[0])
    with pytest.raises(
        InvalidFieldError, match=r"--profile: nothing is neither a file nor the name of a profile \(.*opt-13b"
    ):
        find_profile("nothing")
