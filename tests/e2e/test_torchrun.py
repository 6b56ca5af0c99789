"""A model whose layers are shared out over two ranks that torchrun starts, through the real services: the unsplit
model's tokens, whatever is swapped.
"""

from pathlib import Path

import pytest

from tests.builders.model_folders import tiny_model_folder
from tests.builders.waits import wait_until
from tests.e2e.group_cluster import (
    LEAST_SWAPS,
    StartedBy,
    different,
    one_by_one,
    running_group,
    swapped_together,
    unsplit,
)

JOBS = 16


@pytest.mark.timeout(240)
async def test_ranks_started_by_torchrun_give_the_unsplit_models_tokens_though_each_job_is_swapped_several_times(
    tmp_path: Path,
) -> None:
    expected = unsplit(JOBS)
    with running_group(tiny_model_folder(tmp_path), tmp_path, tp=2, pp=1, started_by=StartedBy.TORCHRUN) as group:
        assert different(await one_by_one(group, 3), expected[:3]) == []
        wrong, swaps = await swapped_together(group, expected)
        assert wrong == []
        assert min(swaps) >= LEAST_SWAPS, swaps
        wait_until(group.is_idle, "every block free")
