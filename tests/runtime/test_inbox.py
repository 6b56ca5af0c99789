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


async def test_what_can_wait_is_taken_at_once_if_it_comes_alone_and_else_gathered() -> None:
    loop, gather_s = asyncio.get_running_loop(), 0.05
    inbox = Inbox[str](10, gather_s)
    await inbox.put("a")
    assert await inbox.take() == ["a"]
    taken_s = loop.time()
    await inbox.put("b")
    taking = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    await inbox.put("c")
    assert await taking == ["b", "c"]
    assert loop.time() >= taken_s + gather_s - 0.01  # the loop's timers may be a clock tick early


async def test_what_never_waits_takes_along_what_is_gathered() -> None:
    inbox = Inbox[str](10, gather_s=3600.0)
    await inbox.put("a")
    assert await inbox.take() == ["a"]
    await inbox.put("b")
    inbox.post("c")
    assert await inbox.take() == ["b", "c"]


async def test_turns_without_anything_that_can_wait_make_nothing_wait() -> None:
    inbox = Inbox[str](10, gather_s=3600.0)
    inbox.post("a")
    assert await inbox.take() == ["a"]
    await inbox.put("b")
    assert await inbox.take() == ["b"]


async def test_a_full_inbox_is_taken_although_it_gathers() -> None:
    inbox = Inbox[int](2, gather_s=3600.0)
    await inbox.put(0)
    assert await inbox.take() == [0]
    await asyncio.gather(inbox.put(1), inbox.put(2))
    assert await inbox.take() == [1, 2]
