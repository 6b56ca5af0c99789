"""The outgoing side of a stream: bounded, in order, and closed when it is filled beyond its limit."""

import asyncio

import pytest

from services.domain.errors import NotReadyError, SupersededError
from services.runtime.outbox import Outbox


async def test_the_writer_gets_all_that_waits_in_order() -> None:
    outbox = Outbox[int](10, "the peer")
    for item in (3, 1, 2):
        outbox.put(item)
    assert await outbox.take() == [3, 1, 2]


async def test_a_peer_that_lets_more_than_the_limit_wait_loses_its_stream() -> None:
    outbox = Outbox[int](2, "the worker")
    for item in range(3):
        outbox.put(item)
    assert outbox.is_closed
    with pytest.raises(NotReadyError, match="the worker is not reading its stream: more than 2 messages"):
        await outbox.until_closed()


async def test_what_is_put_into_a_closed_outbox_is_dropped_and_so_is_what_waited() -> None:
    outbox = Outbox[int](10, "the peer")
    outbox.put(1)
    outbox.close(SupersededError("another took over"))
    outbox.put(2)
    assert await outbox.take() == []


async def test_a_stream_ends_with_the_first_error_that_it_was_closed_with() -> None:
    outbox = Outbox[int](10, "the peer")
    outbox.close(SupersededError("first"))
    outbox.close(NotReadyError("second"))
    with pytest.raises(SupersededError, match="first"):
        await outbox.until_closed()


async def test_it_is_flushed_when_the_writer_has_come_back_for_more() -> None:
    outbox = Outbox[int](10, "the peer")
    outbox.put(1)
    flushed = asyncio.create_task(outbox.flushed())
    assert await outbox.take() == [1]
    await asyncio.sleep(0)
    assert not flushed.done(), "the writer may still be writing it"
    writer = asyncio.create_task(outbox.take())
    await flushed
    writer.cancel()


async def test_a_closed_outbox_keeps_nobody_waiting_for_its_flush() -> None:
    outbox = Outbox[int](10, "the peer")
    outbox.put(1)
    outbox.close(NotReadyError("gone"))
    await outbox.flushed()
