"""A rank's part of a forward pass: its model, and what it exchanges with the other ranks around it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from services.worker.model.batch import BatchLayout, PagedKv
from services.worker.model.served_decoder import ServedDecoder
from services.worker.parallel.layout import GroupRank, Layout
from services.worker.parallel.stage_links import Patience, StageLinks
from services.worker.parallel.tensor_parallel import SumsLayers, sums_of

ALONE = GroupRank(0, Layout())


class StagePass:
    """Runs a rank's model within the links of an epoch. A group of one rank needs no links."""

    def __init__(self, model: ServedDecoder, rank: GroupRank = ALONE) -> None:
        self.model = model
        self.rank = rank
        self._links: StageLinks | None = None
        self._patience = Patience()
        self._layer_sums: SumsLayers | None = sums_of(model) if rank.layout.tp > 1 else None

    def begin_epoch(self, links: StageLinks | None) -> None:
        """What is exchanged from now on goes through `links`."""
        assert (links is None) == (self.rank.layout.rank_count == 1), "a group of several ranks has links"
        if self._links is not None:
            self._links.close()
        self._links = links
        if links is not None:
            links.patience = self._patience
        if self._layer_sums is not None:
            self._layer_sums.add_up = None if links is None or links.sums is None else links.sums.add_up

    @property
    def waited_s(self) -> float:
        """Time that this epoch waited for hidden states."""
        return 0.0 if self._links is None else self._links.waited_s

    def took(self, row_count: int, seconds: float) -> None:
        """Tells how long this rank computed, by which it judges how long to wait for others."""
        self._patience.took(row_count, seconds)

    def expect(self, row_count: int) -> None:
        """Asks the stage before for the hidden states of a pass of so many rows, which will be run after those expected
        before it. From any thread.
        """
        links = self._links
        if links is not None and not self.rank.in_first_stage:
            links.expect((row_count, self.model.config.hidden_size), self.model.hidden_dtype, self.model.device)

    def run(
        self, token_ids: Sequence[int], cache: PagedKv, batch: BatchLayout, keep_going: Callable[[], bool] | None = None
    ) -> Tensor | None:
        """Logits of the rows that sample, float32 [S, V], on the rank that samples; None on the others. All ranks are
        given the same. Raises PrefillCut, and RuntimeError when another rank does not come in time.
        """
        output: Tensor = self.model(self._inputs(token_ids, batch), cache, batch, keep_going)
        if self._links is None:
            return output
        if not self.rank.in_last_stage:
            self._links.send(output)
            return None
        if not len(batch.logit_rows):
            return output if self.rank.samples else None
        return self._links.gather_logits(output, self.model.config.vocabulary_size)

    def _inputs(self, token_ids: Sequence[int], batch: BatchLayout) -> Tensor:
        device = self.model.device
        if self._links is None or self.rank.in_first_stage:
            return torch.tensor(token_ids, dtype=torch.int64).to(device, non_blocking=True)
        return self._links.receive((batch.row_count, self.model.config.hidden_size), self.model.hidden_dtype, device)
