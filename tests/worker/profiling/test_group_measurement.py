"""An iteration of a group takes the sum of its stages' times, each that of its slowest rank. Ranks are stand-ins here;
real ones are in tests/worker/parallel.
"""

import json
from collections.abc import Sequence

import pytest

from services.worker.model.batch import SequenceRows
from services.worker.parallel.layout import Layout
from services.worker.profiling.group_measurement import BOUNCES, GroupMeasurer
from tests.worker.tiny_engine import tiny_model, tiny_pools


class FakeStageRun:
    """The leader's part of a run takes 1 s; the other ranks say what they are given."""

    model = tiny_model()

    def __init__(self, layout: Layout, others_s: Sequence[float]) -> None:
        self.layout = layout
        self.others_s = others_s
        self.told: list[tuple[str, bytes]] = []

    def __call__(self, sequences: Sequence[SequenceRows]) -> float:
        return 1.0

    def bounced_s(self, rows: int) -> float:
        return 0.001 if rows == 1 else 0.001 + 0.0001 * (rows - 1)

    def tell(self, key: str, told: bytes) -> None:
        self.told.append((key, told))

    def said_by_all(self, key: str, own: float) -> list[float]:
        assert key == self.told[-1][0], "a run is told before its figures are awaited"
        return [own, *self.others_s]

    def clean(self) -> None: ...


def test_a_stage_counts_with_its_slowest_rank_and_an_iteration_with_all_its_stages() -> None:
    stage_run = FakeStageRun(Layout(tp=2, pp=2), [4.0, 16.0, 8.0])
    assert GroupMeasurer(stage_run, tiny_pools(), 64, 16).decode_s(2, 16) == 4.0 + 16.0


def test_the_shares_of_stages_are_kept_of_prefills_and_of_decodes_and_the_way_of_rows_between_them() -> None:
    stage_run = FakeStageRun(Layout(tp=2, pp=2), [3.0, 7.0, 6.0])
    measurer = GroupMeasurer(stage_run, tiny_pools(), 64, 16)
    measurer.warm_up()
    measurer.decode_s(2, 16)
    stage_run.others_s = [4.0, 1.0, 1.0]
    measurer.prefill_s(16)
    pipeline = measurer.pipeline()
    assert pipeline is not None
    assert pipeline.decode_shares == pytest.approx((0.3, 0.7))
    assert pipeline.prefill_shares == pytest.approx((0.8, 0.2))
    assert pipeline.hand_over_s == pytest.approx(0.001)
    assert pipeline.row_s == pytest.approx(0.0001)
    assert [json.loads(told) for _, told in stage_run.told[-2 * BOUNCES :]] == [1] * BOUNCES + [128] * BOUNCES


def test_one_stage_is_no_pipeline() -> None:
    measurer = GroupMeasurer(FakeStageRun(Layout(tp=2), [3.0]), tiny_pools(), 64, 16)
    measurer.decode_s(2, 16)
    assert measurer.pipeline() is None


def test_all_ranks_are_told_the_same_runs_and_their_end_on_blocks_that_all_have() -> None:
    stage_run = FakeStageRun(Layout(pp=2), [1.0])
    measurer = GroupMeasurer(stage_run, tiny_pools(64), 64, 3)
    measurer.warm_up()
    measurer.end()
    runs = [[SequenceRows(*each) for each in json.loads(told)] for _, told in stage_run.told[:-1]]
    assert [(run[0].from_token, run[0].to_token) for run in runs] == [(0, 16), (15, 16)]
    assert {block for run in runs for block in run[0].blocks} == {0, 1, 2}
    assert stage_run.told[-1] == ("run/2", b"end")
