"""Text that every machine with Python has, cut into documents to train the bundled model on.

Theory of operation
-------------------
Three kinds of documents come from the standard library of the running interpreter:

* ``prose``: the language reference as `help()` shows it, one document per topic of ``pydoc_data.topics``;
* ``chat``: questions and answers made from docstrings ("What does json.dumps do?"), in turns, so that the
  model's chat template can be used;
* ``code``: the library's own sources, without its tests, tables and vendored wheels.

Every document carries the path of the file it comes from.  Whether a document is held out is a function of that path
alone (a hash), so that it is the same on every machine and no docstring of a held-out file is trained on.  The topics,
which share one file, are distinguished by a ``#topic`` after the path.
"""

import ast
import hashlib
import importlib.util
import inspect
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from models.folder import turn

HELD_OUT_ONE_IN = 20
TURN_COUNT_MAX = 4
ANSWER_CHARACTERS_MIN = 30
ANSWER_CHARACTERS_MAX = 2400
SOURCE_BYTES_MAX = 400_000

# Tests repeat themselves, encodings and the generated parsers are tables, the wheels are not Python's own.
SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "pydoc_data", "ensurepip"}
    | {"lib2to3", "turtledemo", "__pycache__", "lib-dynload", "msilib"}
)

QUESTIONS = {
    "module": ("What is the module {name} for?", "Tell me about the module {name}.", "Explain {name}."),
    "class": ("What is {name}?", "Describe the class {name}.", "Explain {name}."),
    "function": ("What does {name} do?", "Explain {name}.", "How do I use {name}?"),
}


class Kind(Enum):
    """The kinds of documents."""

    PROSE = "prose"
    CHAT = "chat"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Document:
    """One text with the path, relative to the standard library, that decides whether it is held out."""

    kind: Kind
    path: str
    text: str


def stable_hash(text: str) -> int:
    """A 64-bit hash that is the same in every process and on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def is_held_out(path: str) -> bool:
    """Whether documents of this path are kept for measuring and never trained on."""
    return stable_hash(path) % HELD_OUT_ONE_IN == 0


def every_path(path: str) -> bool:
    """Accepts every document."""
    return bool(path)


def documents(wanted: Callable[[str], bool] = every_path) -> Iterator[Document]:
    """The documents of the running interpreter's standard library whose path is wanted, in order of their paths."""
    yield from (document for document in topic_documents() if wanted(document.path))
    root = Path(sysconfig.get_path("stdlib"))
    for file in source_files(root):
        path = file.relative_to(root).as_posix()
        if not wanted(path):
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        yield Document(Kind.CODE, path, text)
        for chat in chats_of(path, text):
            yield Document(Kind.CHAT, path, chat)


def source_files(root: Path) -> list[Path]:
    """The library's own modules below `root`, sorted, without tests and tables."""
    files = []
    for file in root.rglob("*.py"):
        folders = file.relative_to(root).parts
        of_the_build = folders[0].startswith("config-") or file.name.startswith("_sysconfigdata")
        if SKIPPED_FOLDERS.isdisjoint(folders) and not of_the_build and 0 < file.stat().st_size <= SOURCE_BYTES_MAX:
            files.append(file)
    return sorted(files)


def topic_documents() -> Iterator[Document]:
    """The topics of `help()`: chapters of the language reference as plain text."""
    specification = importlib.util.find_spec("pydoc_data.topics")
    if specification is None or specification.loader is None:
        return
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    topics: dict[str, str] = module.topics
    for name in sorted(topics):
        yield Document(Kind.PROSE, f"pydoc_data/topics.py#{name}", topics[name].strip() + "\n")


def chats_of(path: str, source: str) -> Iterator[str]:
    """Conversations of one to four turns about the docstrings of one source file."""
    turns = list(turns_of(path, source))
    start = 0
    while start < len(turns):
        length = 1 + stable_hash(turns[start]) % TURN_COUNT_MAX
        yield "".join(turns[start : start + length])
        start += length


def turns_of(path: str, source: str) -> Iterator[str]:
    """Question and answer, with the chat's special tokens, for every docstring worth reading."""
    module_name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    try:
        tree = ast.parse(source)
    except SyntaxError:  # the library keeps a few files of other dialects
        return
    for what, name, docstring in docstrings_of(tree, "module", module_name):
        answer = inspect.cleandoc(docstring)
        if ANSWER_CHARACTERS_MIN <= len(answer) <= ANSWER_CHARACTERS_MAX:
            choices = QUESTIONS[what]
            yield turn(choices[stable_hash(name) % len(choices)].format(name=name), answer)


def docstrings_of(node: ast.AST, what: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Kind of thing, dotted name and docstring of `node` and of all definitions directly inside, in depth."""
    assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    docstring = ast.get_docstring(node, clean=False)
    if docstring:
        yield what, name, docstring
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from docstrings_of(child, "class", f"{name}.{child.name}")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from docstrings_of(child, "function", f"{name}.{child.name}")
