# SPDX-License-Identifier: Apache-2.0
"""The playground in Chromium for the tests: an open page with its errors, and servers that tests pause."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page

from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import serving

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
DESKTOP, SMALL_PHONE = {"width": 1280, "height": 900}, {"width": 320, "height": 640}
TIMEOUT_MS = 120_000
CLIPBOARD = ["clipboard-read", "clipboard-write"]
STORY = "The lighthouse had been dark for years. Then a light burned at the top again. All could see it."


@dataclass(frozen=True, slots=True)
class PlaygroundPage:
    """An open page and its errors."""

    page: Page
    problems: list[str]

    def find(self, selector: str) -> Locator:
        return self.page.locator(selector)

    def player(self) -> dict[str, Any]:
        """The state of the player: request, playback, received and played samples, peak."""
        return dict(self.page.evaluate("({...document.querySelector('#player').dataset})"))

    def played(self) -> int:
        """The position of the player, in samples."""
        return int(self.player().get("played", 0))

    def image(self, selector: str) -> str:
        return str(self.page.evaluate("(found) => document.querySelector(found).toDataURL()", selector))

    def until(self, selector: str) -> None:
        self.page.wait_for_selector(selector, timeout=TIMEOUT_MS, state="attached")

    def say(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.click("#speak")

    def view(self, name: str) -> None:
        self.page.get_by_role("link", name=name, exact=True).click()


@contextmanager
def open_page(
    browser: Browser, address: str, ready: str = "#playground:not([hidden])", fake_clock: bool = False, **more: Any
) -> Iterator[PlaygroundPage]:
    """An open page, which must have no errors at the end. fake_clock: the test moves the time of timers."""
    context = browser.new_context(**{"viewport": DESKTOP, "accept_downloads": True, **more})
    page = context.new_page()
    if fake_clock:
        page.clock.install()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))

    def note(line: ConsoleMessage) -> None:
        expected = ("Failed to load", "WebSocket connection")  # error responses are part of tests
        if line.type == "error" and not line.text.startswith(expected):
            problems.append(line.text)

    page.on("console", note)
    try:
        page.goto(f"{address}/")
        page.wait_for_selector(ready, timeout=TIMEOUT_MS)
        yield PlaygroundPage(page, problems)
        assert problems == []
    finally:
        context.close()


@contextmanager
def paused_server(settings: Settings | None = None, **more: Any) -> Iterator[tuple[PausableEngine, str]]:
    """A server on a fake engine that the test pauses and resumes, and its URL."""
    engine = PausableEngine(**more)
    try:
        with serving(engine, settings) as running:
            yield engine, running.address
    finally:
        engine.close()
