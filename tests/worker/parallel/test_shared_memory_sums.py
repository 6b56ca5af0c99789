"""Sums in shared memory: every rank gets the sum of all parts, added up in the order of the ranks."""

import mmap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from services.worker.parallel.shared_memory_sums import SLOT_BYTES, SharedMemorySums, memory_bytes

LIMIT_S = 60.0


def added_up(parts: list[Tensor], rounds: int = 1) -> list[list[Tensor]]:
    """What each of as many ranks as parts gets when it adds up its part `rounds` times; ranks are threads here."""
    memory = mmap.mmap(-1, memory_bytes(len(parts)))

    def rank(place: int) -> list[Tensor]:
        sums, found = SharedMemorySums(memory, place, len(parts), LIMIT_S), []
        for number in range(rounds):
            part = parts[place] * (number + 1)
            sums.add_up(part)
            found.append(part)
        return found

    with ThreadPoolExecutor(len(parts)) as threads:
        return list(threads.map(rank, range(len(parts))))


def parts_of(ranks: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_ranks_get_the_sum_in_the_order_of_the_ranks(ranks: int, dtype: torch.dtype) -> None:
    parts = parts_of(ranks, (3, 40), dtype)
    expected = parts[0].float()
    for part in parts[1:]:
        expected = expected + part.float()
    for (found,) in added_up(parts):
        assert torch.equal(found, expected.to(dtype))


def test_a_sum_larger_than_the_memory_is_made_piece_by_piece() -> None:
    parts = parts_of(2, (5, SLOT_BYTES // 8), torch.float32)
    for (found,) in added_up(parts):
        assert torch.equal(found, parts[0] + parts[1])


def test_no_slot_is_overwritten_before_all_have_read_it() -> None:
    parts = [torch.full((2, 64), float(10**place)) for place in range(3)]
    for found in added_up(parts, rounds=30):
        assert [float(each[1, 7]) for each in found] == [111.0 * (number + 1) for number in range(30)]


def test_parts_that_do_not_lie_in_one_piece_are_added_up_too() -> None:
    parts = [part[:, ::2] for part in parts_of(2, (4, 10), torch.float32)]
    expected = parts[0] + parts[1]
    memory = mmap.mmap(-1, memory_bytes(2))
    ranks = [SharedMemorySums(memory, place, 2, LIMIT_S) for place in range(2)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda place: ranks[place].add_up(parts[place]), range(2)))
    assert torch.equal(parts[0], expected)
    assert torch.equal(parts[1], expected)


def test_a_rank_that_does_not_come_ends_the_wait() -> None:
    sums = SharedMemorySums(mmap.mmap(-1, memory_bytes(2)), 0, 2, 0.05)
    with pytest.raises(RuntimeError, match="the rank at place 1 of this stage did not come to a sum"):
        sums.add_up(torch.ones(2, 2))


def test_the_end_of_an_epoch_ends_the_wait() -> None:
    sums = SharedMemorySums(mmap.mmap(-1, memory_bytes(2)), 0, 2, LIMIT_S)
    sums.close()
    with pytest.raises(RuntimeError, match="did not come to a sum"):
        sums.add_up(torch.ones(2, 2))
