"""Rewrites the transcripts: `python -m tests.golden.write`. Read the difference before you commit it."""

from pathlib import Path

from tests.golden.stories import STORIES
from tests.golden.story_server import StoryServer
from tests.golden.words import Story, transcript

FOLDER = Path(__file__).parent / "transcripts"


def told(story: Story) -> str:
    """The story as it goes now."""
    return transcript(story, StoryServer(story.setup).play())


def path_of(story: Story) -> Path:
    """The file of a story's transcript."""
    return FOLDER / f"{story.name}.txt"


def main() -> None:
    """Write all transcripts."""
    FOLDER.mkdir(exist_ok=True)
    for story in STORIES:
        path_of(story).write_text(told(story), encoding="utf-8")
        print(f"wrote {path_of(story)}")


if __name__ == "__main__":
    main()
