"""References resolve: what the code cites of docs/, what the documents link to, and the tests that they name.

Code cites docs/papers.md as `PAPER 2` or `PAPER 2, step 3`, and docs/protocol.md as `PROTOCOL 4`, `rules 3 and 4`, or
by a rule's name in brackets. Tests may move between folders: the documents name them by file and name.
"""

import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.builders.repository_paths import ROOT

PAPERS = ROOT / "docs" / "papers.md"
PROTOCOL = ROOT / "docs" / "protocol.md"
CODE_FOLDERS = ("services", "deploy", "docker", "evaluation", "profiles", "benchmarks", "tests", "models", "protos")
SOURCE_OF_REPORT = ROOT / "evaluation" / "conclusions.md"
"""With its marks it is no document; what is made of it, docs/evaluation/REPORT.md, is one."""
DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*.md") if path != SOURCE_OF_REPORT),
    ]
)
RESERVED_RULES = {21, 22}
MOST_ARCHITECTURE_LINES = 130
MOST_ARCHITECTURE_COLUMNS = 160

NUMBERS = r"\d+(?:(?:, | and | to )\d+)*"
PAPER_CITATION = re.compile(r"\bPAPER (\d+)(?:, step (\d+))?")
RULE_CITATION = re.compile(rf"\b(?:PROTOCOL|(?:PROTOCOL )?[Rr]ules?) ({NUMBERS})")
NUMBERED_NAME = re.compile(r"\[(?:(?:PROTOCOL )?rule )?(\d+),? ([a-z]+(?:-[a-z]+)*)\]")
BARE_NAME = re.compile(r"(?<!ignore)\[([a-z]{2,}(?:-[a-z]+)+)\](?!\()")
RULE_TEST = re.compile(r"\bdef test_(?:rule_)?(\d+)_")
OUTSIDE = re.compile(
    r"\b(?:DESIGN|NAMES|STYLE|K8S|REST) \d|\b(?:PROTOCOL|PAPER|ARCHITECTURE|DESIGN) section\b"
    r"|\b(?:DESIGN|FACTS|INTERFACES|NAMES|STYLE|PAPER|PROTOCOL|K8S|REST)\.md\b|\b(?:DESIGN|FACTS|INTERFACES)\b"
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED_TEST = re.compile(r"`(test_\w+\.py)::(\w+)`")
NAMED_TEST_FILE = re.compile(r"`(test_\w+\.py)`")
NAMED_PATH = re.compile(rf"`((?:{'|'.join(CODE_FOLDERS)}|docs)(?:/[\w.-]+)*)/?`")


def code_files() -> Iterator[Path]:
    for folder in CODE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            is_generated = "_pb2" in path.name or "__pycache__" in path.parts
            if path.suffix in {".py", ".proto"} and not is_generated and path != Path(__file__).resolve():
                yield path


def prose(path: Path) -> str:
    """Comments and strings of Python, all of any other text, on one line: citations may be wrapped."""
    if path.suffix != ".py":
        return re.sub(r"\s+(?:// )?", " ", path.read_text(encoding="utf-8"))
    with path.open("rb") as file:
        parts = [
            token.string.lstrip("# ")
            for token in tokenize.tokenize(file.readline)
            if tokenize.tok_name[token.type] in {"COMMENT", "STRING", "FSTRING_MIDDLE"}
        ]
    return re.sub(r"\s+", " ", " ".join(parts))


@cache
def citing_texts() -> dict[str, str]:
    """By file: what may cite the documents."""
    return {str(path.relative_to(ROOT)): prose(path) for path in (*code_files(), *DOCUMENTS)}


@cache
def anchors(document: Path) -> frozenset[str]:
    """What a link may name: the document's own anchors, and its headings as GitHub writes them."""
    text = without_code(document)
    found = re.findall(r'<a id="([^"]+)">', text)
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", LINK.sub("", heading).lower()).strip().replace(" ", "-")
        found.append(slug if slug not in found else f"{slug}-{found.count(slug)}")
    return frozenset(found)


def without_code(document: Path) -> str:
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def expanded(numbers: str) -> Iterator[int]:
    """`3, 4` and `19 and 20` are each of them, `7 to 16` all from one to the other."""
    previous = 0
    for separator, digits in re.findall(r"(, | and | to |)(\d+)", numbers):
        yield from range(previous + 1 if separator == " to " else int(digits), int(digits) + 1)
        previous = int(digits)


@cache
def rules() -> dict[int, str]:
    """By number: the text of the rule."""
    parts = re.split(r'<a id="rule-(\d+)"></a>', PROTOCOL.read_text(encoding="utf-8"))
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def rule_names(number: int) -> list[str]:
    return re.findall(r"`\[([a-z-]+)\]`", rules().get(number, ""))


def test_every_citation_of_the_papers_has_an_anchor() -> None:
    cited = [
        (name, f"paper-{number}" + (f"-step-{step}" if step else ""))
        for name, text in citing_texts().items()
        for number, step in PAPER_CITATION.findall(text)
    ]
    assert len(cited) > 20
    assert [place for place in cited if place[1] not in anchors(PAPERS)] == []


def test_every_citation_of_a_rule_has_an_anchor() -> None:
    cited = [
        (name, number)
        for name, text in citing_texts().items()
        for numbers in RULE_CITATION.findall(text)
        for number in expanded(numbers)
    ]
    assert len(cited) > 50
    assert [place for place in cited if f"rule-{place[1]}" not in anchors(PROTOCOL)] == []


def test_every_rule_that_is_cited_by_name_has_that_name() -> None:
    names = {name for number in rules() for name in rule_names(number)}
    unknown = [
        (file, name) for file, text in citing_texts().items() for name in BARE_NAME.findall(text) if name not in names
    ]
    misnumbered = [
        (file, number, name)
        for file, text in citing_texts().items()
        for number, name in NUMBERED_NAME.findall(text)
        if name not in rule_names(int(number))
    ]
    assert (unknown, misnumbered) == ([], [])


def test_every_test_that_is_named_after_a_rule_has_a_rule() -> None:
    named = [
        (str(path.relative_to(ROOT)), int(number))
        for path in code_files()
        if path.name.startswith("test_")
        for number in RULE_TEST.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(named) > 40
    assert [place for place in named if place[1] not in rules()] == []


@pytest.mark.parametrize("number", sorted(set(rules()) - RESERVED_RULES))
def test_every_rule_names_its_code_and_tests_that_exist(number: int) -> None:
    text = rules()[number]
    tests = NAMED_TEST.findall(text)
    assert tests, "a rule without a test"
    assert "- Code: [" in text
    for file, name in tests:
        holding = [
            str(path.relative_to(ROOT))
            for path in (ROOT / "tests").rglob(file)
            if re.search(rf"\bdef {name}\(", path.read_text(encoding="utf-8"))
        ]
        assert len(holding) == 1, f"{file}::{name} is in {holding}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS])
def test_every_link_of_a_document_resolves_within_the_repository(document: Path) -> None:
    broken = []
    for link in LINK.findall(without_code(document)):
        if link.startswith(("https://", "http://")):
            continue
        file, _, fragment = link.partition("#")
        target = (document.parent / file).resolve() if file else document
        is_here = target.is_relative_to(ROOT) and target.exists()
        if not is_here or (fragment and fragment not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS])
def test_every_file_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = [path for path in NAMED_PATH.findall(text) if not (ROOT / path).exists()]
    missing += [name for name in NAMED_TEST_FILE.findall(text) if not any((ROOT / "tests").rglob(name))]
    assert missing == []


def test_nothing_refers_to_a_document_outside_the_repository() -> None:
    found = [(name, match.group()) for name, text in citing_texts().items() for match in OUTSIDE.finditer(text)]
    assert found == []


def test_the_architecture_is_one_page() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_ARCHITECTURE_LINES
    assert max(map(len, lines)) <= MOST_ARCHITECTURE_COLUMNS
