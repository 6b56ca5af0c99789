"""Settings of a service that can record its machine."""

from pathlib import Path

from pydantic import Field

from services.runtime.settings import Settings

BYTES_PER_MB = 1_000_000


class RecordingSettings(Settings):
    """Whether and where to record."""

    record: Path | None = Field(
        None,
        description="folder that gets a recording of every decision of this life, for fastserve replay; "
        "no text or tokens of clients are in it",
    )
    record_limit_mb: int = Field(
        256, ge=1, le=1_000_000, description="megabytes of compressed recording after which it stops"
    )
