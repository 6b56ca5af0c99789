"""Debian's Chromium without a window, and what the tests ask of it."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "chromium and chromedriver are not installed: apt-get install chromium chromium-driver"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--no-proxy-server",
)
SOON_S = 60.0


class Browser:
    """One window. Its calls wait for the browser, so each is made on a thread."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(executable_path=DRIVER))

    async def open(self, url: str, width: int = 1280, height: int = 900) -> None:
        """Shows a page in a window of this size, in pixels of CSS."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._log("performance")
        self._log("browser")
        await asyncio.to_thread(self.driver.get, url)

    def _log(self, kind: str) -> list[dict[str, Any]]:
        """What came since the last call."""
        entries: list[dict[str, Any]] = self.driver.get_log(kind)  # type: ignore[no-untyped-call]
        return entries

    def quit(self) -> None:
        self.driver.quit()

    def command(self, name: str, **arguments: Any) -> Any:
        """A command of Chromium's DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def dark(self, is_dark: bool) -> None:
        """The colour scheme that the user prefers."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[feature])

    async def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        return await asyncio.to_thread(self.driver.execute_script, f"return {expression}")

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    async def until(self, expression: str, wanted: Callable[[Any], bool] = bool) -> Any:
        """Waits until the expression's value is wanted, and returns it."""
        value: Any = None
        try:
            async with asyncio.timeout(SOON_S):
                while not wanted(value := await self.ask(expression)):  # noqa: ASYNC110 (nobody tells)
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{expression} is {value!r}; the console says {self.console()}") from None
        return value

    async def text_of(self, selector: str) -> str:
        return str(await self.ask(f"document.querySelector({json.dumps(selector)}).textContent"))

    def console(self) -> list[str]:
        """Warnings and errors that the page caused, which a refused file or request is too."""
        return [entry["message"] for entry in self._log("browser") if entry["level"] in ("WARNING", "SEVERE")]

    def requests(self) -> list[str]:
        """The addresses that the page asked for since it was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]

    def accessible(self) -> list[tuple[str, str]]:
        """Role and name of everything that a screen reader meets."""
        nodes = self.command("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
