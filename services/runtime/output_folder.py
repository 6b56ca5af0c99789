"""A check of the output folder before long work begins."""

from pathlib import Path
from tempfile import TemporaryFile


def make_writable(folder: Path) -> None:
    """Create the folder and a temporary file in it, so that hours of work are not lost when the result is written.
    Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder):
        pass
