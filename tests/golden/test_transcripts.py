"""Scheduler and KV manager still say, word for word, what the transcripts tell. If they are to say something else,
`python -m tests.golden.write` writes the transcripts anew, and the difference is what a reviewer reads.
"""

import pytest

from services.domain.protocol import PlanEntry
from services.scheduler.machine.scheduler_events import SendPlan
from tests.golden.stories import SHORT_AFTER_LONG, STORIES
from tests.golden.story_server import StoryServer
from tests.golden.words import Story
from tests.golden.write import FOLDER, path_of, told


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_the_machines_say_what_the_transcript_tells(story: Story) -> None:
    assert told(story) == path_of(story).read_text(encoding="utf-8")


def test_every_transcript_has_its_story() -> None:
    assert sorted(FOLDER.iterdir()) == sorted(path_of(story) for story in STORIES)


def test_no_position_is_computed_twice_by_the_job_that_was_swapped_out_and_back() -> None:
    plans = [said.message for said in StoryServer(SHORT_AFTER_LONG.setup).play() if isinstance(said.message, SendPlan)]
    parts = [entry for plan in plans for entry in plan.entries if entry.job_id == "long"]
    assert parts[0].from_token == 0
    assert all(isinstance(part, PlanEntry) for part in parts)
    assert [part.from_token for part in parts[1:]] == [part.to_token for part in parts[:-1]]
