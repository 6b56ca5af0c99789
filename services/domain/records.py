"""Many NamedTuples at once.

Messages that are made once per job and iteration are NamedTuples. Calling such a class runs `__new__`, which is Python
code and takes most of the time; making the tuples of a whole batch without it takes half as long.
"""

from collections.abc import Iterable
from itertools import repeat
from typing import TypeVar

RecordT = TypeVar("RecordT", bound=tuple[object, ...])


def records(kind: type[RecordT], rows: Iterable[tuple[object, ...]]) -> list[RecordT]:
    """One of `kind`, a NamedTuple, for each row. A row holds all fields in their order: defaults are not filled in."""
    return list(map(tuple.__new__, repeat(kind), rows))
