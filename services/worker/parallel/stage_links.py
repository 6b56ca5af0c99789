"""What a rank exchanges with the others of its group while it computes: hidden states, sums, logits.

Theory of operation
-------------------
Each rank of a stage has the same hidden states, so each sends its own to its counterpart in the next stage. A send
returns at once: the stage goes on with its next plan while the bytes are on their way. What has been sent is kept until
it has left, and at most MOST_UNSENT pieces are on their way, since a stage may be faster than the one behind it.

Gloo moves bytes only once the receiver has asked for them, and its threads, which do it, get a processor that computes
some milliseconds late. So a rank asks as soon as it hears of a step (`expect`), while it computes those before. On a
GPU it does not: there a receive that waits holds back what is launched after it.

Sums are made within a stage, by a `Sums` of the stage's ranks. Logits of a head that is cut by vocabulary come together
at the first rank of the last stage.

Every wait is bounded, so that a peer that hangs ends the group's epoch. Sums come after equal work of all ranks and are
waited for `limit_s` seconds. Hidden states come when the stage before has computed the same plan, which may be a long
prefill: then they are waited for longer, in proportion to this rank's own times (`Patience`).

The groups belong to an epoch, and so does a StageLinks. Errors of a wait are RuntimeErrors: the rank's epoch is over.
"""

import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from services.worker.parallel.layout import GroupRank, even_cut

MOST_UNSENT = 4
LONG_ROWS = 64
"""A plan of fewer rows takes a stage far less than the limit of a wait."""
PATIENCE = 3.0
"""The stage before may take so many times as long for a long plan as this rank lately took."""
FADING = 0.8
"""What is left of a slow plan's weight after the next long one."""
FIRST_PATIENCE_S = 30.0
"""For a process's first plan, and its first long one: libraries load, kernels are made."""


class Sums(Protocol):
    """Adds up over the ranks of a stage."""

    def add_up(self, part: Tensor) -> None:
        """Replaces `part`, which every rank has in the same shape, by the sum of all.

        Raises RuntimeError if a rank does not come within the limit.
        """
        ...

    def close(self) -> None: ...


class GroupSums:
    """Sums by torch.distributed, for ranks of any machines.

    Gloo adds up three or more parts in an order that depends on the place within a tensor, hence on the batch. In
    float32 the parts are therefore exchanged and added in the order of the ranks.
    """

    def __init__(self, group: dist.ProcessGroup, limit_s: float) -> None:
        self._group = group
        self._size = dist.get_world_size(group)
        self._limit = timedelta(seconds=limit_s)

    def add_up(self, part: Tensor) -> None:
        if self._size == 2 or part.dtype != torch.float32 or not part.is_cpu:
            _awaited(dist.all_reduce(part, group=self._group, async_op=True), self._limit)
            return
        parts = part.new_empty((self._size, *part.shape))
        _awaited(dist.all_gather(list(parts.unbind()), part.contiguous(), self._group, async_op=True), self._limit)
        part.copy_(parts[0])
        for other in parts[1:]:
            part.add_(other)

    def close(self) -> None:
        """The process groups are not this object's."""


class Patience:
    """How much longer than the limit a stage may take for a plan, by this rank's own times. Kept over epochs."""

    def __init__(self) -> None:
        self._seen = False
        self._row_s: float | None = None

    def took(self, row_count: int, seconds: float) -> None:
        """A step of this rank."""
        self._seen = True
        if row_count >= LONG_ROWS:
            self._row_s = max(seconds / row_count, FADING * (self._row_s or 0.0))

    def seconds(self, row_count: int) -> float:
        """For a plan of so many rows."""
        if not self._seen:
            return FIRST_PATIENCE_S
        if row_count < LONG_ROWS:
            return 0.0
        return FIRST_PATIENCE_S if self._row_s is None else PATIENCE * self._row_s * row_count


class StageLinks:
    """A rank's links to the others in one epoch.

    `store` is the epoch's, at which its ranks met. `activations` is a group of all ranks; `sums` adds up over those of
    this stage, and is None with a single rank a stage. `waited_s` counts the time that hidden states were waited for.
    """

    def __init__(
        self,
        rank: GroupRank,
        store: Store,
        activations: dist.ProcessGroup,
        sums: Sums | None,
        limit_s: float,
    ) -> None:
        self.rank = rank
        self.store = store
        self.sums = sums
        self.patience = Patience()
        self.waited_s = 0.0
        self._activations = activations
        self._limit_s = limit_s
        self._unsent: deque[tuple[dist.Work, Tensor]] = deque()
        self._expected: deque[tuple[dist.Work, Tensor]] = deque()

    def expect(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
        """Asks for hidden states that a later `receive` will return. Called in the order of the passes, before each is
        begun, from any thread.
        """
        if device.type == "cpu":
            with suppress(RuntimeError):  # a broken connection stays so: `receive` says it
                self._expected.append(self._asked(shape, dtype, device))

    def receive(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """The hidden states of the stage before, [T, D]. Raises RuntimeError if they do not come in time."""
        started_s = time.perf_counter()
        work, x_TD = self._expected.popleft() if self._expected else self._asked(shape, dtype, device)
        assert x_TD.shape == shape, "a pass's rows are those that were expected"
        _awaited(work, timedelta(seconds=self._limit_s + self.patience.seconds(shape[0])))
        self.waited_s += time.perf_counter() - started_s
        return x_TD

    def _asked(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> tuple[dist.Work, Tensor]:
        x_TD = torch.empty(shape, dtype=dtype, device=device)
        return _begun(dist.irecv(x_TD, self.rank.before, self._activations)), x_TD

    def send(self, x_TD: Tensor) -> None:
        """Begins to send hidden states to the next stage. Raises RuntimeError if earlier ones have not left in time."""
        if len(self._unsent) >= MOST_UNSENT:
            work, _ = self._unsent.popleft()
            _awaited(work, timedelta(seconds=self._limit_s + self.patience.seconds(x_TD.shape[0])))
        x_TD = x_TD.contiguous()
        self._unsent.append((_begun(dist.isend(x_TD, self.rank.after, self._activations)), x_TD))

    def bounced_s(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> float:
        """Seconds that hidden states [T, D] take to the next stage, by the first two stages: the second sends them back
        at once. 0 on every rank but those of the first stage. Raises RuntimeError if they do not come in time.
        """
        if self.rank.stage > 1 or self.rank.layout.pp == 1:
            return 0.0
        x_TD, limit = torch.zeros(shape, dtype=dtype, device=device), timedelta(seconds=self._limit_s)
        started_s = time.perf_counter()
        if self.rank.in_first_stage:
            _awaited(dist.isend(x_TD, self.rank.after, self._activations), limit)
            _awaited(dist.irecv(x_TD, self.rank.after, self._activations), limit)
            return (time.perf_counter() - started_s) / 2
        _awaited(dist.irecv(x_TD, self.rank.before, self._activations), limit)
        _awaited(dist.isend(x_TD, self.rank.before, self._activations), limit)
        return 0.0

    def gather_logits(self, part_SV: Tensor, vocabulary_size: int) -> Tensor | None:
        """The logits of the whole vocabulary, [S, vocabulary_size], on the rank that samples; None on the others of its
        stage, which have sent their part.
        """
        tp, limit = self.rank.layout.tp, timedelta(seconds=self._limit_s)
        if tp == 1:
            return part_SV
        if not self.rank.samples:
            _awaited(dist.isend(part_SV.contiguous(), self.rank.number - self.rank.place, self._activations), limit)
            return None
        row_count = part_SV.shape[0]
        parts = [part_SV]
        works = []
        for place in range(1, tp):
            other = part_SV.new_empty((row_count, len(even_cut(vocabulary_size, tp, place))))
            works.append(dist.irecv(other, self.rank.number + place, self._activations))
            parts.append(other)
        for work in works:
            _awaited(work, limit)
        return torch.cat(parts, dim=1)

    def close(self) -> None:
        """Lets go of what the sums hold. What is still on its way is dropped with the groups."""
        self._unsent.clear()
        self._expected.clear()
        if self.sums is not None:
            self.sums.close()


def _begun(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is in the group"
    return work


def _awaited(work: dist.Work | None, limit: timedelta) -> None:
    _begun(work).wait(limit)
