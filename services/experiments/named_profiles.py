"""Profiles by name: the files of profiles/, beside the packages in a checkout (an editable install is one)."""

from pathlib import Path

from services.domain.errors import InvalidFieldError
from services.runtime.profile_file import Profile, read_profile

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
"""Part of the source tree, not of a wheel, like the bundled model."""


def profile_names(folder: Path = PROFILES) -> list[str]:
    """The names that `--profile` accepts."""
    return sorted(file.stem for file in folder.glob("*.json"))


def find_profile(name_or_file: str, folder: Path = PROFILES) -> Profile:
    """The profile of that name, or in that file. A name wins over a file of the same name; `./NAME` is a file.

    Raises InvalidFieldError.
    """
    names = profile_names(folder)
    if name_or_file in names:
        return read_profile(folder / f"{name_or_file}.json")
    file = Path(name_or_file)
    if not file.exists():
        known = ", ".join(names) if names else f"none: {folder} is missing"
        raise InvalidFieldError("--profile", f"{name_or_file} is neither a file nor the name of a profile ({known})")
    return read_profile(file)
