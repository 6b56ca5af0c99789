"""The engine without services answers what benchmarks ask of it."""

import json
from pathlib import Path

import pytest

from benchmarks.engines import engine
from benchmarks.settings import BenchError, BenchSettings
from tests.builders.model_folders import tiny_model_folder


async def test_an_engine_alone_runs_traces_streams_and_copies(tmp_path: Path) -> None:
    model = tiny_model_folder(tmp_path)
    trace = tmp_path / "trace.jsonl"
    lengths = [(5, 3), (20, 1), (9, 7)]
    trace.write_text(
        "".join(
            json.dumps({"arrival_s": 0, "prompt_tokens": prompt, "output_tokens": output}) + "\n"
            for prompt, output in lengths
        )
    )
    settings = BenchSettings(tmp_path / "scratch", quick=True, max_batch=2, threads=1)
    async with engine(settings, model, "--kv-device-tokens", "2048", "--kv-host-tokens", "2048") as alone:
        assert alone.threads == 1
        ran = await alone.ask("trace", file=str(trace))
        assert (ran["jobs"], ran["prompt_tokens"], ran["output_tokens"]) == (3, 34, 11)
        single = await alone.ask("single", prompt_tokens=16, output_tokens=8)
        assert single["prefill_s"] > 0
        copied = await alone.ask("copy", jobs=2, scattered=True)
        assert copied["bytes"] == 2 * 512 * 2 * 2 * 2 * 16 * 2  # tokens, K and V, layers, kv heads, head size, bfloat16
        assert min(copied[f"{way}_s"] for way in ("offload", "upload", "plain_one_thread")) > 0


async def test_an_engine_that_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"the engine's process ended: .*missing"):
        async with engine(BenchSettings(tmp_path / "scratch"), tmp_path / "missing"):
            raise AssertionError("no engine was there to start")
