"""The pool of blocks."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.ids import BlockId
from services.kvmanager.machine.block_pool import BlockPool


def test_the_lowest_free_ids_are_handed_out_first() -> None:
    pool = BlockPool(5)
    assert pool.allocate(3) == [0, 1, 2]
    pool.free([BlockId(1), BlockId(0)])
    assert pool.allocate(3) == [0, 1, 3]


def test_no_more_than_all_blocks_can_be_allocated() -> None:
    pool = BlockPool(2)
    assert pool.can_allocate(2)
    assert not pool.can_allocate(3)
    with pytest.raises(AssertionError):
        pool.allocate(3)


def test_a_block_can_not_be_given_back_twice() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.free(blocks)
    with pytest.raises(AssertionError):
        pool.free(blocks)


def test_check_finds_a_block_in_two_tables_and_a_lost_one() -> None:
    pool = BlockPool(3)
    first, second = pool.allocate(2)
    pool.check([first, second])
    with pytest.raises(AssertionError):
        pool.check([first, first])
    with pytest.raises(AssertionError):
        pool.check([first])


@given(st.lists(st.integers(-8, 8), max_size=60))
def test_free_and_used_are_always_the_whole_pool(amounts: list[int]) -> None:
    pool = BlockPool(16)
    used: list[BlockId] = []
    for amount in amounts:
        if amount > 0 and pool.can_allocate(amount):
            used += pool.allocate(amount)
        elif amount < 0:
            pool.free(used[:-amount])
            used = used[-amount:]
        pool.check(used)
        assert pool.free_count == 16 - len(used)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6), st.randoms(use_true_random=False)), max_size=60))
def test_those_handed_out_are_always_the_lowest_free_ones(steps: list[tuple[bool, int, Random]]) -> None:
    pool = BlockPool(24)
    used: list[BlockId] = []
    for takes, amount, random in steps:
        if takes and pool.can_allocate(amount):
            lowest = list(pool.free_ids()[:amount])
            assert pool.allocate(amount) == lowest
            used += lowest
        elif not takes:
            random.shuffle(used)
            pool.free(used[:amount])
            del used[:amount]
        pool.check(used)
