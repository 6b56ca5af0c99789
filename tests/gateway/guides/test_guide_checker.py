"""Guides are checked in a process beside the gateway, within a limit of time."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.domain.errors import AdmissionFullError, InvalidFieldError
from services.domain.guide import Guide, GuideKind
from services.gateway.guides import guide_checker as module
from services.gateway.guides.guide_checker import GuideChecker
from tests.gateway.tiny_model import word_piece_tokenizer, write_folder

GOOD, BAD = Guide(GuideKind.REGEX, "[0-9]+"), Guide(GuideKind.REGEX, "(a")


@pytest.fixture
async def checker(model: Path) -> AsyncIterator[GuideChecker]:
    made = GuideChecker(model)
    yield made
    await made.close()


async def test_the_answer_is_kept_and_one_process_serves_all_who_ask(checker: GuideChecker) -> None:
    await asyncio.gather(*(checker.check(GOOD) for _ in range(5)), checker.check(None))
    for _ in range(2):
        with pytest.raises(InvalidFieldError, match="unclosed group") as refused:
            await checker.check(BAD)
        assert refused.value.field == "sampling.guide.regex"
    assert checker.starts == 1


async def test_a_guide_that_takes_too_long_is_refused_and_the_next_one_gets_a_new_process(
    checker: GuideChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await checker.check(GOOD)
    monkeypatch.setattr(checker, "_limit_s", 0.0)
    with pytest.raises(InvalidFieldError, match="can't be compiled within 0 s"):
        await checker.check(BAD)
    monkeypatch.undo()
    with pytest.raises(InvalidFieldError, match="unclosed group"):
        await checker.check(BAD)
    assert checker.starts == 2


async def test_a_client_that_goes_away_leaves_the_check_to_the_others(checker: GuideChecker) -> None:
    gone = asyncio.create_task(checker.check(GOOD))
    others = asyncio.create_task(checker.check(GOOD))
    await asyncio.sleep(0)
    gone.cancel()
    await others
    assert checker.starts == 1


async def test_a_tokenizer_that_cannot_be_used_refuses_every_guide(tmp_path: Path) -> None:
    checker = GuideChecker(write_folder(tmp_path / "words", word_piece_tokenizer()))
    for guide in (GOOD, BAD):
        with pytest.raises(InvalidFieldError, match="guides are not possible with this tokenizer"):
            await checker.check(guide)
    await checker.close()


async def test_so_many_can_wait_and_no_more(checker: GuideChecker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 1)
    waiting = asyncio.create_task(checker.check(GOOD))
    await asyncio.sleep(0)
    with pytest.raises(AdmissionFullError):
        await checker.check(BAD)
    await waiting
