"""Measures what a layer costs beside the embedding and the head, before a model is loaded: by it layers are split into
stages.

A model of one layer is made for every kind of layer (they differ in their sliding windows), with the share of a rank
and weights that mean nothing, and decodes a batch. Every stage lays out a batch and prepares its attention; this part
is nobody's cost.
"""

import time
from dataclasses import replace
from statistics import median

import torch

from services.domain.job_sampling import JobSampling
from services.worker.model.batch import BatchLayout, PagedKv, SequenceRows
from services.worker.model.decoder import DecoderModel
from services.worker.model.loader import empty_model, prepare
from services.worker.model.model_config import ModelConfig
from services.worker.parallel.layout import GroupRank, Layout, StageCosts, share_config
from services.worker.sampling.sampler import JobSampler, SampleRow, sample

RUNS = 9
CONTEXT = 256
"""Tokens of each job of the batch, or fewer if the model has not that many."""
_BLOCK_SIZE = 16
_ANY_WEIGHT = 0.01


def measured_stage_costs(
    config: ModelConfig, tp: int, batch: int, device: torch.device | str, dtype: torch.dtype
) -> StageCosts:
    """Costs of a rank's share in a decode of `batch` jobs, on this machine. The config is that of the whole model."""
    share = share_config(config, GroupRank(0, Layout(tp)), (range(config.layer_count),))
    by_window = {window: _Timed(share, window, batch, device, dtype) for window in dict.fromkeys(config.windows)}
    layers_s = {window: timed.layer_s for window, timed in by_window.items()}
    ends = by_window[config.windows[0]]
    return StageCosts(tuple(layers_s[window] for window in config.windows), ends.embedding_s, ends.head_s)


class _Timed:
    """Times of a model with one layer, with and without its ends."""

    def __init__(
        self, share: ModelConfig, window: int | None, batch: int, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        self._device = torch.device(device)
        self._batch = batch
        self._sampler = JobSampler(JobSampling(max_tokens=1, seed=0, temperature=0.0))
        context = min(CONTEXT, share.max_position)
        one_layer = replace(share, layer_count=1, windows=(window,))
        pages = -(-context // _BLOCK_SIZE)
        self._layout = BatchLayout.of(
            [
                SequenceRows(context - 1, context, range(pages * number, pages * (number + 1)))
                for number in range(batch)
            ],
            _BLOCK_SIZE,
            self._device,
        )
        whole = self._model(one_layer, context, dtype)
        middle = self._model(replace(one_layer, first_layer=1, last_stage=False, head_rows=None), context, dtype)
        pool = torch.zeros(whole.pool_shape(pages * batch, _BLOCK_SIZE), dtype=dtype, device=self._device)
        cache = PagedKv(pool)
        token_ids = torch.zeros(batch, dtype=torch.int64, device=self._device)
        hidden = torch.zeros(batch, share.hidden_size, dtype=dtype, device=self._device)
        times = [(self._times(whole, token_ids, cache), self._times(middle, hidden, cache)) for _ in range(RUNS + 1)]
        before, self.layer_s, self.head_s = (median(each[part] for each, _ in times[1:]) for part in range(3))
        self.embedding_s = max(0.0, before - median(each[0] for _, each in times[1:]))

    def _model(self, config: ModelConfig, length: int, dtype: torch.dtype) -> DecoderModel:
        model = empty_model(config, length, self._device, dtype)
        for tensor in model.destinations().values():
            tensor.fill_(_ANY_WEIGHT)
        prepare(model)
        return model

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
            with torch.inference_mode():
                sample(output, [SampleRow(self._sampler, 0)] * self._batch)
        marks.append(self._now_s())
        for hook in hooks:
            hook.remove()
        start_s, layer_start_s, layer_end_s, end_s = marks
        return layer_start_s - start_s, layer_end_s - layer_start_s, end_s - layer_end_s

    def _now_s(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
