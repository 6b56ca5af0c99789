"""The compiled decoder's threads keep to a core each where every core has one of them; the caller's own thread does so
only during a pass.
"""

import os
import sys
from pathlib import Path

import pytest
import torch

from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.model.batch import BatchLayout, SequenceRows
from tests.worker.model.reference_models import Pool, native_of, reference_model, tokens

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cores are asked for by thread")


def threads_now() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def cores_in_a_pass(model: NativeDecoder) -> set[int]:
    """The cores that the caller may run on, as seen from within."""
    seen: list[set[int]] = []

    def goes_on() -> bool:
        seen.append(os.sched_getaffinity(0))
        return True

    pool = Pool(model)
    layout = BatchLayout.of([SequenceRows(0, 8, pool.blocks(8))], pool.block_size)
    model(tokens(8), pool.cache, layout, goes_on)
    assert all(cores == seen[0] for cores in seen)
    return seen[0]


@pytest.fixture
def cores() -> list[int]:
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        pytest.skip("one core is everybody's")
    return found


def test_as_many_threads_as_cores_keep_to_one_each(cores: list[int]) -> None:
    before = threads_now()
    model = native_of(reference_model("llama"), torch.float32, threads=len(cores))
    assert cores_in_a_pass(model) == {cores[0]}
    assert sorted(os.sched_getaffinity(0)) == cores
    begun = [os.sched_getaffinity(thread) for thread in threads_now() - before]
    assert [{core} for core in cores[1:]] == [allowed for allowed in sorted(begun, key=min) if len(allowed) == 1]


def test_other_numbers_of_threads_run_wherever_the_system_puts_them(cores: list[int]) -> None:
    before = threads_now()
    model = native_of(reference_model("llama"), torch.float32, threads=len(cores) + 1)
    assert sorted(cores_in_a_pass(model)) == cores
    assert all(sorted(os.sched_getaffinity(thread)) == cores for thread in threads_now() - before)
