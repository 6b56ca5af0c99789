"""Shared by all commands: argument parsing with one-line errors, exit codes, and the error that carries one.

A command module has `main(argv) -> int`. It raises CommandError for problems outside the program;
`services.cli.__main__` prints the error as one line on stderr and exits with its code.
"""

import argparse
import sys
from typing import NoReturn

DEFAULT_SERVER = "127.0.0.1:50051"


class ExitCode:
    """Exit codes of every command."""

    OK = 0
    FAILED = 1
    REFUSED = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


class CommandError(Exception):
    """A command can't do what it was asked to do. `str(error)` is one line for the person who can fix it."""

    def __init__(self, message: str, exit_code: int = ExitCode.FAILED) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the whole usage."""
        raise CommandError(f"{' '.join(message.split())} (see {self.prog} --help)", ExitCode.REFUSED)


def parser(command: str, description: str) -> OneLineParser:
    """The parser of `fastserve COMMAND`."""
    return OneLineParser(prog=f"fastserve {command}", description=description, allow_abbrev=False)


def add_server(to: argparse.ArgumentParser) -> None:
    """Add the `--server` flag, which every client command has."""
    to.add_argument(
        "--server", default=DEFAULT_SERVER, metavar="HOST:PORT", help=f"gRPC address of the gateway [{DEFAULT_SERVER}]"
    )


def positive_int(text: str) -> int:
    """An argparse type: 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def at_most(value: int, most: int) -> int:
    """For argparse types: returns `value` unless it is greater than `most`."""
    if value > most:
        raise argparse.ArgumentTypeError(f"{value} is greater than {most}")
    return value


def not_negative_float(text: str) -> float:
    """An argparse type: a finite number that is at least 0."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number that is at least 0")
    return value


def positive_float(text: str) -> float:
    """An argparse type: a finite number greater than 0."""
    value = not_negative_float(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text} is not greater than 0")
    return value


def tell(command: str, message: str) -> None:
    """Print one line on stderr."""
    print(f"fastserve {command}: {message}", file=sys.stderr, flush=True)
