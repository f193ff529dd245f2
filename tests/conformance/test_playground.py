# SPDX-License-Identifier: Apache-2.0
"""The playground in Chromium: user actions, and the audio, drawings and metrics that follow."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright
from starlette.types import ASGIApp, Receive, Scope, Send

from conformance.server_process import ServerProcess
from ipc.engine_processes import eventually
from polyvox.audio import read_audio
from polyvox.server.settings import Settings
from server.fakes import CUSTOM, DESIGN, PausableEngine
from server.live_server import serving

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
TIMEOUT_MS = 120_000
CLIPBOARD = ["clipboard-read", "clipboard-write"]
STORY = "The lighthouse had been dark for years. Then a light burned at the top again. All could see it."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


@dataclass(frozen=True, slots=True)
class PlaygroundPage:
    """An open page and its errors."""

    page: Page
    problems: list[str]

    def find(self, selector: str) -> Locator:
        return self.page.locator(selector)

    def playback(self) -> dict[str, Any]:
        return dict(self.page.evaluate("({...document.querySelector('#playback').dataset})"))

    def played(self) -> int:
        """Samples that the audio worklet has played."""
        return int(self.playback().get("played", 0))

    def image(self, selector: str) -> str:
        return str(self.page.evaluate("(found) => document.querySelector(found).toDataURL()", selector))

    def until(self, selector: str) -> None:
        self.page.wait_for_selector(selector, timeout=TIMEOUT_MS, state="attached")

    def say(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.click("#speak")


@contextmanager
def open_page(
    browser: Browser, address: str, ready: str = "#playground:not([hidden])", **more: Any
) -> Iterator[PlaygroundPage]:
    context = browser.new_context(**{"viewport": DESKTOP, "accept_downloads": True, **more})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))

    def note(line: ConsoleMessage) -> None:
        if line.type == "error" and "Failed to load" not in line.text:  # error responses are expected
            problems.append(line.text)

    page.on("console", note)
    try:
        page.goto(f"{address}/")
        page.wait_for_selector(ready, timeout=TIMEOUT_MS)
        yield PlaygroundPage(page, problems)
        assert problems == []
    finally:
        context.close()


@pytest.fixture
def visit(browser: Browser, server: ServerProcess) -> Iterator[PlaygroundPage]:
    with open_page(browser, server.url) as visit:
        yield visit


@contextmanager
def paused_server(**more: Any) -> Iterator[tuple[PausableEngine, str]]:
    """A server on a fake engine that the test pauses and resumes, and its URL."""
    settings = more.pop("settings", None)
    engine = PausableEngine(**more)
    try:
        with serving(engine, settings) as running:
            yield engine, running.address
    finally:
        engine.close()


def test_an_utterance_is_played_while_it_is_generated(visit: PlaygroundPage) -> None:
    empty = visit.image("#chart"), visit.image("#waveform")
    visit.say(STORY)
    visit.until("#playback[data-state=streaming]")
    eventually(lambda: visit.played() > 0)
    early = visit.playback()
    assert early["state"] == "streaming", "playback starts before all of it was received"
    drawn = visit.image("#chart"), visit.image("#waveform")
    assert drawn[0] != empty[0]
    assert drawn[1] != empty[1]
    visit.until("#playback[data-state=finished]")
    late = visit.playback()
    assert int(late["played"]) == int(late["received"]) > max(24_000, int(early["played"]))
    assert float(late["peak"]) > 0.05, "the audio is silent"
    assert visit.image("#chart") != drawn[0]
    expect(visit.find("#ttfa")).to_have_text(re.compile(r"^\d+ ms$"))
    expect(visit.find("#rtf")).to_have_text(re.compile(r"^\d+\.\d\d$"))
    expect(visit.find("#underruns")).to_have_text(re.compile(r"^\d+$"))
    expect(visit.find("#status")).to_contain_text("seed")


def test_stop_silences_playback_and_frees_the_slot(visit: PlaygroundPage, server: ServerProcess) -> None:
    visit.page.fill("#text", STORY)
    visit.page.keyboard.press("Control+Enter")
    visit.until("#playback[data-state=streaming]")
    visit.page.keyboard.press("Escape")
    visit.until("#playback[data-state=stopped]")
    expect(visit.find("#stop")).to_be_disabled()
    at = visit.played()
    eventually(lambda: server.active_streams() == 0)
    assert visit.played() == at


def test_a_new_utterance_replaces_the_current_one(browser: Browser) -> None:
    with paused_server(max_chunks=5) as (engine, address), open_page(browser, address) as visit:
        visit.say("One. Two. Three. Four.")
        eventually(lambda: visit.played() > 0)
        visit.say("Five.")
        eventually(lambda: engine.streams == 1)
        engine.resume()
        visit.until("#playback[data-state=finished]")
        assert visit.played() == int(visit.playback()["received"]) == 10 * 480


def test_an_underrun_is_counted_and_marked(browser: Browser) -> None:
    with paused_server(max_chunks=5) as (engine, address), open_page(browser, address) as visit:
        visit.say("One. Two. Three. Four.")
        expect(visit.find("#underruns")).to_have_text("1", timeout=TIMEOUT_MS)
        assert visit.find("#underruns").get_attribute("data-tone") == "warn"
        assert visit.played() == 5 * 480
        engine.resume()
        visit.until("#playback[data-state=finished]")
        assert int(visit.find("#underruns").inner_text()) >= 1
        assert visit.played() == int(visit.playback()["received"]) >= 40 * 480


PLAYBACK_BUFFER = """async () => {
  const { PlaybackBuffer } = await import("./web/playback_buffer.js");
  const buffer = new PlaybackBuffer(1000);
  const push = (values, more = {}) => buffer.receive({ utterance: 1, samples: Int16Array.from(values), ...more });
  const pull = (count) => {
    const block = new Float32Array(count);
    buffer.fill(block);
    return [...block].map((value) => value * 32768);
  };
  buffer.receive({ begin: 1, utterance: 1 });
  const output = [];
  push(Array.from({ length: 59 }, (_, i) => i + 1));
  output.push(pull(10));
  push([60, 61, 62]);
  output.push(Array.from({ length: 8 }, () => pull(8)).flat());
  const first = buffer.underruns;
  push(Array.from({ length: 60 }, (_, i) => i + 100));
  output.push(pull(4));
  buffer.receive({ utterance: 7, samples: Int16Array.from([9]) });
  buffer.receive({ utterance: 1, end: true });
  output.push(pull(60));
  return { output, first, last: buffer.underruns, played: buffer.played };
}"""


def test_the_playback_buffer_is_gapless_and_counts_underruns(visit: PlaygroundPage) -> None:
    found = visit.page.evaluate(PLAYBACK_BUFFER)
    assert found["output"][0] == [0] * 10, "it waits for the start buffer"
    assert found["output"][1] == [*range(1, 63), 0, 0]
    assert found["first"] == 1
    assert found["output"][2] == [0] * 4, "after an underrun the start buffer doubles"
    assert found["output"][3] == [*range(100, 160)], "at the end it does not wait"
    assert (found["last"], found["played"]) == (1, 122)


SIMULATED_PLAYER = """async () => {
  const { SimulatedPlayer } = await import("./web/simulated_player.js");
  const player = new SimulatedPlayer();
  player.receive(0.5, 10);
  const values = [player.lead(10.2), player.underruns];
  values.push(player.lead(11), player.underruns);
  player.receive(0.1, 11);
  values.push(player.lead(11.05));
  player.receive(0.1, 11.1);
  values.push(player.lead(11.2), player.underruns);
  player.lead(12);
  values.push(player.underruns);
  player.end(12);
  values.push(player.underruns, player.played(13));
  return values.map((value) => Math.round(value * 1000) / 1000);
}"""


def test_a_simulated_player_has_the_underruns_of_the_playback_buffer(visit: PlaygroundPage) -> None:
    assert visit.page.evaluate(SIMULATED_PLAYER) == [0.3, 0, 0, 1, 0.1, 0.1, 1, 2, 1, 0.7]


def test_a_load_test_of_four_streams_shows_each_stream(visit: PlaygroundPage, server: ServerProcess) -> None:
    visit.page.fill("#text", "Four streams say this at the same time.")
    visit.find("#load-size").fill("4")
    visit.page.click("#load-start")
    streams = visit.find(".stream")
    expect(streams).to_have_count(4)
    visit.until(".stream:is([data-state=streaming], [data-state=underrun])")
    before = visit.image(".stream canvas")
    eventually(lambda: visit.image(".stream canvas") != before)
    expect(visit.find(".stream[aria-pressed=true] .number")).to_have_text("1")
    streams.nth(2).click()
    expect(visit.find(".stream[aria-pressed=true] .number")).to_have_text("3")
    visit.until("#load-stop:disabled")
    states = [lane.get_attribute("data-state") for lane in streams.all()]
    assert set(states) <= {"finished", "underrun", "rejected"}
    assert any(state != "rejected" for state in states)
    expect(visit.find("#load-status")).to_contain_text("finished")
    assert visit.find("#load-announcement").inner_text() != ""
    eventually(lambda: server.active_streams() == 0)


def test_a_load_test_beyond_capacity_shows_the_rejections(browser: Browser) -> None:
    with paused_server(max_chunks=8, max_streams=2) as (engine, address), open_page(browser, address) as visit:
        visit.say("")
        expect(visit.find("#status")).to_contain_text("Enter a text")
        visit.page.fill("#text", "One.")
        visit.find("#load-size").fill("4")
        visit.page.click("#load-start")
        visit.until(".stream[data-state=rejected]")
        expect(visit.find(".stream[data-state=rejected]")).to_have_count(2)
        expect(visit.find("#load-problem")).to_contain_text("The server is at capacity")
        expect(visit.find("#load-problem")).to_contain_text("Retry in")
        engine.resume()
        visit.until("#load-stop:disabled")
        expect(visit.find("#load-status")).to_contain_text("2 finished · 2 rejected")


def test_a_load_test_can_be_stopped(browser: Browser) -> None:
    with paused_server(max_chunks=5) as (engine, address), open_page(browser, address) as visit:
        visit.find("#load-size").fill("12")
        visit.page.click("#load-start")
        eventually(lambda: engine.streams >= 12)
        visit.page.click("#load-stop")
        expect(visit.find("#load-status")).to_have_text(re.compile("12 stopped"))
        eventually(lambda: engine.streams == 0)


def test_copied_commands_run(browser: Browser, server: ServerProcess, tmp_path: Path) -> None:
    with open_page(browser, server.url, permissions=CLIPBOARD) as visit:
        text = 'It\'s a "test" of $HOME & more.'
        visit.page.fill("#text", text)
        visit.page.fill("#seed", "7")
        visit.page.select_option("#format", "flac")
        visit.page.locator("#voices label", has_text="michael").click()
        copied = {}
        for kind in ("curl", "python"):
            visit.page.click(f"#copy-{kind}")
            expect(visit.find(f"#copy-{kind}")).to_have_text("Copied")
            copied[kind] = visit.page.evaluate("navigator.clipboard.readText()")
    expected = server.one_shot(text, 7, voice="michael")
    for command in (["sh", "-c", f"{copied['curl']} --fail --silent"], [sys.executable, "-c", copied["python"]]):
        (tmp_path / "speech.flac").unlink(missing_ok=True)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert len(read_audio(tmp_path / "speech.flac", 24_000)) == len(expected)


@pytest.mark.parametrize("form", ["wav", "mp3"])
def test_an_utterance_can_be_downloaded(visit: PlaygroundPage, tmp_path: Path, form: str) -> None:
    visit.page.select_option("#format", form)
    visit.say("Keep this.")
    visit.until("#playback[data-state=finished]")
    with visit.page.expect_download(timeout=TIMEOUT_MS) as waiting:
        visit.page.click("#download")
    waiting.value.save_as(tmp_path / f"saved.{form}")
    saved, played = len(read_audio(tmp_path / f"saved.{form}", 24_000)), visit.played()
    assert saved == played if form == "wav" else abs(saved - played) < 3_000, "mp3 adds some silence"


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_has_both_colour_schemes(
    browser: Browser, server: ServerProcess, tmp_path: Path, size: dict[str, int], scheme: str
) -> None:
    with open_page(browser, server.url, viewport=size, color_scheme=scheme, reduced_motion="reduce") as visit:
        visit.say("Short.")
        visit.until("#playback[data-state=finished]")
        visit.page.click("#load-start")
        visit.until("#load-stop:disabled")
        assert visit.page.evaluate("document.documentElement.scrollWidth") == size["width"]
        ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(value) for value in re.findall(r"\d+", ground)[:3]) / 3
        assert brightness > 200 if scheme == "light" else brightness < 40
        visit.page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)


def test_every_control_has_a_name_and_can_be_reached_by_keyboard(visit: PlaygroundPage) -> None:
    unnamed = """() => [...document.querySelectorAll("button, input, select, textarea")].filter((control) =>
        !control.labels?.length && !control.ariaLabel && !control.textContent.trim()).map((control) => control.id)"""
    assert visit.page.evaluate(unnamed) == []
    reached = set()
    visit.find("#text").focus()
    for _ in range(30):
        visit.page.keyboard.press("Tab")
        reached.add(visit.page.evaluate("document.activeElement.id"))
    assert {"speed", "seed", "format", "speak", "copy-curl", "copy-python", "load-size", "load-start"} <= reached


def test_a_voice_is_recorded_saved_and_used(browser: Browser, cloning: ServerProcess) -> None:
    with open_page(browser, cloning.url, permissions=["microphone"]) as visit:
        expect(visit.find("#no-voices")).to_be_visible()
        visit.page.click("#speak")
        expect(visit.find("#status")).to_contain_text("record or upload")
        visit.page.click("#new-voice")
        visit.page.fill("#voice-name", "beeper")
        visit.page.check("#consent")
        visit.page.click("#voice-save")
        expect(visit.find("#voice-problem")).to_contain_text("Record a voice")
        visit.page.click("#record")
        expect(visit.find("#recorded")).to_contain_text("3 s of", timeout=TIMEOUT_MS)
        visit.page.click("#record")
        expect(visit.find("#recorded")).to_contain_text("recorded")
        visit.page.click("#voice-save")
        expect(visit.find("#voice-dialog")).not_to_be_visible(timeout=TIMEOUT_MS)
        expect(visit.page.get_by_role("radio", name="beeper")).to_be_checked()
        visit.say("So this is how I sound.")
        visit.until("#playback[data-state=finished]")
        assert visit.played() > 0
    with cloning.client() as client:
        voice = client.get("/v1/audio/voices/beeper").json()
        assert "agreed" in voice["consent"]
        client.delete("/v1/audio/voices/beeper")


def test_a_file_that_is_not_audio_is_rejected_with_a_message(
    browser: Browser, cloning: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "nothing.wav").write_bytes(b"nothing" * 1000)
    with open_page(browser, cloning.url) as visit:
        visit.page.click("#new-voice")
        visit.page.set_input_files("#recording", tmp_path / "nothing.wav")
        visit.page.fill("#voice-name", "nothing")
        visit.page.click("#voice-save")
        expect(visit.find("#voice-problem")).to_be_hidden()  # nothing is sent without consent
        visit.page.check("#consent")
        visit.page.click("#voice-save")
        expect(visit.find("#voice-problem")).to_be_visible(timeout=TIMEOUT_MS)
        expect(visit.find("#voice-dialog")).to_be_visible()


def test_the_page_offers_what_the_checkpoint_supports(browser: Browser) -> None:
    shown = {}
    for info in (CUSTOM, DESIGN):
        with paused_server(info=info) as (_, address), open_page(browser, address) as visit:
            names = ("#voice-field", "#instructions-field", "#language-field", "#new-voice")
            shown[info.identity.name] = [name for name in names if visit.find(name).is_visible()]
    assert shown == {"Fake-CustomVoice": ["#voice-field"], "Fake-VoiceDesign": ["#instructions-field"]}


def test_a_key_is_requested_stored_and_never_shown(browser: Browser) -> None:
    key = "sesame/(50%25)"  # with characters that a subprotocol cannot have
    settings = Settings(api_keys=[key])
    with (
        paused_server(settings=settings) as (_, address),
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
        visit.until("#playback[data-state=finished]")
        visit.page.click("#load-start")
        visit.until("#load-stop:disabled")
        expect(visit.find("#load-status")).to_contain_text("8 finished")
        visit.page.click("#copy-curl")
        copied = visit.page.evaluate("navigator.clipboard.readText()")
        assert "YOUR_API_KEY" in copied
        assert "sesame" not in copied


def test_the_page_works_below_a_path_prefix(browser: Browser) -> None:
    engine = PausableEngine()
    try:
        with serving(engine) as running:
            config = running.server.config
            config.loaded_app = _with_prefix("/some/path", config.loaded_app)
            with open_page(browser, f"{running.address}/some/path") as visit:
                visit.say("Hello.")
                visit.until("#playback[data-state=finished]")
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
