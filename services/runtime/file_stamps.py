"""Whether files have changed since they were last looked at, by what the file system says of them."""

import os
from collections.abc import Iterable
from pathlib import Path

FileStamps = tuple[tuple[int, int, int] | None, ...]
"""Of each file time, inode and size; None if it is not there. A link that leads elsewhere now has another inode."""


def file_stamps(paths: Iterable[Path]) -> FileStamps:
    """The stamps of the files now; they differ when a file does."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ino, found.st_size)
