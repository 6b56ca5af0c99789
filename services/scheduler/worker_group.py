"""One worker group as the scheduler's service sees it."""

from dataclasses import fields

from services.domain.iteration import WorkerCounters


class CountersOverEpochs:
    """A worker counts since its life (epoch) began; this adds up its lives."""

    def __init__(self) -> None:
        self._before = WorkerCounters()
        self._present = WorkerCounters()

    def born(self) -> None:
        """A new life begins at nothing."""
        self._before, self._present = self.total(), WorkerCounters()

    def counted(self, counters: WorkerCounters) -> None:
        """What the present life has counted so far."""
        self._present = counters

    def total(self) -> WorkerCounters:
        """All lives together."""
        pairs = ((getattr(self._before, one.name), getattr(self._present, one.name)) for one in fields(WorkerCounters))
        return WorkerCounters(*(before + present for before, present in pairs))
