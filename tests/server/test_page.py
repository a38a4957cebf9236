"""The page in a browser: Debian's chromium, headless, driven by playwright."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import httpx
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright; pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the page is tested in chromium, which is not installed")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser):
    """A page whose requests to other hosts and whose errors fail the test."""
    made = browser.new_page(viewport={"width": 1200, "height": 1300})
    errors: list[str] = []
    hosts: set[str] = set()
    made.on("pageerror", lambda error: errors.append(str(error)))
    made.on("console", lambda message: errors.append(message.text) if message.type == "error" and "status of 40" not in message.text else None)
    made.on("request", lambda request: hosts.add(request.url.split("/")[2]) if request.url.startswith("http") else None)
    made.hosts = hosts
    yield made
    made.close()
    assert not errors


def fill(url: str) -> None:
    """Some branches in the tree."""
    for tail in ("alpha", "beta", "beta and more of it"):
        httpx.post(url + "/generate", json={"text": f"A prefix of some length that is shared. {tail};say:ok"})


def test_what_it_shows(served, page, tmp_path):
    fill(served.url)
    page.goto(served.url)
    page.wait_for_selector("#tree rect")
    assert page.text_content("#model").startswith("fake") and "up" in page.get_attribute("#health", "class")
    page.locator("#tree rect", has_text="").first.wait_for()
    box = page.locator("#tree rect").nth(0)
    tokens = int(box.get_attribute("data-tokens"))
    box.click()
    assert f"{tokens} tokens here" in page.text_content("#prefix")
    assert page.text_content("#prefix mark")
    page.select_option("#colour", "age")
    page.fill("#min-tokens", "500")
    playwright.expect(page.locator("#tree rect")).to_have_count(0)
    assert page.hosts == {served.url.split("/")[2]}
    page.screenshot(path=os.environ.get("RAMET_SCREENSHOT", str(tmp_path / "page.png")), full_page=True)
    assert (Path(os.environ.get("RAMET_SCREENSHOT", tmp_path / "page.png"))).stat().st_size > 10_000


def test_the_batch_is_live(served, page):
    """More than a picture a second: rows change as steps do, and go when nothing runs."""
    page.goto(served.url)
    body = {"text": "slow:0.1;say:" + "x" * 30, "sampling_params": {"max_new_tokens": 100}}
    asking = threading.Thread(target=httpx.post, args=(served.url + "/generate",), kwargs={"json": body, "timeout": 60})
    asking.start()
    page.wait_for_selector("#batch tbody tr")
    seen, end = set(), time.monotonic() + 1.5
    while time.monotonic() < end:
        seen.add(page.evaluate("document.querySelector('#batch tbody tr td:nth-child(3)')?.textContent"))
        page.wait_for_timeout(20)
    assert len(seen - {None}) >= 5 and page.text_content("#running") == "1"
    asking.join()
    playwright.expect(page.locator("#batch tbody tr")).to_have_count(0)


def test_the_playground(served, page):
    page.goto(served.url)
    page.fill("#message", "say:streamed words")
    page.click("#send")
    playwright.expect(page.locator("#meta")).to_contain_text("ended by stop")
    assert "".join(page.locator("#answer span.drawn").all_text_contents()).startswith("streamed words")
    page.click("#send")
    page.wait_for_selector("#answer span.cached")
    page.fill("#schema", '{"const": 5}')
    page.click("#send")
    playwright.expect(page.locator("#meta")).to_contain_text("ended by stop")
    assert page.locator("#answer span.drawn").first.text_content() == "5"
    page.fill("#schema", '{"type": "nonsense"}')
    page.click("#send")
    page.wait_for_selector("#answer .error")


def test_text_is_shown_as_text(served, page):
    """What a prompt holds never becomes part of the page."""
    httpx.post(served.url + "/generate", json={"text": "<img src=x onerror=alert(1)> a prompt;say:ok"})
    page.goto(served.url)
    page.wait_for_selector("#tree rect")
    for number in range(page.locator("#tree rect").count()):
        page.locator("#tree rect").nth(number).dispatch_event("click")
    assert page.locator("img").count() == 0


def test_with_a_key(serve, page):
    server = serve("--model-path", "fake", "--public-page", environment={"RAMET_API_KEY": "page-key"})
    page.goto(server.url)
    page.wait_for_selector("#key-form:not([hidden])")
    page.fill("#key", "page-key")
    page.click("#key-form button")
    page.wait_for_selector("#health.up")
