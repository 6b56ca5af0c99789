"""Which iterations leave a core to the services: where a thread less costs less than the services take."""

from collections.abc import Callable, Sequence

import pytest
import torch

from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.model.batch import SequenceRows
from services.worker.profiling.cost_measurement import Measurer
from services.worker.profiling.spared_core import ROW_S, SERVICES_S, choose_sparing_rows
from tests.worker.model.reference_models import native_of, reference_model
from tests.worker.tiny_engine import tiny_model, tiny_pools

MOST = 64


class ModelledMeasurer(Measurer):
    """An iteration of all threads takes as long as given, with a thread less longer by what is given for its rows."""

    def __init__(self, model: NativeDecoder, longer_s: Callable[[int], float], alone_s: float = 0.001) -> None:
        super().__init__(tiny_model(), tiny_pools(64, 1), 128)
        self.native = model
        self.longer_s = longer_s
        self.alone_s = alone_s
        self.tried: list[int] = []

    def run_s(self, sequences: Sequence[SequenceRows]) -> float:
        rows = len(sequences)
        self.tried.append(rows)
        return self.alone_s + (self.longer_s(rows) if rows <= self.native.sparing_rows else 0.0)


@pytest.fixture(scope="module")
def model() -> NativeDecoder:
    return native_of(reference_model("llama"), torch.bfloat16, threads=2)


@pytest.mark.parametrize(
    ("longer_s", "rows"),
    [
        (lambda rows: SERVICES_S * 1.01 + ROW_S * rows, 0),
        (lambda rows: SERVICES_S * 0.99 + ROW_S * rows, MOST),
        (lambda rows: rows * 0.0004, 4),
        (lambda rows: rows * 0.0001, MOST),
    ],
    ids=["never", "always", "few rows", "small model"],
)
def test_a_core_is_spared_while_that_costs_less_than_the_services(
    model: NativeDecoder, longer_s: Callable[[int], float], rows: int
) -> None:
    measurer = ModelledMeasurer(model, longer_s)
    assert choose_sparing_rows(model, measurer, MOST) == rows
    assert model.sparing_rows == rows
    assert max(measurer.tried) == min(max(2 * rows, 1), MOST)


@pytest.mark.parametrize(("alone_s", "rows"), [(1.99 * SERVICES_S, MOST), (2.01 * (SERVICES_S + ROW_S), 0)])
def test_no_core_is_spared_where_an_iteration_takes_much_longer_than_the_services(
    model: NativeDecoder, alone_s: float, rows: int
) -> None:
    assert choose_sparing_rows(model, ModelledMeasurer(model, lambda _: 0.0, alone_s), MOST) == rows


def test_it_leaves_the_pool_as_it_was(model: NativeDecoder) -> None:
    pools = tiny_pools(model=model)
    choose_sparing_rows(model, Measurer(model, pools, 128), 4)
    assert not bool(pools.device.any())
