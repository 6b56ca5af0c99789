"""The generator behind the draws: the same numbers by integers of Python and by tensors, and even ones."""

import torch

from services.worker.sampling.draws import keys_of, stream_of, uniforms
from tests.worker.sampling import naive_sampler


def test_tensors_give_the_numbers_that_plain_integers_give() -> None:
    seeds, numbers = [0, 1, -1, 2**63 - 1, -(2**63)], [0, 1, 7, 4095, 2**31]
    streams = torch.tensor([stream_of(seed, choice) for choice, seed in enumerate(seeds)])
    found = uniforms(keys_of(streams, torch.tensor(numbers)), torch.arange(70)[None])
    for row, (seed, number) in enumerate(zip(seeds, numbers, strict=True)):
        key = naive_sampler.key_of(seed, row, number)
        assert found[row].tolist() == [naive_sampler.uniform(key, index) for index in range(70)]


def key_whose_first_number_has_all_bits() -> int:
    """Undoes the mixing, step by step."""

    def unshift(value: int, places: int) -> int:
        found = value
        for _ in range(64 // places):
            found = value ^ found >> places
        return found

    value = unshift(naive_sampler.MASK, 31) * pow(0x94D049BB133111EB, -1, 1 << 64) & naive_sampler.MASK
    value = unshift(value, 27) * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & naive_sampler.MASK
    return (unshift(value, 30) - naive_sampler.GOLDEN) & naive_sampler.MASK


def test_the_largest_number_is_below_one_so_that_its_token_can_still_lose() -> None:
    key = key_whose_first_number_has_all_bits()
    assert naive_sampler.mix(key + naive_sampler.GOLDEN) == naive_sampler.MASK
    keys = torch.tensor([key - (1 << 64) if key >> 63 else key])
    first = float(uniforms(keys, torch.zeros(1, 1, dtype=torch.int64)))
    assert first == naive_sampler.uniform(key, 0) < 1.0


def test_numbers_are_even_and_neighbours_have_nothing_to_do_with_each_other() -> None:
    found = uniforms(keys_of(torch.tensor([stream_of(3, 0)] * 500), torch.arange(500)), torch.arange(400)[None])
    assert float(found.min()) > 0.0
    assert float(found.max()) < 1.0
    cells = torch.histc(found.float(), bins=100, min=0.0, max=1.0).double()
    expected = found.numel() / 100
    assert float(((cells - expected) ** 2 / expected).sum()) < 99 + 5 * (2 * 99) ** 0.5
    centred = found - 0.5
    for first, second in ((centred[1:], centred[:-1]), (centred[:, 1:], centred[:, :-1])):
        correlation = float((first * second).mean()) * 12
        assert abs(correlation) < 5 / first.numel() ** 0.5
