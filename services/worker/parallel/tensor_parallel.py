"""Tensor parallelism, applied to a model from outside: the two sums of every layer.

A rank's layer has some of the heads and a part of the feed-forward's inner width. The products that end attention and
feed-forward (`attention.output`, `feed_forward.down`) then give a part of a sum. In a model of torch a hook on each
replaces it by the sum over the ranks of the stage; the compiled decoder calls back. Their bias is added by one of the
ranks (`adds_output_biases`).
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.model.decoder import DecoderModel
from services.worker.model.served_decoder import ServedDecoder


class SumsLayers(Protocol):
    """Adds up the parts of its layers' products by `add_up`, once that is set. Without it each rank keeps its part,
    which is no model.
    """

    add_up: Callable[[Tensor], None] | None


class LayerHooks:
    """The sums of a model of torch."""

    def __init__(self, model: DecoderModel) -> None:
        self.add_up: Callable[[Tensor], None] | None = None
        for layer in model.layers:
            attention, feed_forward = layer.get_submodule("attention"), layer.get_submodule("feed_forward")
            for product in (attention.get_submodule("output"), feed_forward.get_submodule("down")):
                product.register_forward_hook(self._replace)

    def _replace(self, _: nn.Module, __: tuple[Tensor, ...], part: Tensor) -> None:
        assert self.add_up is not None, "a stage of several ranks computes within an epoch"
        self.add_up(part)


def sums_of(model: ServedDecoder) -> SumsLayers:
    """Where the sums of a rank's layers come from."""
    if isinstance(model, NativeDecoder):
        return model
    assert isinstance(model, DecoderModel), "sums are hooks on torch modules"
    return LayerHooks(model)
