"""Where things lie in this repository."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "models" / "bundled"
PUBLISHED_CONFIGS = ROOT / "tests" / "worker" / "model" / "published_configs"
"""What decides the shapes of well-known models, from the config.json that each was published with."""
