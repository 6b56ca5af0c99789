"""What the house asks of every file of this repository, beyond what ruff, mypy and import-linter can see."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("services", "models", "benchmarks", "tests")
MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 70
LIGHT_MODULES = (
    "services.scheduler.__main__",
    "services.kvmanager.__main__",
    "services.gateway.__main__",
    "services.cli.__main__",
)
MOST_LIGHT_IMPORT_S = 60


def sources() -> Iterator[Path]:
    yield ROOT / "protos" / "generate.py"
    for folder in FOLDERS:
        yield from sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {named(path): len(path.read_text().splitlines()) for path in sources()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_FILE_LINES} == {}


def test_no_function_is_longer_than_70_lines() -> None:
    long = {
        f"{named(path)}:{node.lineno} {node.name}": lines
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_FUNCTION_LINES
    }
    assert long == {}


def test_init_files_are_empty() -> None:
    assert [named(path) for path in sources() if path.name == "__init__.py" and path.stat().st_size] == []


def test_every_file_begins_by_saying_what_it_is_about() -> None:
    silent = [
        named(path)
        for path in sources()
        if path.stat().st_size and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert silent == []


def test_nothing_is_left_for_later_and_no_error_is_swallowed() -> None:
    later = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b|except (Base)?Exception:\s*\n\s*pass\b")
    assert [named(path) for path in sources() if later.search(path.read_text())] == []


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_what_needs_no_tensors_never_imports_torch(module: str) -> None:
    program = f"import sys, {module}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=MOST_LIGHT_IMPORT_S,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.strip() == "[]"
