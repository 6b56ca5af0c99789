"""`fastserve plan`: what each rank holds, and what is refused with the smallest layout that fits."""

import json
from pathlib import Path

import pytest

from services.cli.plan_command import parse_size
from tests.builders.repository_paths import BUNDLED, PUBLISHED_CONFIGS, ROOT
from tests.cli.commands import fastserve


def config_of(name: str) -> str:
    return str(PUBLISHED_CONFIGS / f"{name}.json")


async def test_a_plan_shows_every_rank_and_the_papers_figure(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--model-config", config_of("opt-175b"), "--gpu", "80GiB", "--tp", "8", "--pp", "2", "--length", "512")
    assert await fastserve("plan", *argv) == 0
    out = capsys.readouterr().out
    assert "174,604,468,224 parameters, 325.2 GiB in float16" in out
    assert "KV of one job of 512 tokens: 2.3 GiB (2,415,919,104 bytes)" in out
    rows = [line.split() for line in out.splitlines() if line.endswith("144.0 MiB")]
    assert [row[:3] for row in rows] == [[str(n), str(n // 8), "0-47" if n < 8 else "48-95"] for n in range(16)]
    assert "The group has 10,657 blocks of 16 tokens: --kv-device-tokens 170512, 333 such jobs at a time." in out


async def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--model-config", config_of("llama-3-8b"), "--gpu", "24GB", "--dtype", "float32", "--pp", "4", "--json")
    assert await fastserve("plan", *argv) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["gpu_bytes"], plan["length"], plan["parameters"]) == (24 * 10**9, 8192, 8_030_261_248)
    assert sum(rank["weight_bytes"] for rank in plan["ranks"]) == 4 * plan["parameters"]
    assert sum(rank["layers"] for rank in plan["ranks"]) == 32
    assert plan["kv_blocks"] == min(rank["kv_blocks"] for rank in plan["ranks"])


async def test_the_readme_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text()
    argv = ("--model-config", config_of("llama-3-70b"))
    assert await fastserve("plan", *argv, "--gpu", "80GiB") == 2
    assert capsys.readouterr().err in readme
    assert await fastserve("plan", *argv, "--gpu", "40GiB", "--tp", "2", "--pp", "2") == 0
    assert capsys.readouterr().out in readme


@pytest.mark.parametrize(
    ("text", "gpu_bytes"),
    [("80GiB", 80 << 30), ("80Gi", 80 << 30), ("40960MiB", 40 << 30), ("0.5 TiB", 512 << 30), ("80gb", 80 * 10**9)],
)
def test_memory_has_a_unit(text: str, gpu_bytes: int) -> None:
    assert parse_size(text) == gpu_bytes


async def test_a_model_folder_may_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert await fastserve("plan", "--model-config", str(BUNDLED), "--gpu", "512MiB") == 0
    assert "1 rank of 512.0 MiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ("--gpu", "80GiB"),
            "--tp 1 --pp 1 does not fit into 80.0 GiB each: rank 0 has 325.2 GiB of weights; the smallest layout that "
            "fits is --tp 1 --pp 5 (5 ranks)",
        ),
        (
            ("--gpu", "80GiB", "--tp", "5"),
            "--tp: 96 attention heads can't be shared out evenly among 5 ranks; the nearest layout that can be is "
            "--tp 4 --pp 1; the smallest layout that fits is --tp 1 --pp 5 (5 ranks)",
        ),
        (("--gpu", "80GiB", "--pp", "97"), "--pp: 97 stages need a layer each; the model has 96; the nearest layout"),
        (("--gpu", "1GiB"), "no layout of up to 8 ranks a stage fits into 1.0 GiB each"),
        (("--gpu", "80"), "--gpu: '80' is not a size such as 80GiB"),
        (("--gpu", "0GiB"), "--gpu: '0GiB' is not more than 0"),
        (("--gpu", "80GiB", "--tp", "0"), "--tp: 0 is less than 1"),
        (("--gpu", "80GiB", "--length", "2049"), "--length: must be at most the model's context of 2048 tokens"),
    ],
)
async def test_what_can_not_be_is_refused_in_one_line(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await fastserve("plan", "--model-config", config_of("opt-175b"), *argv) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


async def test_too_little_room_for_one_job_is_told_with_the_room_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert await fastserve("plan", "--model-config", config_of("llama-3-8b"), "--gpu", "16GiB") == 2
    assert (
        "rank 0 has 15.0 GiB of weights and room for KV of 6816 tokens, less than one job of 8192; the smallest layout "
        "that fits is --tp 2 --pp 1 (2 ranks), or a shorter --length"
    ) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a file"),
        ("{", "is not JSON"),
        ('{"model_type": "mixtral"}', "model_type 'mixtral' is not supported"),
        ('{"model_type": "opt", "hidden_size": 64}', "num_attention_heads is missing"),
    ],
)
async def test_a_config_that_can_not_be_read_is_refused_with_its_name(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some.json"
    if content is not None:
        path.write_text(content)
    assert await fastserve("plan", "--model-config", str(path), "--gpu", "80GiB") == 2
    err = capsys.readouterr().err
    assert message in err
    assert str(path) in err
