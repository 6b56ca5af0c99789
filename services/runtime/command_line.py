"""Shared by all commands: argument parsing with one-line errors, exit codes, and the error that carries one.

A command module has `main(argv) -> int`. It raises CommandError for problems outside the program;
`services.cli.__main__` prints the error as one line on stderr and exits with its code.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

DEFAULT_SERVER = "127.0.0.1:50051"
API_KEY_VARIABLE = "FASTSERVE_API_KEY"


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


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """A server, and how to reach it. `tls`: over TLS, with a certificate from the CA in the file `ca`, or from one that
    gRPC trusts; `name`: which must have this name instead of the host's.
    """

    address: str
    api_key: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: Path | None = None
    name: str | None = None


def add_server(to: argparse.ArgumentParser) -> None:
    """Add the flags that say which server, which every client command has; `server_of` reads them."""
    to.add_argument(
        "--server", default=DEFAULT_SERVER, metavar="HOST:PORT", help=f"gRPC address of the gateway [{DEFAULT_SERVER}]"
    )
    to.add_argument("--tls", action="store_true", help="speak TLS, and take a certificate from a well-known CA")
    to.add_argument("--tls-ca", type=Path, metavar="FILE", help="speak TLS, and take a certificate of this CA alone")
    to.add_argument("--tls-peer-name", metavar="NAME", help="name of the server in its certificate [its host]")
    to.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help=f"file that holds an API key [the variable {API_KEY_VARIABLE}]",
    )


def server_of(arguments: argparse.Namespace) -> ServerAccess:
    """The server that the flags of `add_server` name. Raises CommandError."""
    key: str | None = os.environ.get(API_KEY_VARIABLE) or None
    file: Path | None = arguments.api_key_file
    if file is not None:
        try:
            key = file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(
                f"--api-key-file: can't read an API key from {file}: {error}", ExitCode.REFUSED
            ) from None
    tls = bool(arguments.tls or arguments.tls_ca or arguments.tls_peer_name)
    return ServerAccess(arguments.server, key, tls, arguments.tls_ca, arguments.tls_peer_name)


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


def float_between(least: float, most: float) -> Callable[[str], float]:
    """An argparse type: a number from `least` to `most`."""

    def read(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least:g} and {most:g}")
        return value

    return read


def tell(command: str, message: str) -> None:
    """Print one line on stderr."""
    print(f"fastserve {command}: {message}", file=sys.stderr, flush=True)
