"""The training text: the same cut on every machine, held-out files never trained on."""

from models.corpus import Kind, chats_of, documents, is_held_out

SOURCE = '''"""Tools that fold paper into animals and boats."""

class Crane:
    """A bird, folded from one square sheet."""

    def fold(self):
        """Fold once more, along the given line."""

    def undocumented(self):
        pass

def short():
    """Too short."""
'''


def test_docstrings_become_questions_with_their_dotted_names_and_answers() -> None:
    text = "".join(chats_of("origami/tools.py", SOURCE))
    assert text.count("<|user|>\n") == text.count("<|assistant|>\n") == 3
    assert text.count("<|end_of_turn|>\n") == 6
    for name in ("origami.tools", "origami.tools.Crane", "origami.tools.Crane.fold"):
        assert name in text
    assert "<|assistant|>\nFold once more, along the given line.<|end_of_turn|>\n" in text
    assert "Too short" not in text


def test_a_file_that_does_not_parse_gives_no_chats() -> None:
    assert list(chats_of("old.py", "print 'hello'")) == []


def test_whether_a_file_is_held_out_is_decided_by_its_path_alone() -> None:
    assert is_held_out("operator.py")
    assert is_held_out("asyncio/locks.py")
    assert not is_held_out("json/__init__.py")


def test_held_out_documents_are_of_every_kind_and_all_of_held_out_paths() -> None:
    kept = list(documents(is_held_out))
    assert {document.kind for document in kept} == set(Kind)
    assert all(is_held_out(document.path) for document in kept)
