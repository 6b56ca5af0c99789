"""What a command asks of the disk before work that takes long."""

from pathlib import Path
from tempfile import TemporaryFile


def make_writable(folder: Path) -> None:
    """Make the folder and try a file in it, so that hours of work don't end at its door. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder):
        pass
