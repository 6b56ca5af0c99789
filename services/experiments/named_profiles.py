"""Profiles by name: the files of profiles/, beside the packages in a checkout (an editable install is one)."""

from pathlib import Path

from services.domain.errors import InvalidFieldError
from services.runtime.profile_file import Profile, read_profile

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
"""Comes with the source tree, not with a wheel, as the bundled model does."""


def profile_names(folder: Path = PROFILES) -> list[str]:
    """What `--profile` takes beside files."""
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
        raise InvalidFieldError("--profile", f"{name_or_file} is neither a file nor a profile's name ({known})")
    return read_profile(file)
