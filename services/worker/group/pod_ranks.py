"""All ranks of a pod, started by the first of them (`--pod-ranks`): a pod is a stage with `tp` ranks, a process each.

A rank that ends takes its pod's container with it, and that it ends is written in the container's last line; the
container's next life begins with all of them. A group outlives that as it outlives the death of a rank.
"""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from services.domain.errors import InvalidFieldError
from services.runtime.settings import Address
from services.worker.group.placement import first_of_pod
from services.worker.settings import WorkerSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodShare:
    """The ranks of this pod: `settings.tp`, beginning with number `first`. The leader of their group listens at
    `leader`.
    """

    settings: WorkerSettings
    first: int
    leader: Address

    def settings_of(self, place: int) -> WorkerSettings:
        """Of the rank at this place in the pod. All share the processors and the memory."""
        own = {"rank": self.first + place, "leader": self.leader, "threads": self._threads, "workers_here": self._count}
        return self.settings.model_copy(update=own)

    def start_others(self) -> None:
        """Starts every rank but the first. Each ends when this process does; and if one does, this process does.

        Raises InvalidFieldError if the pod has other than a GPU per rank.
        """
        if self.settings.device == "cuda":
            _check_gpus(self._count)
        for place in range(1, self._count):
            rank = subprocess.Popen(self._command(place), env={**os.environ, "LOCAL_RANK": str(place)})
            threading.Thread(target=_end_with, args=(rank, self.first + place), daemon=True).start()

    @property
    def _count(self) -> int:
        return self.settings.tp

    @property
    def _threads(self) -> int | None:
        return self.settings.threads and max(1, self.settings.threads // self._count)

    def _command(self, place: int) -> list[str]:
        """This process's own command; the last of two equal flags counts."""
        threads = self._threads
        return [
            sys.executable, *sys.orig_argv[1:], "--no-pod-ranks", "--rank", str(self.first + place),
            "--leader", self.leader, "--workers-here", str(self._count),
            "--threads", "off" if threads is None else str(threads),
            "--ready-file", "off", "--die-with-parent", str(os.getpid()),
        ]  # fmt: skip


def share_of_pod(settings: WorkerSettings, environ: Mapping[str, str]) -> PodShare | None:
    """The ranks that this process starts, itself among them; None for a group of one rank.

    Raises InvalidFieldError if the pods of the group are not its stages.
    """
    first, leader = first_of_pod(settings.layout, environ)
    return None if settings.layout.rank_count == 1 else PodShare(settings, first, settings.leader or leader)


def _check_gpus(rank_count: int) -> None:
    import torch

    found = torch.cuda.device_count()
    if found != rank_count:
        raise InvalidFieldError("--tp", f"is {rank_count}, but this pod has {found} GPUs: a rank has one")


def _end_with(rank: "subprocess.Popen[bytes]", number: int) -> None:
    status = rank.wait()
    _log.error("rank %d of this pod ended with status %d", number, status)
    os._exit(1)
