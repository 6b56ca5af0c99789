"""What the house asks of every file of this repository, beyond what ruff, mypy and import-linter can see."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.builders.repository_paths import ROOT

FOLDERS = ("services", "deploy", "evaluation", "profiles", "models", "benchmarks", "tests")
MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 70
LIGHT_MODULES = (
    "services.scheduler.__main__",
    "services.kvmanager.__main__",
    "services.gateway.__main__",
    "services.cli.__main__",
)
MOST_LIGHT_IMPORT_S = 60
SAME_IN_EVERY_SERVICE = {"__init__", "__main__", "driver", "metrics", "service", "settings"}
"""Module names that may stand in several folders: each means the same part of another service."""
ID_TYPES = {"JobId", "PlanNumber", "CommandNumber"}
ID_NAMES = re.compile(r"(_id|_ids|_number|_numbers|^number)$")


class Outline(NamedTuple):
    """What is asked about a file's syntax tree, which is read once."""

    has_docstring: bool
    functions: list[tuple[int, str, int]]
    """Line, name and length in lines."""
    class_names: list[str]
    held_ids: list[tuple[int, str]]
    """Line and name of each field of a class and each argument that is annotated as one id, or as one or None."""


@cache
def sources() -> tuple[Path, ...]:
    folders = (sorted((ROOT / folder).rglob("*.py")) for folder in FOLDERS)
    found = (path for paths in folders for path in paths if "__pycache__" not in path.parts)
    return (ROOT / "protos" / "generate.py", *found)


@cache
def outline(path: Path) -> Outline:
    module = ast.parse(path.read_text())
    seen = Outline(ast.get_docstring(module) is not None, [], [], [])
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                seen.functions.append((node.lineno, node.name, lines))
            case ast.ClassDef():
                seen.class_names.append(node.name)
                seen.held_ids.extend(
                    (field.lineno, name) for field in node.body if (name := field_of_one_id(field)) is not None
                )
            case ast.arg(arg=name, annotation=ast.expr() as annotation) if holds_one_id(annotation):
                seen.held_ids.append((node.lineno, name))
    return seen


def field_of_one_id(statement: ast.stmt) -> str | None:
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if holds_one_id(annotation):
            return name
    return None


def holds_one_id(annotation: ast.expr) -> bool:
    match annotation:
        case ast.Name(id=name) | ast.BinOp(left=ast.Name(id=name), right=ast.Constant(value=None)):
            return name in ID_TYPES
    return False


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {named(path): len(path.read_text().splitlines()) for path in sources()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_FILE_LINES} == {}


def test_no_function_is_longer_than_70_lines() -> None:
    long = {
        f"{named(path)}:{line} {name}": lines
        for path in sources()
        for line, name, lines in outline(path).functions
        if lines > MOST_FUNCTION_LINES
    }
    assert long == {}


def test_init_files_are_empty() -> None:
    assert [named(path) for path in sources() if path.name == "__init__.py" and path.stat().st_size] == []


def test_every_file_begins_by_saying_what_it_is_about() -> None:
    assert [named(path) for path in sources() if path.stat().st_size and not outline(path).has_docstring] == []


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


def repeated(names: Iterator[tuple[str, Path]]) -> dict[str, list[str]]:
    """The names that stand in several files."""
    places: dict[str, list[str]] = {}
    for name, path in names:
        places.setdefault(name, []).append(named(path))
    return {name: files for name, files in places.items() if len(files) > 1}


def services() -> list[Path]:
    return [path for path in sources() if path.is_relative_to(ROOT / "services")]


def test_a_class_name_is_defined_once() -> None:
    assert repeated((name, path) for path in services() for name in outline(path).class_names) == {}


def test_a_module_name_is_defined_once_unless_every_service_has_that_part() -> None:
    modules = ((path.stem, path) for path in services() if path.stem not in SAME_IN_EVERY_SERVICE)
    assert repeated(modules) == {}


def of_tests() -> list[Path]:
    return [path for path in sources() if path.is_relative_to(ROOT / "tests")]


def test_a_double_has_a_class_name_of_its_own() -> None:
    """Its name says what it stands for and who meets it: FakeWorkerForScheduler is at the worker's end of the
    scheduler's WorkerLink.
    """
    assert repeated((name, path) for path in of_tests() for name in outline(path).class_names) == {}


def test_what_tests_share_is_in_modules_with_names_of_their_own() -> None:
    shared = (path for path in of_tests() if path.name not in ("__init__.py", "conftest.py"))
    assert repeated((path.stem, path) for path in shared if not path.name.startswith("test_")) == {}


def test_no_package_holds_a_single_module() -> None:
    folders = {path.parent for path in services()}
    lone = {folder for folder in folders if len([one for one in folder.glob("*.py") if one.name != "__init__.py"]) == 1}
    assert [named(folder) for folder in lone if not any(one.parent == folder for one in folders)] == []


def test_what_holds_an_id_says_so_in_its_name() -> None:
    """A `job` is the object, its id is `job_id`."""
    wrong = [
        f"{named(path)}:{line} {name}"
        for path in services()
        for line, name in outline(path).held_ids
        if not ID_NAMES.search(name)
    ]
    assert wrong == []
