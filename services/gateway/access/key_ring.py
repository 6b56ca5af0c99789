"""The API keys that a gateway takes now, and what their calls have used.

A call shows its key as `authorization: Bearer KEY`, in gRPC's metadata; a REST front puts the header of that name
there, and nothing else that its client sends. From the key follow a name and limits, and from nothing else.

The file is looked at every second and read anew when it has changed. One that can't be used changes nothing, and is
named in one line of the log. A key that is gone opens no more calls; calls that it has opened go on. Memory is for the
keys of the file, not for what callers send. Nothing here logs a key, or its hash.
"""

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from services.domain.errors import InvalidFieldError, UnauthenticatedError
from services.gateway.access.key_file import KeyRecord, digest_of, read_keys
from services.gateway.access.metered_call import MeteredCall
from services.gateway.access.rate_limits import KeyMeter
from services.runtime.file_stamps import file_stamps

_log = logging.getLogger(__name__)

AUTHORIZATION = "authorization"
LOOK_S = 1.0
MOST_KEY_CHARACTERS = 256

Metadata = Iterable[tuple[str, Any]]


class _Held(NamedTuple):
    digest: bytes
    meter: KeyMeter


def shown_key(metadata: Metadata) -> str:
    """The key that a call shows. Raises UnauthenticatedError."""
    values = [value for name, value in metadata if name == AUTHORIZATION]
    if not values:
        raise UnauthenticatedError("an API key is required, as the header `Authorization: Bearer KEY`")
    scheme, _, key = str(values[0]).partition(" ")
    key = key.strip()
    if len(values) > 1 or scheme.lower() != "bearer" or not key or " " in key:
        raise UnauthenticatedError("the header Authorization must be given once, as `Bearer KEY`")
    if len(key) > MOST_KEY_CHARACTERS:
        raise UnauthenticatedError("the API key is not valid")
    return key


class KeyRing:
    """The keys of a file. `watch` must be running for changes to be seen."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads the file. Raises InvalidFieldError."""
        self._path = path
        self._clock = clock
        self._held: dict[bytes, _Held] = {}
        self._seen = file_stamps((path,))
        self._use(read_keys(path))

    def __len__(self) -> int:
        return len(self._held)

    def meter_of(self, metadata: Metadata) -> KeyMeter:
        """The meter of the call's key. Raises UnauthenticatedError.

        The digests are looked up, and how long that takes tells nothing of a key: nobody can choose a key by its
        digest. The comparison that decides takes the same time whatever it compares.
        """
        digest = digest_of(shown_key(metadata))
        held = self._held.get(digest)
        if held is None or not hmac.compare_digest(held.digest, digest):
            raise UnauthenticatedError("the API key is not valid")
        return held.meter

    def call(self, metadata: Metadata) -> MeteredCall:
        """A call that generates: to be entered. Raises UnauthenticatedError, AdmissionFullError."""
        return MeteredCall(self.meter_of(metadata), self._clock)

    def _use(self, records: Iterable[KeyRecord]) -> None:
        now_s = self._clock()
        held: dict[bytes, _Held] = {}
        for record in records:
            digest = bytes.fromhex(record.sha256)
            known = self._held.get(digest)
            if known is None:
                held[digest] = _Held(digest, KeyMeter(record.name, record.limits, now_s))
            else:
                known.meter.name = record.name
                known.meter.set_limits(record.limits, now_s)
                held[digest] = known
        self._held = held

    async def look(self) -> None:
        """Reads the file anew if it has changed."""
        seen = file_stamps((self._path,))
        if seen == self._seen:
            return
        self._seen = seen
        try:
            records = await asyncio.to_thread(read_keys, self._path)
        except InvalidFieldError as error:
            _log.error("the API keys stay what they were: %s", error)
            return
        self._use(records)
        _log.info("%d API keys are valid now", len(self))

    async def watch(self) -> None:
        """Looks every second, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()
