"""Measures what a layer costs beside the embedding and the head, before a model is loaded: by it layers are split into
stages.

A model is made for every kind of layer (they differ in their sliding windows), with the share of a rank and weights
that mean nothing, and decodes a batch. With torch it has one layer, whose begin and end are noted by hooks. The
compiled decoder runs what it is told to: it has several layers, as far as memory for them is small, because one alone
would be read from the cache, and begins and ends with hidden states or does not. What every stage does, laying out a
batch and preparing its attention, is nobody's cost.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch

from services.domain.job_sampling import JobSampling
from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.model.batch import BatchLayout, PagedKv, SequenceRows
from services.worker.model.decoder import DecoderModel
from services.worker.model.loader import empty_model, prepare
from services.worker.model.model_config import ModelConfig
from services.worker.model.parameter_counts import parameter_counts
from services.worker.parallel.layout import GroupRank, Layout, StageCosts, share_config
from services.worker.sampling.sampler import JobSampler, SampleRow, sample

RUNS = 9
CONTEXT = 256
"""Tokens of each job of the batch, or fewer if the model has not that many."""
MOST_LAYERS = 4
MOST_LAYERS_BYTES = 1 << 30
"""Of the compiled decoder's layers, unless one alone has more."""
_BLOCK_SIZE = 16
_ANY_WEIGHT = 0.01


def measured_stage_costs(
    config: ModelConfig,
    tp: int,
    batch: int,
    device: torch.device | str,
    dtype: torch.dtype,
    *,
    natively: bool = False,
    quantized: bool = False,
) -> StageCosts:
    """Costs of a rank's share in a decode of `batch` jobs, on this machine, by the kernels that are to compute. The
    config is that of the whole model.
    """
    share = share_config(config, GroupRank(0, Layout(tp)), (range(config.layer_count),))
    decodes = _Decodes(batch, min(CONTEXT, share.max_position), torch.device(device))

    def timed(window: int | None) -> _Timed | _TimedNatively:
        if natively:
            return _TimedNatively(share, window, decodes, dtype, quantized=quantized)
        return _Timed(share, window, decodes, dtype)

    by_window = {window: timed(window) for window in dict.fromkeys(config.windows)}
    layers_s = {window: timed.layer_s for window, timed in by_window.items()}
    ends = by_window[config.windows[0]]
    return StageCosts(tuple(layers_s[window] for window in config.windows), ends.embedding_s, ends.head_s)


class _Decodes:
    """The batch that is computed."""

    def __init__(self, batch: int, context: int, device: torch.device) -> None:
        self.device = device
        self.context = context
        pages = -(-context // _BLOCK_SIZE)
        self.block_count = pages * batch
        self.layout = BatchLayout.of(
            [
                SequenceRows(context - 1, context, range(pages * number, pages * (number + 1)))
                for number in range(batch)
            ],
            _BLOCK_SIZE,
            device,
        )
        self.token_ids = torch.zeros(batch, dtype=torch.int64, device=device)
        self._rows = [SampleRow(JobSampler(JobSampling(max_tokens=1, seed=0, temperature=0.0)), 0)] * batch

    def cache(self, config: ModelConfig, dtype: torch.dtype) -> PagedKv:
        shape = (self.block_count, config.layer_count, 2, _BLOCK_SIZE, config.kv_head_count, config.head_dim)
        return PagedKv(torch.zeros(shape, dtype=dtype, device=self.device))

    def model(self, config: ModelConfig, dtype: torch.dtype) -> DecoderModel:
        model = empty_model(config, self.context, self.device, dtype)
        for tensor in model.destinations().values():
            tensor.fill_(_ANY_WEIGHT)
        return model

    @torch.inference_mode()
    def sample(self, logits_SV: torch.Tensor) -> None:
        sample(logits_SV, self._rows)


class _TimedNatively:
    """Times of the compiled decoder with a few layers, of its parts each by itself."""

    def __init__(
        self, share: ModelConfig, window: int | None, decodes: _Decodes, dtype: torch.dtype, *, quantized: bool
    ) -> None:
        layer_bytes = parameter_counts(share).layer * dtype.itemsize
        layer_count = max(1, min(MOST_LAYERS, MOST_LAYERS_BYTES // layer_bytes))
        config = replace(share, layer_count=layer_count, windows=(window,) * layer_count)
        model = NativeDecoder(decodes.model(config, dtype), torch.get_num_threads(), quantized=quantized)
        cache, batch = decodes.cache(config, dtype), decodes.layout
        batch_rows = batch.row_count
        hidden_TD, other_TD = torch.zeros(batch_rows, config.hidden_size), torch.empty(batch_rows, config.hidden_size)
        logits_SV = torch.empty(batch_rows, len(config.head_rows or range(config.vocabulary_size)))

        def head() -> None:
            model.compute(cache, batch, stop_layer=0, hidden_in_TD=hidden_TD, logits_SV=logits_SV)
            decodes.sample(logits_SV)

        parts: tuple[Callable[[], None], ...] = (
            lambda: model.compute(cache, batch, stop_layer=0, hidden_in_TD=hidden_TD, hidden_out_TD=other_TD),
            lambda: model.compute(cache, batch, stop_layer=0, token_ids_T=decodes.token_ids, hidden_out_TD=other_TD),
            lambda: model.compute(cache, batch, hidden_in_TD=hidden_TD, hidden_out_TD=other_TD),
            head,
        )
        times = [[_seconds(part) for part in parts] for _ in range(RUNS + 1)]
        nothing, embedding, layers, ending = (median(each[part] for each in times[1:]) for part in range(len(parts)))
        self.embedding_s = max(0.0, embedding - nothing)
        self.layer_s = max(0.0, layers - nothing) / layer_count
        self.head_s = max(0.0, ending - nothing)


def _seconds(work: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


class _Timed:
    """Times of torch's model with one layer, with and without its ends."""

    def __init__(self, share: ModelConfig, window: int | None, decodes: _Decodes, dtype: torch.dtype) -> None:
        self._decodes = decodes
        self._layout = decodes.layout
        one_layer = replace(share, layer_count=1, windows=(window,))
        whole = decodes.model(one_layer, dtype)
        middle = decodes.model(replace(one_layer, first_layer=1, last_stage=False, head_rows=None), dtype)
        for model in (whole, middle):
            prepare(model)
        cache, token_ids = decodes.cache(one_layer, dtype), decodes.token_ids
        hidden = torch.zeros(self._layout.row_count, share.hidden_size, dtype=dtype, device=decodes.device)
        times = [(self._times(whole, token_ids, cache), self._times(middle, hidden, cache)) for _ in range(RUNS + 1)]
        before, self.layer_s, self.head_s = (median(each[part] for each, _ in times[1:]) for part in range(3))
        self.embedding_s = max(0.0, before - median(each[0] for _, each in times[1:]))

    def _times(self, model: DecoderModel, inputs: torch.Tensor, cache: PagedKv) -> tuple[float, float, float]:
        """Seconds before the layer, in it, and after it with sampling."""
        marks = [self._now_s()]
        layer = model.layers[0]
        hooks = (
            layer.register_forward_pre_hook(lambda *_: marks.append(self._now_s())),
            layer.register_forward_hook(lambda *_: marks.append(self._now_s())),
        )
        output = model(inputs, cache, self._layout)
        if model.head is not None:
            self._decodes.sample(output)
        marks.append(self._now_s())
        for hook in hooks:
            hook.remove()
        start_s, layer_start_s, layer_end_s, end_s = marks
        return layer_start_s - start_s, layer_end_s - layer_start_s, end_s - layer_end_s

    def _now_s(self) -> float:
        if self._decodes.device.type == "cuda":
            torch.cuda.synchronize(self._decodes.device)
        return time.perf_counter()
