"""Tensor parallelism, applied to a model from outside: the two sums of every layer.

A rank's layer has some of the heads and a part of the feed-forward's inner width. The products that end attention and
feed-forward (`attention.output`, `feed_forward.down`) then give a part of a sum; a hook on each replaces it by the sum
over the ranks of the stage. Their bias is added by one of them (`adds_output_biases`).
"""

from torch import Tensor, nn

from services.worker.model.decoder import DecoderModel
from services.worker.parallel.stage_links import Sums


class LayerSums:
    """The sums of a model's layers, once `sums` is set. Without it each rank keeps its part, which is no model."""

    def __init__(self, model: DecoderModel) -> None:
        self.sums: Sums | None = None
        for layer in model.layers:
            attention, feed_forward = layer.get_submodule("attention"), layer.get_submodule("feed_forward")
            for product in (attention.get_submodule("output"), feed_forward.get_submodule("down")):
                product.register_forward_hook(self._add_up)

    def _add_up(self, _: nn.Module, __: tuple[Tensor, ...], part: Tensor) -> None:
        assert self.sums is not None, "a stage of several ranks computes within an epoch"
        self.sums.add_up(part)
