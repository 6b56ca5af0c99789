"""Writes the transcripts anew: `python -m tests.golden.write`. Read the difference before it is committed."""

from pathlib import Path

from tests.golden.stage import Stage
from tests.golden.stories import STORIES
from tests.golden.words import Story, transcript

FOLDER = Path(__file__).parent / "transcripts"


def told(story: Story) -> str:
    """The story as it goes now."""
    return transcript(story, Stage(story.setup).play())


def path_of(story: Story) -> Path:
    """Where it is written."""
    return FOLDER / f"{story.name}.txt"


def main() -> None:
    """Write them all."""
    FOLDER.mkdir(exist_ok=True)
    for story in STORIES:
        path_of(story).write_text(told(story), encoding="utf-8")
        print(f"wrote {path_of(story)}")


if __name__ == "__main__":
    main()
