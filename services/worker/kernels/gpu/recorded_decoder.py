"""A decoder on a GPU whose passes are recorded once and then replayed.

Theory of operation
-------------------
A pass launches a few dozen kernels a layer, and a launch takes longer than most of the kernels of a small batch. So the
launches of a pass are recorded, as a CUDA graph, for some numbers of rows, and replayed as one launch. A replay has the
same addresses and shapes as the recording: what differs between passes is copied to fixed places first, lengths and
which rows are whose are read on the device (paged_decode.py, paged_prefill.py), and a pass of other numbers of rows is
filled up with rows that are nobody's. All but the tokens may be copied while the pass before is computed (`prepare`).

Passes of decodes alone have recordings of their own, whose sequences are one row each. Those of all others are for any
mix of decodes, chunks and prefills, up to so many rows that multiplying them takes longer than launching. Passes of
more rows run as the model does.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.kernels.gpu.attention_work import AttentionCut, AttentionWork, NoRoomError, PieceCounts
from services.worker.model.batch import BatchLayout, PagedKv, SequenceRows, staged
from services.worker.model.decoder import DecoderModel
from services.worker.model.model_config import ModelConfig
from services.worker.model.prefill_cut import PrefillCut
from services.worker.model.rope import Rope

_log = logging.getLogger(__name__)

MOST_ROWS = 256
"""Decodes alone that are recorded at most. A batch with more is long enough without a recording."""
MIXED_ROWS = (
    *(16, 32, 64, 96, 128, 192, 256),
    *range(320, 513, 64),
    *range(640, 1025, 128),
    *range(1280, 2049, 256),
)
"""Rows of a pass with prefills."""
ALWAYS_RECORDED_ROWS = 512
LAUNCH_BOUND = 1.2e11
"""Rows times parameters of a layer up to which launching the layer takes longer than multiplying: 0.4 ms, as on the
hosts that were measured, at 600 TFLOP/s. More rows would be filled up for nothing."""
_ROUNDS = 2
"""Passes before a recording, in which kernels are compiled and libraries get their memory."""

NOBODYS_SLOT = -1
"""The slot of a row that fills up a pass (paged_write.py)."""

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


def mixed_row_counts(model: DecoderModel) -> list[int]:
    """The numbers of rows with prefills that are recorded."""
    parameters = sum(each.numel() for each in model.layers[0].parameters())
    most = max(ALWAYS_RECORDED_ROWS, LAUNCH_BOUND / parameters)
    return [rows for rows in MIXED_ROWS if rows <= most]


@dataclass(frozen=True, slots=True)
class FixedLayout(BatchLayout):
    """The layout of a recorded pass, for any batch that fits in: its tensors say what is there when it is replayed.

    A row of a negative slot is nobody's.
    """

    work: AttentionWork


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
        self._decodes: dict[int, _RecordedPass] = {}
        self._mixed: dict[int, _RecordedPass] = {}

    @property
    def hidden_dtype(self) -> torch.dtype:
        return self.model.hidden_dtype

    @property
    def device(self) -> torch.device:
        return self.model.device

    def record(self, cache: PagedKv, max_batch: int, recorder: Callable[[Launch], Launch] | None = None) -> None:
        """Records passes of up to `max_batch` decodes, and such with prefills, on this pool. Later passes must be on
        the same one, or run as the model does.
        """
        recorder = recorder or CudaRecorder(self.device)
        counts, mixed = row_counts(max_batch), mixed_row_counts(self.model)
        fixed = _FixedInputs(max(counts[-1], mixed[-1]), counts[-1], self.model, cache)
        for rows in reversed(mixed):  # those that need most memory first: the others use it again
            self._mixed[rows] = _RecordedPass(self.model, fixed, rows, recorder, has_prefills=True)
        for rows in reversed(counts):
            self._decodes[rows] = _RecordedPass(self.model, fixed, rows, recorder, has_prefills=False)
        _log.info("recorded up to %d decodes, and %d rows with prefills", counts[-1], mixed[-1])

    def __call__(
        self, inputs: Tensor, cache: PagedKv, batch: BatchLayout, keep_going: Callable[[], bool] | None = None
    ) -> Tensor:
        recorded = self._recorded(cache, batch)
        if recorded is not None:
            if keep_going is not None and not keep_going():
                raise PrefillCut
            with suppress(NoRoomError):
                return recorded.run(inputs, batch)
        output: Tensor = self.model(inputs, cache, batch, keep_going)
        return output

    def prepare(self, cache: PagedKv, batch: BatchLayout) -> None:
        """Copies all but the tokens to where a replay reads them, for the next call, if that is of this batch. A device
        does so after what it was given before.
        """
        recorded = self._recorded(cache, batch)
        if recorded is not None:
            with suppress(NoRoomError):
                recorded.prepare(batch)

    def _recorded(self, cache: PagedKv, batch: BatchLayout) -> "_RecordedPass | None":
        """The least that the batch fits in."""
        rows = batch.row_count
        passes = self._decodes if batch.logit_rows.shape[0] == batch.decode_count == rows else self._mixed
        fitting = [count for count in passes if count >= rows]
        recorded = passes[min(fitting)] if fitting else None
        return recorded if recorded is not None and recorded.is_for(cache, batch) else None


class _FixedInputs:
    """What passes read and write, at fixed places, for any batch of at most so many rows and decodes that sample."""

    def __init__(self, most_rows: int, most_decodes: int, model: DecoderModel, cache: PagedKv) -> None:
        self.cache = cache
        self.most_decodes = most_decodes
        device, width = model.device, -(-model.max_model_len // cache.block_size)
        self.cut = AttentionCut(model.config, cache.pool.dtype, device)
        self.token_ids, self.positions, self.logit_rows, self.slots = torch.zeros(
            4, most_rows, dtype=torch.int64, device=device
        )
        self.slots.fill_(NOBODYS_SLOT)
        self.tables = torch.zeros(most_rows, width, dtype=torch.int64, device=device)
        self.work = torch.zeros(self.room(most_rows, has_prefills=True).size, dtype=torch.int64, device=device)
        self.logits_SV = torch.empty(most_decodes, model.config.vocabulary_size, device=device)
        self.filled_by: BatchLayout | None = None
        """What `fill` was called with last, if nothing was replayed since."""

    def room(self, rows: int, *, has_prefills: bool) -> PieceCounts:
        return self.cut.room(rows, min(rows, self.most_decodes), has_prefills=has_prefills)

    def layout(self, rows: int, room: PieceCounts) -> FixedLayout:
        """Of a pass of so many rows, with prefills or without."""
        return FixedLayout(
            sequences=(SequenceRows(0, 1, ()),) * rows,
            first_rows=tuple(range(rows)),
            row_count=rows,
            decode_count=rows,
            block_size=self.cache.block_size,
            position_ids_T=self.positions[:rows],
            slots_T=self.slots[:rows],
            block_table_SP=self.tables[:rows],
            context_lengths_S=self.positions[:rows],  # which the work tells
            logit_rows=self.logit_rows[: room.decodes],
            work=AttentionWork.of(self.work[: room.size], room),
        )

    def fill(self, layout: FixedLayout, batch: BatchLayout, work: Tensor) -> None:
        """Writes what a batch has, but for its tokens, to where the layout reads it; the rest is nobody's."""
        self.filled_by = batch
        rows, logits, width = batch.row_count, batch.logit_rows.shape[0], batch.block_table_SP.shape[1]
        self.positions[:rows] = batch.position_ids_T
        self.slots[:rows] = batch.slots_T
        self.slots[rows : layout.row_count] = NOBODYS_SLOT
        self.tables[: len(batch.sequences), :width] = batch.block_table_SP
        self.logit_rows[:logits] = batch.logit_rows
        self.logit_rows[logits : layout.logit_rows.shape[0]] = 0
        self.work[: work.shape[0]].copy_(work, non_blocking=True)


class _RecordedPass:
    """The launches of a pass of so many rows, with prefills or without."""

    def __init__(
        self,
        model: DecoderModel,
        fixed: _FixedInputs,
        rows: int,
        recorder: Callable[[Launch], Launch],
        *,
        has_prefills: bool,
    ) -> None:
        self._fixed = fixed
        self._model = model
        self._room = fixed.room(rows, has_prefills=has_prefills)
        self._layout = fixed.layout(rows, self._room)
        self._logits_SV = fixed.logits_SV[: self._room.decodes]
        with torch.inference_mode():
            self._replay = recorder(self._launch)

    def _launch(self) -> None:
        token_ids = self._fixed.token_ids[: self._layout.row_count]
        self._logits_SV.copy_(self._model(token_ids, self._fixed.cache, self._layout))

    def is_for(self, cache: PagedKv, batch: BatchLayout) -> bool:
        """Whether it is for this pool, and for so many logits."""
        same_pool = cache.pool.data_ptr() == self._fixed.cache.pool.data_ptr()
        return same_pool and batch.logit_rows.shape[0] <= self._logits_SV.shape[0]

    def prepare(self, batch: BatchLayout) -> None:
        """Brings all but its tokens to where the recording reads them. Raises NoRoomError."""
        numbers, _ = self._fixed.cut.cut(batch, self._room)
        with torch.inference_mode():
            self._fixed.fill(self._layout, batch, staged(torch.from_numpy(numbers), self._fixed.work.device))

    def run(self, token_ids: Tensor, batch: BatchLayout) -> Tensor:
        """Logits, [rows of logits of the batch, V]: memory of their own. Raises NoRoomError."""
        if self._fixed.filled_by is not batch:
            self.prepare(batch)
        self._fixed.filled_by = None
        with torch.inference_mode():
            self._fixed.token_ids[: batch.row_count].copy_(token_ids, non_blocking=True)
            self._replay()
            return self._logits_SV[: batch.logit_rows.shape[0]].clone()
