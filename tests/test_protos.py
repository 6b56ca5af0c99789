"""The committed stubs are those of the committed protos."""

import importlib.util
from pathlib import Path

GENERATE = Path(__file__).resolve().parents[1] / "protos" / "generate.py"


def test_the_committed_stubs_are_current() -> None:
    spec = importlib.util.spec_from_file_location("generate", GENERATE)
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.stale(plugins=None) == []
