"""The page at `/`: what the front serves, and what its files may hold."""

import re
from itertools import product

import pytest

from rest.build import MODULE
from tests.rest.running_front import Served, refusal

PAGE = MODULE / "page"
FILES = sorted(path.name for path in PAGE.iterdir() if path.name != "index.html")
PLAIN_TEXT, LARGE = 4.5, 3.0
"""The contrast ratios of WCAG 2.2's level AA: of text (1.4.3), and of marks and borders that say something (1.4.11)."""


async def test_it_may_load_its_own_files_alone_and_is_asked_for_anew_by_its_tag(rest: Served) -> None:
    page = await rest.http.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.strip().partition(" ")[::2] for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert page.headers["x-content-type-options"] == "nosniff"
    again = await rest.http.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = await rest.http.head("/")
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(page.content)))


@pytest.mark.parametrize("name", FILES)
async def test_each_file_comes_as_it_is(rest: Served, name: str) -> None:
    file = await rest.http.get(f"/page/{name}")
    kinds = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
    assert (file.status_code, file.content) == (200, (PAGE / name).read_bytes())
    assert file.headers["content-type"] == kinds[name.rpartition(".")[2]]


async def test_nothing_else_is_there_and_nothing_can_be_posted(rest: Served) -> None:
    for path in ("/page", "/page/", "/page/index.html", "/page/../main.go", "/page/none.js"):
        refusal(await rest.http.get(path), 404)
    answer = await rest.http.post("/", json={})
    refusal(answer, 405)
    assert answer.headers["allow"] == "GET, HEAD"


def test_no_file_names_another_server_or_holds_code_where_the_policy_forbids_it() -> None:
    for path in PAGE.iterdir():
        text = path.read_text()
        assert re.findall(r"(?:https?:)?//[a-z0-9]+\.[a-z]", text.replace("http://www.w3.org/2000/svg", "")) == [], path
    page = (PAGE / "index.html").read_text()
    assert re.findall(r"\sstyle=|\son[a-z]+=|<style|<script(?! type=\"module\" src=)", page) == []


def _colours(scheme: str) -> dict[str, str]:
    light, dark = re.findall(r":root \{(.*?)\}", (PAGE / "page.css").read_text(), re.DOTALL)
    found = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]+);", {"light": light, "dark": dark}[scheme]))
    assert len(found) == 14
    return found


def _contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        shares = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_marks_stand_out_in_both_schemes(scheme: str) -> None:
    colours = _colours(scheme)
    for name, ground in product(("text", "quiet", "good", "bad", "wait"), ("card", "ground")):
        assert _contrast(colours[name], colours[ground]) >= PLAIN_TEXT, (name, ground)
    assert _contrast(colours["on-accent"], colours["accent"]) >= PLAIN_TEXT
    for name in ("device", "host", "none", "accent"):
        assert _contrast(colours[name], colours["card"]) >= LARGE, name
