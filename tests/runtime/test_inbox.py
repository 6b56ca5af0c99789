"""A driver's inbox: everything since the last turn, in order, and bounded for peers that can wait."""

import asyncio

from services.runtime.inbox import Inbox


async def test_a_turn_takes_everything_that_waits_in_the_order_in_which_it_came() -> None:
    inbox = Inbox[int](2)
    for item in (3, 1, 2):
        inbox.post(item)
    assert await inbox.take() == [3, 1, 2]


async def test_taking_waits_for_the_first_item() -> None:
    inbox = Inbox[str](2)
    taking = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    inbox.post("a")
    assert await taking == ["a"]


async def test_putting_waits_while_the_inbox_is_full_and_posting_never_does() -> None:
    inbox = Inbox[str](2)
    for item in ("a", "b"):
        await inbox.put(item)
    putting = asyncio.create_task(inbox.put("d"))
    await asyncio.sleep(0)
    inbox.post("c")
    assert not putting.done()
    assert await inbox.take() == ["a", "b", "c"]
    await putting
    assert await inbox.take() == ["d"]


async def test_those_who_wait_for_room_never_fill_the_inbox_beyond_its_limit() -> None:
    inbox = Inbox[int](3)
    puts = [asyncio.create_task(inbox.put(number)) for number in range(10)]
    taken: list[int] = []
    while len(taken) < 10:
        await asyncio.sleep(0)
        assert len(inbox) <= 3
        taken += await inbox.take()
    await asyncio.gather(*puts)
    assert sorted(taken) == list(range(10))
