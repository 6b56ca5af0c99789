"""Pinned memory of the host's pool: as much as was asked for, as long as it is used, or a refusal that says so."""

import gc
from pathlib import Path

import pytest
import torch

from services.domain.errors import InvalidFieldError
from services.worker.kv import pools
from services.worker.kv.pools import available_host_bytes, pinned_memory
from tests.worker.kv.fake_cuda import FakeCudaRuntime

SHAPE = (3, 5, 2, 16, 4, 8)
SIZE_BYTES = 3 * 5 * 2 * 16 * 4 * 8 * 2


def install(patch: pytest.MonkeyPatch, error: int = 0) -> FakeCudaRuntime:
    runtime = FakeCudaRuntime(error)
    patch.setattr(torch.cuda, "cudart", lambda: runtime)
    return runtime


def test_as_many_bytes_are_pinned_as_the_pool_has(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = install(monkeypatch)
    pool = pinned_memory(SHAPE, torch.bfloat16)
    assert runtime.pinned == {pool.data_ptr(): SIZE_BYTES}
    assert (pool.shape, pool.dtype) == (SHAPE, torch.bfloat16)
    assert not bool(pool.any())
    pool.fill_(1.0)


def test_they_are_let_go_with_the_last_tensor_that_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = install(monkeypatch)
    part = pinned_memory(SHAPE, torch.bfloat16)[1:]
    gc.collect()
    assert len(runtime.pinned) == 1
    del part
    gc.collect()
    assert runtime.pinned == {}


def test_what_cannot_be_pinned_is_refused_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, error=2)
    with pytest.raises(InvalidFieldError, match=r"can't pin 1 MiB of memory: error 2") as caught:
        pinned_memory((1 << 19,), torch.bfloat16)
    assert caught.value.field == "kv-host-tokens"
    gc.collect()


@pytest.mark.parametrize(
    ("limit", "used"),
    [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")],
)
def test_a_control_group_limits_what_pools_may_take_in_either_version(
    limit: str, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_CONTROL_GROUP", tmp_path)
    for name, number in ((limit, 5_000_000), (used, 2_000_000)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{number}\n")
    assert available_host_bytes() == 3_000_000
