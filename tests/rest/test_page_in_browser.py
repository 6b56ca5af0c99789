"""The page in Chromium: what it shows, that it streams, comes back, and can be used by keyboard and screen reader."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.builders.api_keys import add_key
from tests.rest.browser import CHROMIUM, DRIVER, MISSING, Browser
from tests.rest.conftest import drawn
from tests.rest.page_statuses import BUSY, DEVICE, HOST, NONE, WAITING, job, status
from tests.rest.running_front import Served, running_front, served

pytestmark = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason=MISSING)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.quit()


@pytest.fixture
async def page(browser: Browser, scripted: Served) -> Browser:
    """The page of a busy server, which lives."""
    scripted.scheduler.status = BUSY
    await browser.open(f"http://{scripted.address}/")
    await browser.until("document.querySelector('#link').textContent === 'live'")
    return browser


def marks(level: int, kind: str = "") -> str:
    return f"document.querySelectorAll('.level')[{level}].querySelectorAll('.mark{kind}')"


async def test_each_job_is_a_mark_in_its_level_whose_colour_tells_where_its_kv_is(page: Browser) -> None:
    assert await page.ask(f"[0, 1, 2].map(n => {marks(0).replace('[0]', '[n]')}.length)") == [3, 1, 1]
    colours = [
        await page.ask(f"getComputedStyle({marks(level, kind)}[0]).backgroundColor")
        for level, kind in ((0, ".device"), (0, ".none"), (2, ".host"))
    ]
    assert len(set(colours)) == 3
    assert await page.ask(f"{marks(0, '.running')}.length") == 2
    assert await page.ask(f"{marks(2)}[0].title") == (
        "0.5: swapped out, KV in host memory, 15 prompt and 5 output tokens"
    )
    assert await page.text_of(".level .name") == "level 0 · 10.0 ms · 2 running, 1 waiting"
    assert await page.text_of(".pools") == "device KV768 of 1,024 tokenshost KV1,024 of 4,096 tokens"
    assert await page.text_of("#finished") == "1,234"


async def test_a_change_of_the_server_shows(page: Browser, scripted: Served) -> None:
    changed = status([job(4, 1, WAITING, HOST)])
    changed.uptime_s, changed.counters.generation_tokens = 12.0, 1300
    scripted.scheduler.status = changed
    await page.until("document.querySelectorAll('.level .mark').length === 1")
    assert await page.ask(f"{marks(1, '.host')}.length") == 1
    assert await page.text_of("#rate") == "150"


async def test_a_prompt_typed_on_the_keyboard_streams_the_text_that_the_api_gives(
    page: Browser, scripted: Served
) -> None:
    prompt = page.find("#prompt-text")
    prompt.send_keys("the dog")
    page.find("#max-tokens").send_keys(Keys.CONTROL + "a" + Keys.NULL + "12")
    prompt.send_keys(Keys.CONTROL, Keys.ENTER)
    await page.until("document.querySelector('#answer').getAttribute('aria-busy') === 'false'")
    shown = await page.until("document.querySelector('#answer').textContent", lambda text: len(text) > len("the dog"))
    assert await page.ask("document.querySelector('#timing').textContent.startsWith('first piece after')")
    job = scripted.scheduler.jobs.popitem()[1]
    answer = await scripted.complete(max_tokens=12, seed=job.submission.sampling.seed)
    assert shown == "the dog" + answer.json()["choices"][0]["text"]


async def test_what_the_server_refuses_is_told(page: Browser) -> None:
    page.find("#prompt-text").send_keys("x")
    page.find("#max-tokens").send_keys(Keys.CONTROL + "a" + Keys.NULL + "4096" + Keys.ENTER)
    await page.until("!document.querySelector('#failure').hidden")
    assert "max_tokens" in await page.text_of("#failure")
    assert await page.ask("document.querySelector('#send').disabled") is False


async def test_it_says_that_the_server_is_gone_and_comes_back_by_itself(
    browser: Browser, scripted: Served, tmp_path: Path
) -> None:
    scripted.scheduler.status = BUSY
    folder = tmp_path / "first"
    folder.mkdir()
    async with running_front(scripted.gateway.address, folder) as (process, address):
        await browser.open(f"http://{address}/")
        await browser.until("document.querySelector('#link').dataset.state === 'live'")
        process.kill()
        await process.wait()
    await browser.until("document.querySelector('#link').dataset.state === 'lost'")
    assert await browser.ask("document.querySelector('main').classList.contains('stale')")
    async with running_front(scripted.gateway.address, tmp_path, "--listen", address):
        await browser.until("document.querySelector('#link').dataset.state === 'live'")
        assert not await browser.ask("document.querySelector('main').classList.contains('stale')")


async def test_where_keys_are_asked_for_it_asks_for_one_and_keeps_it_to_itself(
    browser: Browser, model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "alice")
    async with served(model, tmp_path, api_keys_file=file) as rest:
        rest.scheduler.status, rest.scheduler.script = BUSY, drawn
        await browser.open(f"http://{rest.address}/")
        await browser.until("document.querySelector('#link').textContent === 'an API key is needed'")
        prompt = browser.find("#prompt-text")
        prompt.send_keys("the dog", Keys.CONTROL, Keys.ENTER)
        await browser.until("!document.querySelector('#failure').hidden")
        browser.find("#key").send_keys(key, Keys.TAB)
        await browser.until("document.querySelector('#link').textContent === 'live'")
        prompt.send_keys(Keys.CONTROL, Keys.ENTER)
        await browser.until("document.querySelector('#answer').textContent.length > 7")
        assert await browser.ask("document.cookie + JSON.stringify({...localStorage, ...sessionStorage})") == "{}"


async def test_ten_thousand_jobs_leave_it_usable(page: Browser, scripted: Served) -> None:
    listed = [job(number, 2, WAITING, NONE if number % 2 else DEVICE) for number in range(1000)]
    full = status(listed, waiting_more=8900)
    full.unplaced_jobs = 100
    scripted.scheduler.status = full
    await page.until(f"{marks(2)}.length === 1000")
    assert await page.text_of("#waiting") == "10,000"
    assert await page.text_of("#left-out") == "The first 1,000 jobs have a mark, 9,000 more have none."
    page.find("summary").click()
    await page.until("document.querySelectorAll('tbody tr').length === 100")
    page.find("#prompt-text").send_keys("the dog", Keys.CONTROL, Keys.ENTER)
    await page.until("document.querySelector('#answer').textContent.length > 7")


async def test_it_fits_a_phone_and_a_laptop_and_follows_the_colour_scheme(page: Browser, scripted: Served) -> None:
    grounds = set()
    for width, is_dark in ((360, False), (360, True), (1280, False), (1280, True)):
        page.dark(is_dark)
        await page.open(f"http://{scripted.address}/", width, 800)
        await page.until("document.querySelectorAll('.mark.host').length > 1")
        assert await page.ask("document.documentElement.scrollWidth") <= width
        grounds.add(await page.ask("getComputedStyle(document.body).backgroundColor"))
        small = "[...document.querySelectorAll('button, textarea, input:not([type=checkbox])')]"
        assert await page.ask(f"{small}.every(e => !e.offsetHeight || e.offsetHeight >= 40)")
    page.dark(False)
    assert len(grounds) == 2


async def test_a_screen_reader_meets_every_part_by_its_name(page: Browser) -> None:
    tree = page.accessible()
    for expected in (
        ("heading", "Queues"),
        ("heading", "Prompt"),
        ("heading", "Group 0 on cpu, up to 48 jobs an iteration"),
        ("status", ""),
        ("textbox", "Text to go on from"),
        ("spinbutton", "Tokens at most"),
        ("button", "Send"),
        ("log", "Answer"),
        ("progressbar", "device KV"),
        ("progressbar", "host KV"),
        ("image", "Output tokens per second over the last two minutes"),
        ("link", "Skip to the prompt"),
    ):
        assert expected in tree, tree
    asking = {"button", "textbox", "spinbutton", "checkbox", "link", "progressbar", "region", "log"}
    assert [role for role, name in tree if role in asking and not name.strip()] == []


async def test_the_keyboard_reaches_the_prompt_first_and_then_every_control_in_order(page: Browser) -> None:
    body, reached = page.find("body"), []
    body.send_keys(Keys.TAB, Keys.ENTER)
    assert await page.ask("document.activeElement.id") == "prompt-text"
    for _ in range(4):
        await asyncio.to_thread(page.driver.switch_to.active_element.send_keys, Keys.TAB)
        reached.append(await page.ask("document.activeElement.id"))
    assert reached == ["max-tokens", "temperature", "as-chat", "send"]


async def test_it_asks_its_own_server_alone_and_breaks_no_policy(page: Browser, scripted: Served) -> None:
    page.find("#prompt-text").send_keys("the dog", Keys.CONTROL, Keys.ENTER)
    await page.until("document.querySelector('#answer').textContent.length > 7")
    asked = page.requests()
    assert {address.split("/")[2] for address in asked} == {scripted.address}
    assert page.console() == []
