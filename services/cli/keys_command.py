"""`fastserve keys`: make, list and revoke the API keys in a gateway's file (`--api-keys-file`). The gateway takes up a
change within two seconds.
"""

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from services.domain.errors import FastServeError, InvalidFieldError
from services.gateway.access.key_file import KeyRecord, change_keys, new_key, new_record, read_keys
from services.gateway.access.rate_limits import KeyLimits
from services.runtime.command_line import CommandError, ExitCode, parser, positive_int, tell

_COLUMNS = ("name", "created", "requests/min", "tokens/min", "at a time")


def _parser() -> argparse.ArgumentParser:
    made = parser("keys", "Make, list and revoke the API keys in a gateway's file, which holds their hashes alone.")
    actions = made.add_subparsers(dest="action", required=True, metavar="make|list|revoke")
    make = actions.add_parser("make", help="add a key and print it: nobody can read it again", allow_abbrev=False)
    make.add_argument("name", help="name of the key: letters, digits and ._@-, at most 64")
    for flag, text in (
        ("--requests-per-minute", "requests that the key may begin in a minute [no limit]"),
        ("--tokens-per-minute", "prompt and output tokens that the key may use in a minute [no limit]"),
        ("--max-concurrent", "requests of the key that may be open at a time [no limit]"),
    ):
        make.add_argument(flag, type=positive_int, metavar="N", help=text)
    listing = actions.add_parser("list", help="show the keys' names and limits", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="print one JSON object per key")
    revoke = actions.add_parser("revoke", help="remove keys: they open nothing from now on", allow_abbrev=False)
    revoke.add_argument("names", nargs="+", metavar="NAME", help="name of a key")
    for action in (make, listing, revoke):
        action.add_argument("--file", type=Path, required=True, metavar="FILE", help="the gateway's --api-keys-file")
    return made


def _make(arguments: argparse.Namespace) -> None:
    key = new_key()
    limits = KeyLimits(arguments.requests_per_minute, arguments.tokens_per_minute, arguments.max_concurrent)
    record = new_record(arguments.name, key, limits, datetime.now(UTC).date())

    def add(records: tuple[KeyRecord, ...]) -> Sequence[KeyRecord]:
        if any(one.name == record.name for one in records):
            raise InvalidFieldError("name", f"{arguments.file} has a key {record.name!r} already")
        return (*records, record)

    change_keys(arguments.file, add)
    print(key)
    tell("keys", f"this is key {record.name!r}; it is shown this once")


def _list(arguments: argparse.Namespace) -> None:
    records = read_keys(arguments.file)
    if arguments.json:
        for record in records:
            print(json.dumps(record.model_dump(exclude={"sha256"})))
        return
    rows = [_COLUMNS, *(_row(record) for record in records)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(record: KeyRecord) -> tuple[str, ...]:
    limits = (record.requests_per_minute, record.tokens_per_minute, record.max_concurrent)
    return (record.name, record.created or "-", *("-" if one is None else str(one) for one in limits))


def _revoke(arguments: argparse.Namespace) -> None:
    gone = set(arguments.names)

    def remove(records: tuple[KeyRecord, ...]) -> Sequence[KeyRecord]:
        if unknown := sorted(gone - {record.name for record in records}):
            raise InvalidFieldError("name", f"{arguments.file} has no key {unknown[0]!r}")
        return [record for record in records if record.name not in gone]

    change_keys(arguments.file, remove)
    tell("keys", f"revoked {', '.join(sorted(gone))}")


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        {"make": _make, "list": _list, "revoke": _revoke}[arguments.action](arguments)
    except FastServeError as error:
        raise CommandError(str(error), ExitCode.REFUSED) from None
    return ExitCode.OK
