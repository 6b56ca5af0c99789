"""Settings of a service that can record its machine."""

from pathlib import Path

from pydantic import Field

from services.runtime.settings import Settings

BYTES_PER_MB = 1_000_000


class RecordingSettings(Settings):
    """Whether and where to record."""

    record: Path | None = Field(
        None,
        description="folder for a recording of every decision until the service ends, for fastserve replay; "
        "it contains no text or tokens of clients; one file per worker group",
    )
    record_limit_mb: int = Field(
        256, ge=1, le=1_000_000, description="size in megabytes (compressed) at which the recording stops"
    )
