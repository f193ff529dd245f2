# SPDX-License-Identifier: Apache-2.0
"""The playground in Chromium: small screens, colour schemes, keyboard, accessibility, API keys and proxies."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect
from starlette.types import ASGIApp, Receive, Scope, Send

from conformance.playground_page import CLIPBOARD, DESKTOP, SMALL_PHONE, PlaygroundPage, open_page, paused_server
from conformance.scripted_realtime import ScriptedRealtime
from ipc.fake_engine import ABOUT
from polyvox.server.settings import Settings
from server.fakes import PausableEngine
from server.live_server import serving

NOWHERE = "http://127.0.0.1:9/v1"  # conversations are scripted: neither LLM nor STT are asked
CONVERSING = Settings(llm=NOWHERE, stt=NOWHERE)
LINKS = {"API reference": "/v1/audio/speech ", "Voices": "heart", "Readiness": "ready", "Metrics": "polyvox_"}


def axe_findings(visit: PlaygroundPage) -> list[str]:
    """What axe reports for the page as it is."""
    results = Axe().run(visit.page).response["violations"]
    return [f"{found['id']}: {node['html']}" for found in results for node in found["nodes"]]


@pytest.mark.parametrize("size", [DESKTOP, SMALL_PHONE], ids=["desktop", "320 px"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_is_accessible_and_has_both_colour_schemes(
    browser: Browser, size: dict[str, int], scheme: str
) -> None:
    with (
        paused_server(CONVERSING, max_streams=8) as (_, address),
        open_page(browser, address, viewport=size, color_scheme=scheme, reduced_motion="reduce") as visit,
    ):
        ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(value) for value in re.findall(r"\d+", ground)[:3]) / 3
        assert brightness > 200 if scheme == "light" else brightness < 40
        assert axe_findings(visit) == []
        visit.page.get_by_text("Use this in your code").click()
        visit.say("Short.")
        visit.until("#player[data-playback=ended]")
        assert axe_findings(visit) == []
        assert visit.page.evaluate("document.documentElement.scrollWidth") == size["width"]
        visit.view("Conversation")
        assert axe_findings(visit) == []
        script = ScriptedRealtime()
        script.install(visit.page)
        for text in ("Tell me about the harbour, please, and about all of its boats.", "And then?"):
            visit.page.fill("#message", text)
            visit.page.keyboard.press("Enter")
            expect(visit.find(".message mark[data-kind=word]")).to_be_visible()
        script.send("error", error={"type": "server_error", "code": "overloaded", "message": "All slots are in use."})
        expect(visit.find("#conversation-problem")).to_be_visible()
        assert axe_findings(visit) == []
        assert visit.page.evaluate("document.documentElement.scrollWidth") == size["width"]
        visit.view("Measure")
        visit.page.click("#load-start")
        visit.until("#load-stop:disabled")
        assert axe_findings(visit) == []
        assert visit.page.evaluate("document.documentElement.scrollWidth") == size["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_problems_and_the_voice_dialog_are_accessible(browser: Browser, scheme: str) -> None:
    with (
        paused_server(info=ABOUT) as (_, address),
        open_page(browser, address, viewport=SMALL_PHONE, color_scheme=scheme) as visit,
    ):
        visit.page.click("#speak")
        expect(visit.find("#problem")).to_be_visible()
        assert axe_findings(visit) == []
        visit.page.click("#new-voice")
        visit.page.fill("#voice-name", "me")
        visit.page.check("#consent")
        visit.page.click("#voice-save")
        expect(visit.find("#voice-problem")).to_be_visible()
        assert axe_findings(visit) == []
        assert visit.page.evaluate("document.documentElement.scrollWidth") == SMALL_PHONE["width"]


def test_every_control_can_be_reached_by_keyboard(browser: Browser) -> None:
    with paused_server(CONVERSING) as (_, address), open_page(browser, address) as visit:
        visit.say("Short.")
        visit.until("#player[data-playback=ended]")
        reached = tab_through(visit)
        speak = {"text", "speak", "play", "seek", "format", "download", "speed", "seed", "keep-seed"}
        assert speak <= reached
        visit.view("Conversation")
        conversation = {"messages", "message", "talk", "conversation-voice", "system-prompt", "conversation-speed"}
        assert conversation <= tab_through(visit)
        visit.view("Measure")
        assert {"measure-start", "load-size", "load-start"} <= tab_through(visit)


def tab_through(visit: PlaygroundPage) -> set[str]:
    """The ids that the Tab key reaches, from the start of the page."""
    reached = set()
    visit.page.evaluate("document.activeElement.blur()")
    for _ in range(40):
        visit.page.keyboard.press("Tab")
        reached.add(visit.page.evaluate("document.activeElement.id"))
    return reached


def test_a_key_is_requested_stored_and_never_shown(browser: Browser) -> None:
    key = "sesame/(50%25)"  # with characters that a subprotocol cannot have
    settings = Settings(api_keys=[key])
    with (
        paused_server(settings) as (_, address),
        open_page(browser, address, ready="#key-form:not([hidden])", permissions=CLIPBOARD) as visit,
    ):
        expect(visit.find("#playground")).to_be_hidden()
        visit.page.fill("#key", "wrong")
        visit.page.keyboard.press("Enter")
        expect(visit.find("#notice")).to_contain_text("API key")
        visit.page.fill("#key", key)
        visit.page.keyboard.press("Enter")
        expect(visit.find("#playground")).to_be_visible()
        visit.page.reload()
        expect(visit.find("#playground")).to_be_visible()
        visit.say("Open.")
        visit.until("#player[data-playback=ended]")
        for name, content in LINKS.items():
            visit.page.get_by_role("link", name=name).click()
            expect(visit.find("#response")).to_contain_text(content)
            visit.page.get_by_role("button", name="Close").click()
        visit.view("Measure")
        visit.page.click("#load-start")
        visit.until("#load-stop:disabled")
        expect(visit.find("#load-status")).to_contain_text("8 finished")
        visit.view("Speak")
        visit.page.get_by_text("Use this in your code").click()
        visit.page.click("#copy-curl")
        copied = visit.page.evaluate("navigator.clipboard.readText()")
        assert "YOUR_API_KEY" in copied
        assert "sesame" not in copied
        visit.page.evaluate("sessionStorage.setItem('polyvox-key', 'expired')")
        visit.page.click("#speak")
        expect(visit.find("#key-form")).to_be_visible()
        expect(visit.find("#notice")).to_contain_text("Invalid API key.")


def test_the_page_works_below_a_path_prefix(browser: Browser) -> None:
    engine = PausableEngine()
    try:
        with serving(engine) as running:
            config = running.server.config
            config.loaded_app = _with_prefix("/some/path", config.loaded_app)
            with open_page(browser, f"{running.address}/some/path") as visit:
                visit.say("Hello.")
                visit.until("#player[data-playback=ended]")
                visit.view("Measure")
                visit.page.click("#load-start")
                visit.until("#load-stop:disabled")
                expect(visit.find("#load-status")).to_contain_text("8 finished")
    finally:
        engine.close()


def _with_prefix(path: str, app: ASGIApp) -> ASGIApp:
    """The app behind a proxy that serves it below a path and strips that path."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["path"].startswith(f"{path}/"), scope["path"]
        shorter = scope["path"].removeprefix(path)
        await app({**scope, "path": shorter, "raw_path": shorter.encode()}, receive, send)

    return serve
