"""What layers are split by: the cost of a layer of each kind, and of the two ends. The clock is a fake: parts of the
model take as long as the test says.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from models.make_random import PRESETS, config_of
from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.model import llama
from services.worker.model.config_json import parse_config
from services.worker.model.rope import Rope
from services.worker.parallel.layout import StageCosts
from services.worker.profiling import stage_costs
from services.worker.profiling.stage_costs import measured_stage_costs
from services.worker.sampling.sampler import sample


class SlowParts:
    """In the place of the module `time`; what `slowed` makes of a function moves it on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def slowed(self, function: Callable[..., Any], seconds: Callable[..., float]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.now_s += seconds(*arguments, **named)
            return function(*arguments, **named)

        return call


@pytest.mark.parametrize("tp", [1, 2])
def test_layers_of_every_kind_and_both_ends_are_measured_by_themselves(
    tp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def layer_s(_: Any, __: Any, ___: Any, attention: Any, ____: int) -> float:
        return 2.0 if attention.windows == (None,) else 0.5

    clock = SlowParts()
    monkeypatch.setattr(stage_costs, "time", clock)
    monkeypatch.setattr(f"{stage_costs.__name__}.sample", clock.slowed(sample, lambda *_: 5.0))
    monkeypatch.setattr(F, "embedding", clock.slowed(F.embedding, lambda *_: 1.0))
    monkeypatch.setattr(Rope, "tables", clock.slowed(Rope.tables, lambda *_: 7.0))  # every stage's
    layer = next(each for each in vars(llama).values() if getattr(each, "__name__", "").endswith("DecoderLayer"))
    monkeypatch.setattr(layer, "forward", clock.slowed(layer.forward, layer_s))
    config = replace(parse_config(config_of(replace(PRESETS["tiny"], layers=4))), windows=(None, 16, None, 16))
    costs = measured_stage_costs(config, tp, 4, "cpu", torch.float32)
    assert costs == StageCosts((2.0, 0.5, 2.0, 0.5), embedding_s=1.0, head_s=5.0)


def test_with_the_compiled_decoder_they_are_measured_by_what_it_is_told_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(model: NativeDecoder, *_: Any, stop_layer: int | None = None, **asked: Any) -> float:
        layers = model.config.windows[:stop_layer]
        ends = ("token_ids_T" in asked) * 1.0 + ("logits_SV" in asked) * 4.0
        return 7.0 + ends + sum(2.0 if window is None else 0.5 for window in layers)  # 7.0 are every stage's

    clock = SlowParts()
    monkeypatch.setattr(stage_costs, "time", clock)
    monkeypatch.setattr(f"{stage_costs.__name__}.sample", clock.slowed(sample, lambda *_: 1.0))
    monkeypatch.setattr(NativeDecoder, "compute", clock.slowed(NativeDecoder.compute, seconds))
    config = replace(parse_config(config_of(replace(PRESETS["tiny"], layers=4))), windows=(None, 16, None, 16))
    costs = measured_stage_costs(config, 2, 4, "cpu", torch.float32, natively=True)
    assert costs == StageCosts((2.0, 0.5, 2.0, 0.5), embedding_s=1.0, head_s=5.0)
