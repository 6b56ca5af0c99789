"""Memory of weights and KV: in huge pages, piece by piece."""

import ctypes
from pathlib import Path

import pytest
import torch

from services.worker.huge_pages import ALIGNMENT, HugePages
from services.worker.kv.pools import BlockShape, make_pools
from tests.worker.model.reference_models import native_pair

SYSTEM = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def address_of(piece: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(piece))


def flags_of_mapping(address: int) -> list[str]:
    """What the system was asked for where the address lies."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name = line.split(maxsplit=1)[0]
        if "-" in name and not name.endswith(":"):
            first, behind = (int(bound, 16) for bound in name.split("-"))
            inside = first <= address < behind
        elif inside and name == "VmFlags:":
            return line.split()[1:]
    raise AssertionError(f"{address:#x} is not mapped")


def test_pieces_lie_one_behind_the_other_and_share_nothing() -> None:
    memory = HugePages()
    pieces = [memory.take(size) for size in (100, 1, ALIGNMENT)]
    places = [address_of(piece) - address_of(pieces[0]) for piece in pieces]
    assert places == [0, 2 * ALIGNMENT, 3 * ALIGNMENT]
    assert address_of(pieces[0]) % ALIGNMENT == 0
    for number, piece in enumerate(pieces):
        assert not any(piece), "zeroed, and nobody else has written there"
        piece[:] = bytes([number + 1]) * len(piece)
    assert [len(piece) for piece in pieces] == [100, 1, ALIGNMENT]


def test_a_piece_that_does_not_fit_any_more_is_mapped_anew_and_the_others_stay() -> None:
    memory = HugePages()
    first, large = memory.take(5), memory.take(100 << 20)
    first[:], large[-5:] = b"first", b"large"
    behind = memory.take(7)
    behind[:] = b"further"
    assert (bytes(first), bytes(large[-5:])) == (b"first", b"large")


@pytest.mark.skipif(not SYSTEM.exists(), reason="the system has no huge pages")
def test_packed_weights_and_kv_lie_in_huge_pages() -> None:
    _, decoder = native_pair()
    matrices = [kept for kept in decoder.kept if kept.dtype == torch.int32]
    assert matrices
    pools = make_pools(BlockShape(2, 16, 2, 8, torch.float32), 3, 3, torch.device("cpu"))
    for tensor in (*matrices, pools.device, pools.host):
        assert "hg" in flags_of_mapping(tensor.data_ptr())
