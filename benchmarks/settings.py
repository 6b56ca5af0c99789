"""The settings of a benchmark run, and the error of a part that can't be measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from services.scheduler.scheduler_config import SchedulerConfig
from services.scheduler.settings import SchedulerSettings

T = TypeVar("T")

DEFAULT_MAX_BATCH = SchedulerConfig().max_batch
MAX_BATCH_TOKENS: int = SchedulerSettings.model_fields["max_batch_tokens"].default


class BenchError(Exception):
    """A part can't be measured; its message is one line for the user."""


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """`scratch` gets what a run leaves besides its results: logs, traces, raw records. `threads` None: the worker's
    own default.
    """

    scratch: Path
    quick: bool = False
    max_batch: int = DEFAULT_MAX_BATCH
    threads: int | None = None

    def pick(self, whole: T, quick: T) -> T:
        """The whole size, or the small one of a quick run."""
        return quick if self.quick else whole

    def folder(self, *names: str) -> Path:
        """A folder below the scratch folder, made."""
        made = self.scratch.joinpath(*names)
        made.mkdir(parents=True, exist_ok=True)
        return made

    def engine_flags(self) -> list[str]:
        """Flags that servers and engines share. Cost models are measured once in a run, on a quiet machine."""
        return [*self.measuring_flags(), "--state-dir", str(self.folder("state"))]

    def measuring_flags(self) -> list[str]:
        """Those of them that `fastserve profile` takes, which keeps nothing."""
        flags = ["--max-batch", str(self.max_batch), "--dtype", "bfloat16"]
        return flags if self.threads is None else [*flags, "--threads", str(self.threads)]
