"""Certificates from files, read anew when the files change.

Files that do not fit together, for a moment while they are replaced or for good, change nothing, and are named in one
line of the log.
"""

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from services.domain.errors import InvalidFieldError
from services.runtime.file_stamps import FileStamps, file_stamps

_log = logging.getLogger(__name__)

MOST_PEM_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: a certificate with those between it and its CA, its key, and the CA that peers' certificates must be
    from. `ca` None, at a server: peers need no certificate. `peer_name`: the name that a peer's certificate must have;
    None: at a client the host that it dials, at a server any. `flags`: how the flags begin that name the files.
    """

    cert: Path
    key: Path
    ca: Path | None = None
    peer_name: str | None = None
    flags: str = "--tls"

    @property
    def named(self) -> tuple[tuple[str, Path], ...]:
        """The files by their flags."""
        named = [(f"{self.flags}-cert", self.cert), (f"{self.flags}-key", self.key)]
        return tuple(named if self.ca is None else [*named, (f"{self.flags}-ca", self.ca)])


class Pems(NamedTuple):
    """The content of the files."""

    cert: bytes
    key: bytes
    ca: bytes | None


def _read(flag: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_PEM_BYTES + 1)
    except OSError as error:
        raise InvalidFieldError(flag, f"can't read {path}: {error.strerror}") from None
    if len(data) > MOST_PEM_BYTES:
        raise InvalidFieldError(flag, f"{path} must be at most {MOST_PEM_BYTES} bytes long")
    return data


def check_ca(flag: str, path: Path) -> bytes:
    """The content of a file of CA certificates. Raises InvalidFieldError if it is none."""
    data = _read(flag, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError as error:
        raise InvalidFieldError(flag, f"{path} has no certificates in PEM format ({_reason(error)})") from None
    return data


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


def read_pems(files: TlsFiles) -> Pems:
    """The files' content. Raises InvalidFieldError, which names the flag, if one can't be read or they do not fit
    together.
    """
    (cert_flag, _), (key_flag, _), *of_ca = files.named
    cert, key = _read(cert_flag, files.cert), _read(key_flag, files.key)
    try:
        # An empty password, lest a key that has one asks for it at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.cert, files.key, password="")
    except (ssl.SSLError, ValueError) as error:
        reason = _reason(error) if isinstance(error, ssl.SSLError) else str(error)
        what = f"{files.cert} and {files.key} are no certificate and its key, in PEM format and without a password"
        raise InvalidFieldError(f"{cert_flag} and {key_flag}", f"{what} ({reason})") from None
    return Pems(cert, key, check_ca(*of_ca[0]) if of_ca else None)


class Certificates:
    """The files' content as it is now, or as it last was good. For any thread."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises InvalidFieldError."""
        self.files = files
        self._lock = threading.Lock()
        self._paths = tuple(path for _, path in files.named)
        self._seen = file_stamps(self._paths)
        self._pems = read_pems(files)

    @classmethod
    def of(cls, files: TlsFiles | None) -> "Certificates | None":
        """None without files. Raises InvalidFieldError."""
        return None if files is None else cls(files)

    def pems(self) -> Pems:
        """The content."""
        with self._lock:
            seen = file_stamps(self._paths)
            if seen != self._seen:
                self._read_anew(seen)
            return self._pems

    def _read_anew(self, seen: FileStamps) -> None:
        try:
            pems = read_pems(self.files)
        except InvalidFieldError as error:
            self._seen = seen
            _log.error("the certificates stay what they were: %s", error)
            return
        if file_stamps(self._paths) == seen:
            self._seen = seen
            self._pems = pems
            _log.info("new certificates: %s", ", ".join(map(str, self._paths)))
        # Else they were changed while they were read: what was checked may not be what was read.
