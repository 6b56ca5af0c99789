"""What is measured for the cost model: iterations such as a server runs, not the most convenient ones."""

from collections.abc import Sequence

import pytest

from services.worker.model.batch import SequenceRows
from services.worker.profiling.cost_measurement import Measurer, MeasuringLimits, measure, spread_contexts
from tests.worker.tiny_engine import tiny_model, tiny_pools

LONGEST = 256


class WatchedMeasurer(Measurer):
    """Tells what would be run, and takes it as having lasted as many seconds as given."""

    def __init__(self, seconds: Sequence[float]) -> None:
        super().__init__(tiny_model(), tiny_pools(64, 1), LONGEST)
        self.seconds = list(seconds)
        self.ran: list[list[int]] = []

    def _run_s(self, sequences: Sequence[SequenceRows]) -> float:
        self.ran.append([sequence.to_token for sequence in sequences])
        return self.seconds[len(self.ran) - 1]


@pytest.mark.parametrize("batch", [1, 2, 7, 16, 64])
@pytest.mark.parametrize("mean_tokens", [1, 20, 64, 200, LONGEST])
def test_contexts_of_a_measured_batch_have_the_asked_mean_and_none_is_too_long(batch: int, mean_tokens: int) -> None:
    contexts = spread_contexts(batch, mean_tokens, LONGEST)
    assert len(contexts) == batch
    assert sum(contexts) / batch == pytest.approx(mean_tokens, abs=0.5)
    assert contexts[0] <= LONGEST
    assert contexts[-1] >= 1
    assert contexts == sorted(contexts, reverse=True)


def test_contexts_of_a_measured_batch_differ_as_those_of_a_real_one_do() -> None:
    contexts = spread_contexts(16, 64, 100_000)
    assert contexts[0] > 3 * 64
    assert contexts[-1] < 64 / 8


def test_a_point_is_the_median_of_its_runs_without_the_first() -> None:
    measurer = WatchedMeasurer([9.0, 0.0, 0.0])  # a long one: the run that is not counted, and one that is
    assert measurer.decode_s(2, 16) == 0.0
    measurer = WatchedMeasurer([0.1, 0.03, 0.02, 9.0, 0.01, 0.04])
    assert measurer.decode_s(2, 16) == 0.03


def test_one_prefill_and_one_decode_are_run_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, int]] = []
    real = Measurer._run_s

    def watched(self: Measurer, sequences: Sequence[SequenceRows]) -> float:
        ran.extend((sequence.from_token, sequence.to_token) for sequence in sequences)
        slow_s = 60.0 if len(ran) <= 2 else 0.0
        return real(self, sequences) + slow_s

    monkeypatch.setattr(Measurer, "_run_s", watched)
    profile = measure(tiny_model(), tiny_pools(), MeasuringLimits(max_model_len=64, max_batch=1))
    assert ran[:2] == [(0, 16), (15, 16)]
    assert max(point.seconds for point in profile.prefill) < 60.0
    assert max(point.seconds for point in profile.decode) < 60.0


def test_no_two_runs_of_a_measured_prefill_have_the_same_number_of_rows() -> None:
    measurer = WatchedMeasurer([0.1] * 6)
    measurer.prefill_s(64)
    lengths = [tokens for (tokens,) in measurer.ran]
    assert lengths[0] == 64
    assert len(set(lengths)) == len(lengths) == 6
