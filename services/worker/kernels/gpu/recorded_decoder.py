"""A decoder on a GPU whose passes of decodes alone are recorded once and then replayed.

Theory of operation
-------------------
A pass launches a few dozen kernels a layer, and a launch takes longer than most of the kernels of a small batch. So the
launches of a pass are recorded, as a CUDA graph, for some numbers of rows, and replayed as one launch. A replay has the
same addresses and shapes as the recording: what differs between passes is copied to fixed places first, lengths are
read on the device (paged_decode.py), and a pass of other numbers of rows is filled up with copies of its first row,
which write the same K and V to the same place once more.

All else, prefills above all, runs as the model does: it is long enough, and no two have the same shape.
"""

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from services.worker.model.batch import BatchLayout, PagedKv, SequenceRows
from services.worker.model.decoder import DecoderModel
from services.worker.model.model_config import ModelConfig
from services.worker.model.prefill_cut import PrefillCut
from services.worker.model.rope import Rope

_log = logging.getLogger(__name__)

MOST_ROWS = 256
"""A batch with more is long enough without a recording."""
_ROUNDS = 2
"""Passes before a recording, in which kernels are compiled and libraries get their memory."""

Launch = Callable[[], None]


def can_be_recorded(model: DecoderModel) -> bool:
    """Whether a pass's launches depend on nothing but its number of rows: of a whole model, whose rotary tables are the
    same for sequences of any length.
    """
    rope = getattr(model, "rope", None)
    same_tables = not isinstance(rope, Rope) or rope.short_length == rope.length
    return model.config.first_stage and model.config.last_stage and same_tables


def row_counts(max_batch: int) -> list[int]:
    """The numbers of rows that are recorded, so that a pass is filled up by half at most."""
    counts = [1, 2, 4]
    while counts[-1] < min(max_batch, MOST_ROWS):
        counts += [counts[-1] * 3 // 2, counts[-1] * 2]
    return counts


class CudaRecorder:
    """Makes replays of launches. All recordings share memory, since one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, launch: Launch) -> Launch:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        aside = torch.cuda.Stream(device=self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(stream)
        with torch.cuda.stream(aside):
            for _ in range(_ROUNDS):
                launch()
        stream.wait_stream(aside)
        # Other threads' calls, as those of copies, do not end the recording.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            launch()
        return graph.replay


class RecordedDecoder:
    """Called as a DecoderModel is. One forward pass at a time."""

    def __init__(self, model: DecoderModel) -> None:
        self.config: ModelConfig = model.config
        self.max_model_len = model.max_model_len
        self.dtype = model.dtype
        self.model = model
        self._passes: dict[int, _RecordedPass] = {}

    @property
    def hidden_dtype(self) -> torch.dtype:
        return self.model.hidden_dtype

    @property
    def device(self) -> torch.device:
        return self.model.device

    def record(self, cache: PagedKv, max_batch: int, recorder: Callable[[Launch], Launch] | None = None) -> None:
        """Records passes of up to `max_batch` rows on this pool, whose first block it zeroes. Later passes must be on
        the same one, or run as the model does.
        """
        recorder = recorder or CudaRecorder(self.device)
        counts = row_counts(max_batch)
        fixed = _FixedInputs(counts[-1], self.model, cache)
        for rows in reversed(counts):  # those that need most memory first: the others use it again
            self._passes[rows] = _RecordedPass(self.model, fixed, rows, recorder)
        cache.pool[:1].zero_()  # where the recordings wrote
        _log.info("recorded decodes of up to %d jobs", counts[-1])

    def __call__(
        self, inputs: Tensor, cache: PagedKv, batch: BatchLayout, keep_going: Callable[[], bool] | None = None
    ) -> Tensor:
        recorded = self._recorded(cache, batch)
        if recorded is None:
            output: Tensor = self.model(inputs, cache, batch, keep_going)
            return output
        if keep_going is not None and not keep_going():
            raise PrefillCut
        return recorded.run(inputs, batch)

    def _recorded(self, cache: PagedKv, batch: BatchLayout) -> "_RecordedPass | None":
        """The least that the batch fits in, if it is one of decodes that all sample."""
        rows = batch.row_count
        if batch.decode_count < len(batch.sequences) or batch.logit_rows.shape[0] != rows:
            return None
        fitting = [count for count in self._passes if count >= rows]
        recorded = self._passes[min(fitting)] if fitting else None
        return recorded if recorded is not None and recorded.fixed.are_for(cache) else None


class _FixedInputs:
    """What passes read and write, at fixed places: of at most so many rows."""

    def __init__(self, most_rows: int, model: DecoderModel, cache: PagedKv) -> None:
        self.cache = cache
        device, width = model.device, -(-model.max_model_len // cache.block_size)
        self.token_ids, self.positions, self.slots = (
            torch.zeros(most_rows, dtype=torch.int64, device=device) for _ in range(3)
        )
        self.lengths = torch.ones_like(self.slots)
        self.tables = torch.zeros(most_rows, width, dtype=torch.int64, device=device)
        self.logits_SV = torch.empty(most_rows, model.config.vocabulary_size, device=device)

    def are_for(self, cache: PagedKv) -> bool:
        """Whether passes on this pool may be replayed."""
        return cache.pool.data_ptr() == self.cache.pool.data_ptr()

    def layout(self, rows: int) -> BatchLayout:
        """The batch that a recording is made with."""
        return BatchLayout(
            sequences=(SequenceRows(0, 1, ()),) * rows,
            first_rows=tuple(range(rows)),
            row_count=rows,
            decode_count=rows,
            block_size=self.cache.block_size,
            position_ids_T=self.positions[:rows],
            slots_T=self.slots[:rows],
            block_table_SP=self.tables[:rows],
            context_lengths_S=self.lengths[:rows],
            logit_rows=torch.arange(rows, device=self.slots.device),
        )

    def fill(self, rows: int, token_ids: Tensor, batch: BatchLayout) -> None:
        """Writes a batch's rows, and its first row once more for each that is missing."""
        given, width = batch.row_count, batch.block_table_SP.shape[1]
        pairs = (
            (self.token_ids, token_ids),
            (self.positions, batch.position_ids_T),
            (self.slots, batch.slots_T),
            (self.lengths, batch.context_lengths_S),
            (self.tables[:, :width], batch.block_table_SP),
        )
        for to, values in pairs:
            to[:given].copy_(values, non_blocking=True)
            if given < rows:
                to[given:rows] = values[:1]


class _RecordedPass:
    """The launches of a pass of so many rows."""

    def __init__(
        self, model: DecoderModel, fixed: _FixedInputs, rows: int, recorder: Callable[[Launch], Launch]
    ) -> None:
        self.fixed = fixed
        self._model = model
        self._rows = rows
        self._layout = fixed.layout(rows)  # whose tensors are read at every replay
        with torch.inference_mode():
            self._replay = recorder(self._launch)

    def _launch(self) -> None:
        logits_SV = self._model(self.fixed.token_ids[: self._rows], self.fixed.cache, self._layout)
        self.fixed.logits_SV[: self._rows].copy_(logits_SV)

    def run(self, token_ids: Tensor, batch: BatchLayout) -> Tensor:
        """Logits, [rows of the batch, V]: memory of their own."""
        with torch.inference_mode():
            self.fixed.fill(self._rows, token_ids, batch)
            self._replay()
            return self.fixed.logits_SV[: batch.row_count].clone()
