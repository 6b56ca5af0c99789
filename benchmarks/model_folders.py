"""The random-weight models that benchmarks run, made when first needed."""

import subprocess
import sys
from pathlib import Path

from benchmarks.settings import BenchError

ROOT = Path(__file__).resolve().parents[1]
RANDOM = ROOT / "models" / "random"
MAKING_LIMIT_S = 300.0


def random_model(preset: str, device: str = "cpu") -> Path:
    """The folder of a preset of models/make_random.py, whose numbers `device` draws. An existing one is kept."""
    folder = RANDOM / preset
    # The weights are written last.
    if not (folder / "model.safetensors").exists():
        argv = [sys.executable, "-m", "models.make_random", "--preset", preset, "--device", device]
        argv += ["--out", str(folder)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=MAKING_LIMIT_S, check=False)
        if done.returncode != 0:
            raise BenchError(f"model {preset} can't be made: {done.stderr.strip().splitlines()[-1]}")
    return folder
