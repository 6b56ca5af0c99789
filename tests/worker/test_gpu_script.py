"""The script that checks and measures a GPU runs on any device, and finds nothing wrong."""

import json
from pathlib import Path

import torch

from benchmarks import gpu


def test_the_script_passes_on_a_cpu_with_a_tiny_model(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    out = tmp_path / "results" / "gpu.json"
    assert gpu.main(["--device", "cpu", "--sizes", "tiny", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["parity"]["float32_max_difference"] < 1e-4
    assert report["swapping"] == {
        "jobs": 6,
        "output_tokens": 12,
        "same_tokens": True,
        "broken_shows": True,
        "passed": True,
    }
    assert report["copies"]["upload_scattered_gb_per_s"] > 0
    assert [point["batch"] for point in report["speed"]["tiny"]["decode"]] == [1, 2]
    assert report["hardware"]["torch"] == torch.__version__
