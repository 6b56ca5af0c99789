"""Keeps what simulations gave, so that an interrupted evaluation goes on where it was.

A run's numbers are kept in a file of its own, named after the run and its profile, in a folder named after the code
that made them: the sources of every module that a simulation imports. A change of any of them runs all anew.

Whoever works with a folder holds a shared lock on a file in it. A folder of other code is removed by whoever gets its
lock for itself alone, so never under the hands of an evaluation that still runs.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from evaluation.values import Measured, Run
from services.experiments.named_profiles import PROFILES
from services.workloads.job_records import write_lines

_DIGEST_CHARACTERS = 16
_CODE_FOLDER = re.compile(rf"code-[0-9a-f]{{{_DIGEST_CHARACTERS}}}")
_LOCK_FILE = "lock"
_MOST_TRIES = 100
"""Of taking a folder that others remove: each try fails only if one did so in that very moment."""
_LIST_SOURCES = (
    "import sys, evaluation.simulating; ours = ('services', 'evaluation'); "
    "print(*sorted(m.__file__ for n, m in sys.modules.items() if n.startswith(ours) and m.__file__), sep='\\n')"
)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGEST_CHARACTERS]


def sources() -> list[Path]:
    """The files of the code that a run's numbers depend on. A fresh interpreter tells what a simulation imports."""
    listed = subprocess.run(
        [sys.executable, "-c", _LIST_SOURCES], check=True, capture_output=True, text=True, timeout=60
    )
    return [Path(line) for line in listed.stdout.splitlines()]


def code_digest() -> str:
    """Stands for that code."""
    return _digest(b"\0".join(path.read_bytes() for path in sources()))


@dataclass(frozen=True, slots=True)
class Kept:
    """Where the numbers of a run are or will be."""

    path: Path
    run: str

    def write(self, measured: Measured) -> None:
        """Keep them, whole or not at all."""
        write_lines(self.path, [json.dumps({"run": self.run, **asdict(measured)})])

    def write_story(self, story: str) -> Path:
        """Keep, in place of numbers, what a run tells that gives none."""
        path = self.path.with_suffix(".txt")
        write_lines(path, [self.run, *story.splitlines()])
        return path

    def read(self) -> Measured | None:
        """The numbers, if they are there; a file that is not ours is as none."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            return Measured(**content) if content.pop("run") == self.run else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def _locked(folder: Path, operation: int) -> int:
    """Lock a folder that is there; gives what holds the lock until it is closed. Raises OSError."""
    held = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(held, operation)
    except OSError:
        os.close(held)
        raise
    return held


def _taken(folder: Path) -> int:
    """Make the folder and lock it for use, beside others who use it. Raises OSError."""
    for _ in range(_MOST_TRIES):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            held = _locked(folder, fcntl.LOCK_SH)
        except FileNotFoundError:
            continue
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), os.stat(folder / _LOCK_FILE)):
                return held
        os.close(held)
    raise OSError(f"{folder} is removed again and again")


def _remove_unused(folder: Path) -> None:
    """Remove the folder, unless somebody uses it or it can't be told whether."""
    with suppress(OSError):
        held = _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            shutil.rmtree(folder)
        finally:
            os.close(held)


class FinishedRuns:
    """The runs that this code has finished, in a folder. Those of other code are removed: nobody asks for them, but for
    who uses them now. The folder is in use as long as this lives.
    """

    def __init__(self, folder: Path, code: str) -> None:
        self._folder = folder / f"code-{code}"
        weakref.finalize(self, os.close, _taken(self._folder))
        for other in folder.iterdir():
            if _CODE_FOLDER.fullmatch(other.name) and other != self._folder:
                _remove_unused(other)

    def kept(self, run: Run) -> Kept:
        """Where the numbers of this run are or will be. Raises OSError if its profile cannot be read."""
        asked = f"{run!r} {_digest((PROFILES / f'{run.server.profile}.json').read_bytes())}"
        return Kept(self._folder / f"{_digest(asked.encode())}.json", asked)
