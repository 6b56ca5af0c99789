"""Makes the pictures of the page in docs/page: a server of the papers' policy in a burst, on a laptop and on a phone.

python -m tests.rest.page_pictures
"""

import asyncio
import base64
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2
from selenium.webdriver.common.keys import Keys

from tests.builders.repository_paths import ROOT
from tests.builders.waits import wait_until
from tests.rest.browser import Browser

OUT = ROOT / "docs" / "page"
SERVER = (
    "up", "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--policy", "skip-join-mlfq", "--threads", "1",
    "--kv-device-tokens", "2048", "--kv-host-tokens", "65536",
)  # fmt: skip
JOBS = 150


async def burst(http: httpx2.AsyncClient) -> None:
    """Jobs of very different lengths, all at once."""
    draw = random.Random(1)

    async def one(number: int) -> None:
        most = draw.choice((8, 16, 32, 64, 400, 700))
        body = {"model": "fastserve-bundled", "prompt": "def main(" * draw.randint(1, 8), "max_tokens": most}
        await http.post("/v1/completions", json={**body, "ignore_eos": True, "seed": number})

    await asyncio.gather(*(one(number) for number in range(JOBS)))


async def pictures(address: str, folder: Path) -> None:
    browser = Browser(folder / "chromium")
    try:
        async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=300.0, trust_env=False) as http:
            for name, width, height, is_dark in (("laptop", 1280, 900, False), ("phone", 390, 844, True)):
                browser.dark(is_dark)
                await browser.open(f"http://{address}/", width, height)
                running = asyncio.create_task(burst(http))
                await browser.until("document.querySelectorAll('.mark.host').length > 12")
                await browser.until(
                    "(document.querySelector('#rate-line path').getAttribute('d') ?? '').split('L').length > 4"
                )
                browser.find("#prompt-text").send_keys("def main(", Keys.CONTROL, Keys.ENTER)
                await browser.until("document.querySelector('#answer').textContent.length > 60")
                await browser.ask("window.scrollTo(0, 0)")
                shot = browser.command("Page.captureScreenshot", format="png", captureBeyondViewport=False)
                (OUT / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
                await running
    finally:
        browser.quit()


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        ready = Path(name) / "ready.json"
        argv = [sys.executable, "-m", "services.cli", *SERVER, "--ready-file", str(ready)]
        server = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: ready.exists() or server.poll() is not None, "the server serves")
            asyncio.run(pictures(json.loads(ready.read_text())["http"], Path(name)))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
