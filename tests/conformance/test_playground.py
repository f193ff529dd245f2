"""The playground in Debian's Chromium: what a visitor does, and what is heard, drawn and counted then."""

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

from conformance.serve import Served
from ipc.engine_processes import eventually
from polyvox.audio import read_audio
from polyvox.server.settings import Settings
from server.fakes import CUSTOM, DESIGN, HeldEngine
from server.live_server import serving

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PATIENCE_MS = 120_000
CLIPBOARD = ["clipboard-read", "clipboard-write"]
STORY = "The lighthouse had been dark for years. Then somebody lit the lamp again. Nobody could say who it was."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


@dataclass(frozen=True, slots=True)
class Visit:
    """The page as it is open, and what went wrong in it."""

    page: Page
    problems: list[str]

    def find(self, selector: str) -> Locator:
        return self.page.locator(selector)

    def heard(self) -> dict[str, Any]:
        return dict(self.page.evaluate("({...document.querySelector('#heard').dataset})"))

    def played(self) -> int:
        """Samples that the audio worklet has played."""
        return int(self.heard().get("played", 0))

    def picture(self, selector: str) -> str:
        return str(self.page.evaluate("(found) => document.querySelector(found).toDataURL()", selector))

    def until(self, selector: str) -> None:
        self.page.wait_for_selector(selector, timeout=PATIENCE_MS, state="attached")

    def say(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.click("#speak")


@contextmanager
def visiting(browser: Browser, address: str, ready: str = "#playground:not([hidden])", **more: Any) -> Iterator[Visit]:
    context = browser.new_context(**{"viewport": DESKTOP, "accept_downloads": True, **more})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))

    def note(line: ConsoleMessage) -> None:
        if line.type == "error" and "Failed to load" not in line.text:  # refusals are answers too
            problems.append(line.text)

    page.on("console", note)
    try:
        page.goto(f"{address}/")
        page.wait_for_selector(ready, timeout=PATIENCE_MS)
        yield Visit(page, problems)
        assert problems == []
    finally:
        context.close()


@pytest.fixture
def visit(browser: Browser, server: Served) -> Iterator[Visit]:
    with visiting(browser, server.url) as visit:
        yield visit


@contextmanager
def held(**more: Any) -> Iterator[tuple[HeldEngine, str]]:
    """A server whose engine does as it is told, and where it is."""
    settings = more.pop("settings", None)
    engine = HeldEngine(**more)
    try:
        with serving(engine, settings) as running:
            yield engine, running.address
    finally:
        engine.close()


def test_an_utterance_is_heard_while_it_is_made(visit: Visit) -> None:
    empty = visit.picture("#chart"), visit.picture("#wave")
    visit.say(STORY)
    visit.until("#heard[data-state=speaking]")
    eventually(lambda: visit.played() > 0)
    early = visit.heard()
    assert early["state"] == "speaking", "it was heard before all of it was here"
    drawn = visit.picture("#chart"), visit.picture("#wave")
    assert drawn[0] != empty[0]
    assert drawn[1] != empty[1]
    visit.until("#heard[data-state=finished]")
    late = visit.heard()
    assert int(late["played"]) == int(late["received"]) > max(24_000, int(early["played"]))
    assert float(late["peak"]) > 0.05, "it was not silence"
    assert visit.picture("#chart") != drawn[0]
    expect(visit.find("#ttfa")).to_have_text(re.compile(r"^\d+ ms$"))
    expect(visit.find("#rtf")).to_have_text(re.compile(r"^\d+\.\d\d$"))
    expect(visit.find("#underruns")).to_have_text(re.compile(r"^\d+$"))
    expect(visit.find("#status")).to_contain_text("seed")


def test_stop_is_silence_at_once_and_the_place_is_free(visit: Visit, server: Served) -> None:
    visit.page.fill("#text", STORY)
    visit.page.keyboard.press("Control+Enter")
    visit.until("#heard[data-state=speaking]")
    visit.page.keyboard.press("Escape")
    visit.until("#heard[data-state=stopped]")
    expect(visit.find("#stop")).to_be_disabled()
    at = visit.played()
    eventually(lambda: server.under_way() == 0)
    assert visit.played() == at


def test_who_speaks_again_hears_the_new_text_alone(browser: Browser) -> None:
    with held(allowed=5) as (engine, address), visiting(browser, address) as visit:
        visit.say("One. Two. Three. Four.")
        eventually(lambda: visit.played() > 0)
        visit.say("Five.")
        eventually(lambda: engine.streams == 1)
        engine.let_go()
        visit.until("#heard[data-state=finished]")
        assert visit.played() == int(visit.heard()["received"]) == 10 * 480


def test_an_underrun_is_counted_by_the_player_and_marked(browser: Browser) -> None:
    with held(allowed=5) as (engine, address), visiting(browser, address) as visit:
        visit.say("One. Two. Three. Four.")
        expect(visit.find("#underruns")).to_have_text("1", timeout=PATIENCE_MS)
        assert visit.find("#underruns").get_attribute("data-tone") == "warn"
        assert visit.played() == 5 * 480
        engine.let_go()
        visit.until("#heard[data-state=finished]")
        assert int(visit.find("#underruns").inner_text()) >= 1
        assert visit.played() == int(visit.heard()["received"]) >= 40 * 480


PLAYOUT = """async () => {
  const { Playout } = await import("./web/playout.js");
  const playout = new Playout(1000);
  const push = (values, more = {}) => playout.take({ utterance: 1, samples: Int16Array.from(values), ...more });
  const pull = (count) => {
    const output = new Float32Array(count);
    playout.fill(output);
    return [...output].map((value) => value * 32768);
  };
  playout.take({ begin: 1, utterance: 1 });
  const heard = [];
  push(Array.from({ length: 59 }, (_, i) => i + 1));
  heard.push(pull(10));
  push([60, 61, 62]);
  heard.push(Array.from({ length: 8 }, () => pull(8)).flat());
  const dry = playout.underruns;
  push(Array.from({ length: 60 }, (_, i) => i + 100));
  heard.push(pull(4));
  playout.take({ utterance: 7, samples: Int16Array.from([9]) });
  playout.take({ utterance: 1, end: true });
  heard.push(pull(60));
  return { heard, dry, last: playout.underruns, played: playout.played };
}"""


def test_the_player_leaves_no_gap_and_counts_what_is_missing(visit: Visit) -> None:
    found = visit.page.evaluate(PLAYOUT)
    assert found["heard"][0] == [0] * 10, "it waits for a little more than it has"
    assert found["heard"][1] == [*range(1, 63), 0, 0]
    assert found["dry"] == 1
    assert found["heard"][2] == [0] * 4, "after that it waits for more"
    assert found["heard"][3] == [*range(100, 160)], "and at the end for nothing"
    assert (found["last"], found["played"]) == (1, 122)


LISTENER = """async () => {
  const { Listener } = await import("./web/listener.js");
  const listener = new Listener();
  listener.arrive(0.5, 10);
  const told = [listener.lead(10.2), listener.underruns];
  told.push(listener.lead(11), listener.underruns);
  listener.arrive(0.1, 11);
  told.push(listener.lead(11.05));
  listener.arrive(0.1, 11.1);
  told.push(listener.lead(11.2), listener.underruns);
  listener.lead(12);
  told.push(listener.underruns);
  listener.end(12);
  told.push(listener.underruns, listener.heard(13));
  return told.map((value) => Math.round(value * 1000) / 1000);
}"""


def test_a_counted_listener_runs_dry_when_the_player_would(visit: Visit) -> None:
    assert visit.page.evaluate(LISTENER) == [0.3, 0, 0, 1, 0.1, 0.1, 1, 2, 1, 0.7]


def test_a_crowd_of_four_goes_its_lanes(visit: Visit, server: Served) -> None:
    visit.page.fill("#text", "Four people say this at once, in four lanes.")
    visit.find("#crowd-size").fill("4")
    visit.page.click("#crowd-start")
    lanes = visit.find(".lane")
    expect(lanes).to_have_count(4)
    visit.until(".lane:is([data-state=speaking], [data-state=underrun])")
    before = visit.picture(".lane canvas")
    eventually(lambda: visit.picture(".lane canvas") != before)
    expect(visit.find(".lane[aria-pressed=true] .number")).to_have_text("1")
    lanes.nth(2).click()
    expect(visit.find(".lane[aria-pressed=true] .number")).to_have_text("3")
    visit.until("#crowd-stop:disabled")
    states = [lane.get_attribute("data-state") for lane in lanes.all()]
    assert set(states) <= {"finished", "underrun", "refused"}
    assert any(state != "refused" for state in states)
    expect(visit.find("#crowd-status")).to_contain_text("finished")
    assert visit.find("#crowd-told").inner_text() != ""
    eventually(lambda: server.under_way() == 0)


def test_a_crowd_that_does_not_fit_is_told_so_politely(browser: Browser) -> None:
    with held(allowed=8, places=2) as (engine, address), visiting(browser, address) as visit:
        visit.say("")
        expect(visit.find("#status")).to_contain_text("type something")
        visit.page.fill("#text", "One.")
        visit.find("#crowd-size").fill("4")
        visit.page.click("#crowd-start")
        visit.until(".lane[data-state=refused]")
        expect(visit.find(".lane[data-state=refused]")).to_have_count(2)
        expect(visit.find("#crowd-problem")).to_contain_text("The server is full just now")
        expect(visit.find("#crowd-problem")).to_contain_text("Try again in")
        engine.let_go()
        visit.until("#crowd-stop:disabled")
        expect(visit.find("#crowd-status")).to_contain_text("2 finished · 2 refused")


def test_a_crowd_can_be_stopped(browser: Browser) -> None:
    with held(allowed=5) as (engine, address), visiting(browser, address) as visit:
        visit.find("#crowd-size").fill("12")
        visit.page.click("#crowd-start")
        eventually(lambda: engine.streams >= 12)
        visit.page.click("#crowd-stop")
        expect(visit.find("#crowd-status")).to_have_text(re.compile("12 stopped"))
        eventually(lambda: engine.streams == 0)


def test_what_is_copied_runs(browser: Browser, server: Served, tmp_path: Path) -> None:
    with visiting(browser, server.url, permissions=CLIPBOARD) as visit:
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
    wanted = server.one_shot(text, 7, voice="michael")
    for command in (["sh", "-c", f"{copied['curl']} --fail --silent"], [sys.executable, "-c", copied["python"]]):
        (tmp_path / "speech.flac").unlink(missing_ok=True)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert len(read_audio(tmp_path / "speech.flac", 24_000)) == len(wanted)


@pytest.mark.parametrize("form", ["wav", "mp3"])
def test_what_was_heard_can_be_kept(visit: Visit, tmp_path: Path, form: str) -> None:
    visit.page.select_option("#format", form)
    visit.say("Keep this.")
    visit.until("#heard[data-state=finished]")
    with visit.page.expect_download(timeout=PATIENCE_MS) as waiting:
        visit.page.click("#download")
    waiting.value.save_as(tmp_path / f"kept.{form}")
    kept, heard = len(read_audio(tmp_path / f"kept.{form}", 24_000)), visit.played()
    assert kept == heard if form == "wav" else abs(kept - heard) < 3_000, "an mp3 has some silence around it"


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_has_both_colours(
    browser: Browser, server: Served, tmp_path: Path, size: dict[str, int], scheme: str
) -> None:
    with visiting(browser, server.url, viewport=size, color_scheme=scheme, reduced_motion="reduce") as visit:
        visit.say("Short.")
        visit.until("#heard[data-state=finished]")
        visit.page.click("#crowd-start")
        visit.until("#crowd-stop:disabled")
        assert visit.page.evaluate("document.documentElement.scrollWidth") == size["width"]
        ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(value) for value in re.findall(r"\d+", ground)[:3]) / 3
        assert brightness > 200 if scheme == "light" else brightness < 40
        visit.page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)


def test_everything_has_a_name_and_can_be_reached_by_keyboard(visit: Visit) -> None:
    unnamed = """() => [...document.querySelectorAll("button, input, select, textarea")].filter((control) =>
        !control.labels?.length && !control.ariaLabel && !control.textContent.trim()).map((control) => control.id)"""
    assert visit.page.evaluate(unnamed) == []
    reached = set()
    visit.find("#text").focus()
    for _ in range(30):
        visit.page.keyboard.press("Tab")
        reached.add(visit.page.evaluate("document.activeElement.id"))
    assert {"speed", "seed", "format", "speak", "copy-curl", "copy-python", "crowd-size", "crowd-start"} <= reached


def test_a_voice_is_recorded_kept_and_heard(browser: Browser, cloning: Served) -> None:
    with visiting(browser, cloning.url, permissions=["microphone"]) as visit:
        expect(visit.find("#no-voices")).to_be_visible()
        visit.page.click("#speak")
        expect(visit.find("#status")).to_contain_text("record or upload")
        visit.page.click("#new-voice")
        visit.page.fill("#voice-name", "beeper")
        visit.page.check("#consent")
        visit.page.click("#voice-save")
        expect(visit.find("#voice-problem")).to_contain_text("Record something")
        visit.page.click("#record")
        expect(visit.find("#recorded")).to_contain_text("3 s of", timeout=PATIENCE_MS)
        visit.page.click("#record")
        expect(visit.find("#recorded")).to_contain_text("recorded")
        visit.page.click("#voice-save")
        expect(visit.find("#voice-dialog")).not_to_be_visible(timeout=PATIENCE_MS)
        expect(visit.page.get_by_role("radio", name="beeper")).to_be_checked()
        visit.say("So this is how I sound.")
        visit.until("#heard[data-state=finished]")
        assert visit.played() > 0
    with cloning.client() as client:
        kept = client.get("/v1/audio/voices/beeper").json()
        assert "agreed" in kept["consent"]
        client.delete("/v1/audio/voices/beeper")


def test_a_file_that_is_no_recording_is_refused_in_words(browser: Browser, cloning: Served, tmp_path: Path) -> None:
    (tmp_path / "nothing.wav").write_bytes(b"nothing" * 1000)
    with visiting(browser, cloning.url) as visit:
        visit.page.click("#new-voice")
        visit.page.set_input_files("#recording", tmp_path / "nothing.wav")
        visit.page.fill("#voice-name", "nobody")
        visit.page.click("#voice-save")
        expect(visit.find("#voice-problem")).to_be_hidden()  # without consent nothing is sent
        visit.page.check("#consent")
        visit.page.click("#voice-save")
        expect(visit.find("#voice-problem")).to_be_visible(timeout=PATIENCE_MS)
        expect(visit.find("#voice-dialog")).to_be_visible()


def test_the_page_offers_what_the_checkpoint_can_do(browser: Browser) -> None:
    shown = {}
    for about in (CUSTOM, DESIGN):
        with held(about=about) as (_, address), visiting(browser, address) as visit:
            names = ("#voice-field", "#instructions-field", "#language-field", "#new-voice")
            shown[about.kind] = [name for name in names if visit.find(name).is_visible()]
    assert shown == {"custom_voice": ["#voice-field"], "voice_design": ["#instructions-field"]}


def test_a_key_is_asked_for_kept_and_never_shown(browser: Browser) -> None:
    key = "sesame/(50%25)"  # with what the name of a protocol cannot have
    settings = Settings(api_keys=[key])
    with (
        held(settings=settings) as (_, address),
        visiting(browser, address, ready="#key-form:not([hidden])", permissions=CLIPBOARD) as visit,
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
        visit.until("#heard[data-state=finished]")
        visit.page.click("#crowd-start")
        visit.until("#crowd-stop:disabled")
        expect(visit.find("#crowd-status")).to_contain_text("8 finished")
        visit.page.click("#copy-curl")
        copied = visit.page.evaluate("navigator.clipboard.readText()")
        assert "YOUR_API_KEY" in copied
        assert "sesame" not in copied


def test_a_proxy_may_put_a_path_before_the_page(browser: Browser) -> None:
    engine = HeldEngine()
    try:
        with serving(engine) as running:
            config = running.server.config
            config.loaded_app = _below("/some/path", config.loaded_app)
            with visiting(browser, f"{running.address}/some/path") as visit:
                visit.say("Hello.")
                visit.until("#heard[data-state=finished]")
                visit.page.click("#crowd-start")
                visit.until("#crowd-stop:disabled")
                expect(visit.find("#crowd-status")).to_contain_text("8 finished")
    finally:
        engine.close()


def _below(path: str, app: ASGIApp) -> ASGIApp:
    """What a proxy makes of a server: it is there below a path alone, and is not told of it."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["path"].startswith(f"{path}/"), scope["path"]
        shorter = scope["path"].removeprefix(path)
        await app({**scope, "path": shorter, "raw_path": shorter.encode()}, receive, send)

    return serve
