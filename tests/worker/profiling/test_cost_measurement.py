"""What is measured for the cost model: iterations such as a server runs, not the most convenient ones."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from services.runtime.profile_file import Profile, read_profile, write_profile
from services.worker.model.batch import SequenceRows
from services.worker.profiling import cost_measurement
from services.worker.profiling.cost_measurement import (
    DECODE_BUDGET_S,
    MIXED_BUDGET_S,
    PREFILL_BUDGET_S,
    Measurer,
    MeasuringLimits,
    levelled,
    measure,
    measure_or_read,
    profile_by,
    spread_contexts,
)
from tests.worker.tiny_engine import tiny_model, tiny_pools

LONGEST = 256


class WatchedMeasurer(Measurer):
    """Tells what would be run, and takes it as having lasted as many seconds as given."""

    def __init__(self, seconds: Sequence[float]) -> None:
        super().__init__(tiny_model(), tiny_pools(64, 1), LONGEST)
        self.seconds = list(seconds)
        self.ran: list[list[int]] = []
        self.sequences: list[SequenceRows] = []

    def run_s(self, sequences: Sequence[SequenceRows]) -> float:
        self.ran.append([sequence.to_token for sequence in sequences])
        self.sequences = list(sequences)
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


def test_a_point_is_the_lower_quartile_of_its_runs_without_the_first() -> None:
    measurer = WatchedMeasurer([9.0, 0.0, 0.0])  # a long one: the run that is not counted, and one that is
    assert measurer.decode_s(2, 16) == 0.0
    measurer = WatchedMeasurer([0.1, 0.03, 0.02, 9.0, 0.01, 0.04])
    assert measurer.decode_s(2, 16) == 0.02


class DisturbedMeasurer(Measurer):
    """An iteration takes a tenth of a millisecond a token of its contexts, ten times that while others run."""

    def __init__(self, disturbed: Iterable[int]) -> None:
        super().__init__(tiny_model(), tiny_pools(64, 1), LONGEST)
        self.disturbed = set(disturbed)
        self.runs = 0

    def run_s(self, sequences: Sequence[SequenceRows]) -> float:
        self.runs += 1
        tokens = sum(sequence.to_token for sequence in sequences)
        return tokens * 1e-4 * (10 if self.runs in self.disturbed else 1)


@pytest.mark.parametrize("first", range(1, 80, 8))
def test_who_takes_the_cores_for_some_time_changes_no_point(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for budget in ("PREFILL_BUDGET_S", "DECODE_BUDGET_S"):  # as much time as it takes
        monkeypatch.setattr(cost_measurement, budget, 600.0)
    alone, disturbed = DisturbedMeasurer(()), DisturbedMeasurer(range(first, first + 12))
    costs = [profile_by(measurer, LONGEST, 4, {}).cost for measurer in (alone, disturbed)]
    assert alone.runs == 72
    for quiet, loud in zip(costs[0].prefill + costs[0].decode, costs[1].prefill + costs[1].decode, strict=True):
        assert loud.seconds == pytest.approx(quiet.seconds, rel=0.4)  # prompts of 12 to 16 tokens are one point


class SlowMeasurer(Measurer):
    """A large model on one slow core: 50 ms whatever the rows, and 8 ms a row from seven on. A size that comes for the
    first time takes another second where kernels are made.
    """

    def __init__(self, kernel_sizes: Iterable[int] = ()) -> None:
        super().__init__(tiny_model(), tiny_pools(64, 1), LONGEST)
        self.spent_s = 0.0
        self.to_make = set(kernel_sizes)

    def run_s(self, sequences: Sequence[SequenceRows]) -> float:
        rows = sum(sequence.to_token - sequence.from_token for sequence in sequences)
        made_s = 1.0 if rows in self.to_make else 0.0
        self.to_make.discard(rows)
        seconds = max(0.05, 0.008 * rows) + made_s
        self.spent_s += seconds
        return seconds


def test_a_slow_machine_measures_long_prompts_and_whole_batches_rather_than_short_ones_again_and_again() -> None:
    measurer = SlowMeasurer()
    cost = profile_by(measurer, 1024, 16, {}).cost
    assert [point.tokens for point in cost.prefill] == [16, 32, 64, 128, 256]
    assert [point.batch for point in cost.decode if point.context_tokens == 64] == [1, 2, 4, 8, 16]
    assert cost.prefill_s(768) == pytest.approx(0.008 * 768, rel=0.02)  # a run has up to five tokens less
    assert cost.decode_s(16, 200) == pytest.approx(0.128, rel=0.02)
    assert measurer.spent_s < PREFILL_BUDGET_S + DECODE_BUDGET_S + MIXED_BUDGET_S + 0.5


@pytest.mark.parametrize("size", [16, 32, 64, 128, 256])
def test_a_run_that_made_kernels_does_not_count(size: int) -> None:
    cost = profile_by(SlowMeasurer([size]), 1024, 16, {}).cost
    assert cost.prefill_s(size) == pytest.approx(0.008 * size, abs=0.04)  # a run has up to five tokens less


class BusyMeasurer(SlowMeasurer):
    """The same machine, on which somebody else takes half of a core while some runs are made."""

    def __init__(self, busy_runs: Iterable[int]) -> None:
        super().__init__()
        self.busy_runs = set(busy_runs)
        self.runs = 0

    def run_s(self, sequences: Sequence[SequenceRows]) -> float:
        self.runs += 1
        return super().run_s(sequences) * (3 if self.runs in self.busy_runs else 1)


def test_a_short_prompt_that_took_longer_than_a_longer_one_is_measured_again_though_there_is_no_time_left() -> None:
    warm_up, uncounted = 2, 1
    sixteen_tokens = warm_up + uncounted + 1
    cost = profile_by(BusyMeasurer([sixteen_tokens, sixteen_tokens + 1]), 1024, 16, {}).cost
    assert [point.tokens for point in cost.prefill] == [16, 32, 64, 128, 256]
    for point in cost.prefill:
        assert point.seconds == pytest.approx(0.008 * point.tokens, abs=0.04)  # a run has up to five tokens less


def test_a_point_is_never_above_a_larger_one() -> None:
    assert levelled([[5.0, 2.0, 3.0], [1.0, 4.0, 9.0], [6.0, 7.0, 8.0]]) == [
        [1.0, 2.0, 3.0],
        [1.0, 4.0, 8.0],
        [6.0, 7.0, 8.0],
    ]


def test_one_prefill_and_one_decode_are_run_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, int]] = []
    real = Measurer.run_s

    def watched(self: Measurer, sequences: Sequence[SequenceRows]) -> float:
        ran.extend((sequence.from_token, sequence.to_token) for sequence in sequences)
        slow_s = 60.0 if len(ran) <= 2 else 0.0
        return real(self, sequences) + slow_s

    monkeypatch.setattr(Measurer, "run_s", watched)
    profile = measure(tiny_model(), tiny_pools(), MeasuringLimits(max_model_len=64, max_batch=1), {}).cost
    assert ran[:2] == [(0, 16), (15, 16)]
    assert max(point.seconds for point in profile.prefill) < 60.0
    assert max(point.seconds for point in profile.decode) < 60.0


def test_no_two_runs_of_a_measured_prefill_have_the_same_number_of_rows() -> None:
    measurer = WatchedMeasurer([0.1] * 6)
    measurer.prefill_s(64)
    lengths = [tokens for (tokens,) in measurer.ran]
    assert lengths[0] == 64
    assert len(set(lengths)) == len(lengths) == 6


def test_a_measured_mixed_iteration_decodes_spread_contexts_and_prefills_a_prompt_in_blocks_of_its_own() -> None:
    measurer = WatchedMeasurer([0.1, 0.03, 0.02, 9.0, 0.01, 0.04])
    assert measurer.mixed_s(20, 3, 16) == 0.02
    contexts = spread_contexts(3, 16, LONGEST)
    assert measurer.ran == [[*contexts, rows] for rows in (20, 19, 18, 17, 16, 15)]
    *decodes, prefill = measurer.sequences
    assert [decode.to_token - decode.from_token for decode in decodes] == [1, 1, 1]
    assert prefill.from_token == 0
    blocks = [block for sequence in measurer.sequences for block in sequence.blocks]
    assert len(set(blocks)) == len(blocks)


class TestMixedIterations:
    """The model's check: iterations of a prefill and decodes, which are no points of the model."""

    LONG = MeasuringLimits(max_model_len=400, max_batch=7)

    @pytest.fixture(autouse=True)
    def time_for_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cost_measurement, "MIXED_BUDGET_S", 600.0)

    def test_short_and_long_prompts_run_beside_few_and_many_decodes(self) -> None:
        profile = measure(tiny_model(), tiny_pools(), self.LONG, {})
        places = [point[:3] for point in profile.mixed]
        assert places == [(prompt, batch, 256) for prompt in (64, 256) for batch in (4, 6)]
        for point in profile.mixed:
            modelled_s = profile.cost.iteration_s([(0, point.prefill_tokens)], point.decode_batch, 256)
            assert point.modelled_seconds == modelled_s

    def test_their_seconds_are_measured_not_modelled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Measurer, "mixed_s", lambda _, tokens, batch, context: float(tokens + batch + context))
        profile = measure(tiny_model(), tiny_pools(), self.LONG, {})
        assert profile.mixed
        assert [point.seconds for point in profile.mixed] == [sum(point[:3]) for point in profile.mixed]

    @pytest.mark.parametrize(
        ("max_model_len", "max_batch", "places"),
        [
            (400, 1, []),  # no room beside a prefill
            (400, 2, [(64, 1, 256), (256, 1, 256), (400, 1, 256)]),
            (40, 5, [(40, 4, 40)]),
            (1, 3, [(1, 2, 1)]),
        ],
    )
    def test_they_stay_within_the_longest_sequence_and_the_largest_batch(
        self, max_model_len: int, max_batch: int, places: list[tuple[int, int, int]]
    ) -> None:
        limits = MeasuringLimits(max_model_len, max_batch)
        profile = measure(tiny_model(), tiny_pools(device_blocks=100), limits, {})
        assert [point[:3] for point in profile.mixed] == places

    def test_the_first_is_measured_whatever_it_takes_and_the_others_if_there_is_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cost_measurement, "MIXED_BUDGET_S", 0.0)
        profile = measure(tiny_model(), tiny_pools(), self.LONG, {})
        assert [point[:3] for point in profile.mixed] == [(64, 4, 256)]

    def test_they_are_kept_for_the_next_worker_which_reads_older_files_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def start() -> Profile:
            return measure_or_read(tiny_model(), tiny_pools(), self.LONG, {"model": "tiny"}, tmp_path)

        first = start()
        (kept,) = (tmp_path / "profiles").iterdir()
        assert first.mixed
        assert first == read_profile(kept)
        monkeypatch.setattr(cost_measurement, "measure", None)
        assert start() == first
        without = replace(first, mixed=())
        write_profile(kept, without)
        assert '"mixed"' not in kept.read_text()
        assert start() == without
