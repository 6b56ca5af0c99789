"""An engine as the settings say: pools within memory, a measured cost model kept for the next start."""

from pathlib import Path

import pytest
import torch

from models.make_random import PRESETS
from services.domain.cost import CostProfile
from services.domain.errors import FastServeError, InvalidFieldError, ModelFolderError
from services.domain.mixed_cost import MixedCost
from services.runtime.profile_file import read_profile
from services.runtime.settings import Settings
from services.worker import profile_command
from services.worker.build import build, default_dtype
from services.worker.kv.pools import BlockShape, block_counts
from services.worker.profiling.cost_measurement import Measurer, MeasuringLimits, measure
from services.worker.profiling.link_speed import measure_link
from services.worker.settings import EngineSettings, ProfileSettings
from tests.builders.model_folders import tiny_model_folder
from tests.worker.tiny_engine import tiny_model, tiny_pools

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHAPE = BlockShape(layer_count=2, block_size=16, kv_head_count=4, head_dim=64, dtype=torch.bfloat16)
MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("models"))


def settings_of(folder: Path, **fields: object) -> EngineSettings:
    plain: dict[str, object] = {
        "model": folder,
        "threads": 1,
        "max_batch": 2,
        "kv_device_tokens": 128,
        "kv_host_tokens": 256,
        "max_model_len": 64,
    }
    return EngineSettings.model_validate(plain | fields)


class TestPoolSizes:
    def test_a_block_holds_keys_and_values_of_all_layers(self) -> None:
        assert SHAPE.block_bytes == 2 * 2 * 16 * 4 * 64 * 2
        assert SHAPE.pool_shape(3) == (3, 2, 2, 16, 4, 64)

    def test_what_is_asked_for_is_given_in_whole_blocks(self) -> None:
        assert block_counts(SHAPE, CPU, 100, 1000, 1 << 40, 1 << 40) == (6, 62)

    def test_a_default_is_made_to_fit(self) -> None:
        assert block_counts(SHAPE, CPU, None, None, 1 << 40, 1 << 40) == (2048, 8192)
        device, host = block_counts(SHAPE, CPU, None, None, 100 * MIB, 100 * MIB)
        assert (device + host) * SHAPE.block_bytes <= 80 * MIB
        assert host >= 100

    def test_workers_of_one_machine_share_defaults_and_memory_but_get_what_is_asked_for(self) -> None:
        assert block_counts(SHAPE, CPU, None, None, 1 << 40, 1 << 40, 2) == (1024, 4096)
        device, host = block_counts(SHAPE, CPU, None, None, 100 * MIB, 100 * MIB, 2)
        assert (device + host) * SHAPE.block_bytes <= 40 * MIB
        assert block_counts(SHAPE, CPU, 100, 1000, 1 << 40, 1 << 40, 2) == (6, 62)

    def test_pools_of_a_gpu_and_of_its_host_do_not_share_memory(self) -> None:
        device, host = block_counts(SHAPE, CUDA, None, None, 10 * MIB, 100 * MIB)
        assert device * SHAPE.block_bytes <= 8 * MIB
        assert host == 4 * device

    @pytest.mark.parametrize(
        ("device_tokens", "host_tokens", "field"), [(10**9, None, "kv-device-tokens"), (16, 10**9, "kv-host-tokens")]
    )
    def test_too_much_is_refused_with_what_it_needs_and_what_is_free(
        self, device_tokens: int, host_tokens: int | None, field: str
    ) -> None:
        with pytest.raises(
            InvalidFieldError, match=r"needs \d+ MiB .* 80 MiB may be used|needs \d+ MiB .* 79 MiB"
        ) as caught:
            block_counts(SHAPE, CPU, device_tokens, host_tokens, 100 * MIB, 100 * MIB)
        assert caught.value.field == field

    def test_less_than_a_block_is_refused(self) -> None:
        with pytest.raises(InvalidFieldError, match="at least one block of 16 tokens"):
            block_counts(SHAPE, CPU, 15, None, 1 << 40, 1 << 40)


class TestProfile:
    def test_it_has_a_point_for_every_doubling_and_never_falls(self) -> None:
        profile = measure(tiny_model(), tiny_pools(), MeasuringLimits(max_model_len=100, max_batch=6), {}).cost
        assert [point.tokens for point in profile.prefill] == [16, 32, 64, 100]
        places = [(point.batch, point.context_tokens) for point in profile.decode]
        assert places == [(batch, context) for batch in (1, 2, 4, 6) for context in (64, 100)]
        seconds = [point.seconds for point in profile.prefill]
        assert seconds == sorted(seconds)
        assert profile.decode_s(6, 100) >= profile.decode_s(1, 100) >= profile.decode_s(1, 64) > 0

    @pytest.mark.parametrize("max_model_len", [100, 101])  # 101: each sequence has a block that is not full
    def test_it_leaves_the_pools_as_they_were(self, max_model_len: int) -> None:
        pools = tiny_pools()
        measure(tiny_model(), pools, MeasuringLimits(max_model_len, max_batch=2), {})
        assert not bool(pools.device.any())

    def test_it_does_not_go_beyond_the_pool(self) -> None:
        limits = MeasuringLimits(max_model_len=512, max_batch=2)
        profile = measure(tiny_model(), tiny_pools(device_blocks=10), limits, {})
        assert profile.cost.prefill[-1].tokens == 40
        assert [point[:3] for point in profile.mixed] == [(40, 1, 40)]

    def test_the_command_writes_it_with_its_source(self, model: Path, tmp_path: Path) -> None:
        arguments = ["--model", str(model), "--out", str(tmp_path / "p.json"), "--threads", "1", "--dtype", "float32"]
        limits = ["--max-model-len", "64", "--max-batch", "2", "--kv-device-tokens", "128"]
        assert profile_command.main([*arguments, *limits]) == 0
        profile = read_profile(tmp_path / "p.json")
        source = profile.source
        assert (source["kind"], source["model"], source["dtype"], source["threads"]) == (
            "measured",
            "tiny",
            "float32",
            1,
        )
        assert source["device"]
        assert source["measured_at"]

    def test_the_command_writes_and_says_how_far_the_model_is_from_mixed_iterations(
        self, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(CostProfile, "iteration_s", lambda *_: 0.003)
        monkeypatch.setattr(Measurer, "mixed_s", lambda _, prompt, decodes, context: {4: 0.004, 5: 0.0025}[decodes])
        arguments = ["--model", str(model), "--out", str(tmp_path / "p.json"), "--threads", "1", "--dtype", "float32"]
        limits = ["--max-model-len", "64", "--kv-device-tokens", "512"]
        assert profile_command.main([*arguments, *limits, "--max-batch", "6"]) == 0
        profile = read_profile(tmp_path / "p.json")
        assert profile.mixed == (MixedCost(64, 4, 64, 0.004, 0.003), MixedCost(64, 5, 64, 0.0025, 0.003))
        assert capsys.readouterr().out == f"{profile.source['model_error']}\n"
        assert profile.source["model_error"] == (
            "The cost model's error against measured mixed iterations (modelled / measured - 1; points: 2) is "
            "-2.5 % at the median and -25.0 % at worst."
        )

    def test_the_command_says_nothing_of_mixed_iterations_if_a_batch_is_one_job(
        self, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["--model", str(model), "--out", str(tmp_path / "p.json"), "--threads", "1", "--dtype", "float32"]
        limits = ["--max-model-len", "64", "--max-batch", "1", "--kv-device-tokens", "128"]
        assert profile_command.main([*arguments, *limits]) == 0
        assert capsys.readouterr().out == ""
        profile = read_profile(tmp_path / "p.json")
        assert profile.mixed == ()
        assert {"mixed", "model_error"} & set(profile.source) == set()

    def test_the_command_writes_the_group_around_the_cost_model(self, model: Path, tmp_path: Path) -> None:
        arguments = ["--model", str(model), "--out", str(tmp_path / "p.json"), "--threads", "1", "--dtype", "float32"]
        limits = ["--max-model-len", "64", "--max-batch", "2", "--kv-device-tokens", "128", "--kv-host-tokens", "256"]
        assert profile_command.main([*arguments, *limits]) == 0
        profile = read_profile(tmp_path / "p.json")
        shape = PRESETS["tiny"]
        kv_values = 2 * shape.layers * shape.kv_heads * shape.head_dim
        assert profile.kv_bytes_per_token == kv_values * 4
        assert (profile.device_kv_tokens, profile.host_kv_tokens, profile.max_model_len) == (128, 256, 64)
        assert (profile.stages, profile.tensor_parallel, profile.name) == (1, 1, "p")
        assert profile.link is not None
        assert profile.link.bytes_per_s > 0

    def test_the_command_has_no_flag_of_a_service_or_of_the_kept_cost_models(
        self, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert set(ProfileSettings.model_fields) & {*Settings.model_fields, "state_dir"} == set()
        arguments = ["--model", str(model), "--out", str(tmp_path / "p.json")]
        assert profile_command.main([*arguments, "--state-dir", str(tmp_path)]) == 1
        assert "unrecognized arguments: --state-dir" in capsys.readouterr().err

    def test_measuring_the_link_leaves_the_pools_as_they_were(self) -> None:
        pools = tiny_pools()
        pools.device.fill_(1)
        link = measure_link(pools)
        assert link.bytes_per_s > 0
        assert link.latency_s >= 0
        assert bool((pools.device == 1).all())


class TestBuild:
    def test_the_facts_are_those_of_the_engine(self, model: Path, tmp_path: Path) -> None:
        built = build(settings_of(model), profile_folder=tmp_path)
        built.engine.close()
        facts = built.facts
        assert (facts.device_blocks, facts.host_blocks, facts.block_size, facts.max_model_len) == (8, 16, 16, 64)
        assert facts.block_bytes == built.engine.pools.device[0].nbytes
        assert built.engine.pools.device.dtype == torch.bfloat16

    def test_without_a_batch_up_to_64_jobs_are_measured_among_which_the_scheduler_can_choose(
        self, model: Path, tmp_path: Path
    ) -> None:
        built = build(settings_of(model, max_batch=None), profile_folder=tmp_path)
        built.engine.close()
        assert max(point.batch for point in built.facts.profile.decode) == 64

    def test_the_measured_profile_is_kept_for_workers_of_the_same_kind(self, model: Path, tmp_path: Path) -> None:
        first, second = (
            build(settings_of(model), profile_folder=tmp_path),
            build(settings_of(model), profile_folder=tmp_path),
        )
        other = build(settings_of(model, dtype="float32"), profile_folder=tmp_path)
        for built in (first, second, other):
            built.engine.close()
        assert first.facts.profile == second.facts.profile != other.facts.profile
        assert len(list((tmp_path / "profiles").iterdir())) == 2

    def test_a_damaged_profile_is_measured_again(self, model: Path, tmp_path: Path) -> None:
        build(settings_of(model), profile_folder=tmp_path).engine.close()
        (kept,) = (tmp_path / "profiles").iterdir()
        kept.write_text("{")
        build(settings_of(model), profile_folder=tmp_path).engine.close()
        assert read_profile(kept)

    @pytest.mark.parametrize(
        ("fields", "kind", "message"),
        [
            ({"kv_device_tokens": 3}, InvalidFieldError, "at least one block"),
            ({"kv_device_tokens": 10**13}, InvalidFieldError, "MiB may be used"),
            ({"max_model_len": 513}, InvalidFieldError, "context of 512"),
            ({"model": Path("/nowhere")}, ModelFolderError, "nowhere"),
        ],
    )
    def test_what_can_not_be_is_refused(
        self, model: Path, tmp_path: Path, fields: dict[str, object], kind: type[FastServeError], message: str
    ) -> None:
        with pytest.raises(kind, match=message):
            build(settings_of(model, **fields), profile_folder=tmp_path)

    def test_weights_are_bfloat16_unless_something_else_is_asked_for(self) -> None:
        assert [default_dtype(name, CPU) for name in ("float32", "float16", "bfloat16", None)] == ["bfloat16"] * 4
        assert default_dtype("float16", CUDA) == "float16"
