# SPDX-License-Identifier: Apache-2.0
"""The first view of the playground in Chromium: speaking, replay, word marks, live text, downloads and errors."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, WebSocketRoute, expect

from conformance.playground_page import (
    CLIPBOARD,
    STORY,
    TIMEOUT_MS,
    PlaygroundPage,
    open_page,
    paused_server,
)
from conformance.server_process import ServerProcess
from ipc.engine_processes import eventually
from polyvox.audio import read_audio


def test_an_utterance_is_played_while_it_is_generated(visit: PlaygroundPage) -> None:
    empty = visit.image("#waveform")
    visit.say(STORY)
    visit.until("#player[data-request=streaming]")
    eventually(lambda: visit.played() > 0)
    early = visit.player()
    assert early["request"] == "streaming", "playback starts before all of it was received"
    assert visit.image("#waveform") != empty
    visit.until("#player[data-playback=ended]")
    late = visit.player()
    assert int(late["played"]) == int(late["received"]) > max(24_000, int(early["played"]))
    assert float(late["peak"]) > 0.05, "the audio is silent"
    expect(visit.find("#status")).to_contain_text("seed")


WORDS = {0.0: "Hi", 0.5: "there,", 1.0: "again."}  # by their start
RECORD_MARKS = """() => {
  window.marked = [];
  const layer = document.getElementById("text-highlight");
  new MutationObserver(() => {
    const text = layer.querySelector("mark").textContent;
    if (text && text !== window.marked.at(-1)) window.marked.push(text);
  }).observe(layer, { childList: true, characterData: true, subtree: true });
}"""


def answer_with(page: Page, times: list[dict[str, Any]]) -> None:
    """Answers utterances with these messages and two seconds of silence, in place of the server."""

    def answer(socket: WebSocketRoute) -> None:
        def on_message(message: str | bytes) -> None:
            if json.loads(message)["type"] != "input.done":
                return
            socket.send(json.dumps({"type": "audio.start", "utterance_index": 0}))
            for each in times:
                socket.send(json.dumps({"utterance_index": 0, **each}))
            socket.send(bytes(2 * 2 * 24_000))
            socket.send(json.dumps({"type": "session.done", "utterance_index": 0, "seed": 1}))

        socket.on_message(on_message)

    page.route_web_socket("**/v1/audio/speech/stream", answer)


def timed(start: float, text_start: int, text_end: int) -> dict[str, float]:
    return {"start": start, "end": start + 0.1, "text_start": text_start, "text_end": text_end}


def test_each_word_is_marked_while_it_is_played(browser: Browser) -> None:
    text = "Hi 😀 there, again."  # an emoji is one code point, but two units of a string in JavaScript
    words = [timed(start, text.index(word), text.index(word) + len(word)) for start, word in WORDS.items()]
    with paused_server() as (_, address), open_page(browser, address) as visit:
        answer_with(visit.page, [{"type": "audio.words", "words": words}])
        visit.page.evaluate(RECORD_MARKS)
        visit.say(text)
        visit.until("#player[data-playback=ended]")
        assert visit.page.evaluate("window.marked") == list(WORDS.values())
        assert visit.find("#text-highlight mark").inner_text() == "", "nothing is marked at the end"


def test_the_sentence_is_marked_where_words_have_no_times(browser: Browser) -> None:
    segments = [{"type": "audio.segment", "segment": timed(start, 5 * start, 5 * start + 4)} for start in (0, 1)]
    with paused_server() as (_, address), open_page(browser, address) as visit:
        answer_with(visit.page, segments)
        visit.page.evaluate(RECORD_MARKS)
        visit.say("One. Two.")
        visit.until("#player[data-playback=ended]")
        assert visit.page.evaluate("window.marked") == ["One.", "Two."]


def test_the_server_sends_the_times_of_all_words(visit: PlaygroundPage) -> None:
    visit.page.evaluate(RECORD_MARKS)
    visit.say("A light burned at the top again.")
    visit.until("#player[data-playback=ended]")
    marked = visit.page.evaluate("window.marked")
    assert marked == [word for word in ["A", "light", "burned", "at", "the", "top", "again."] if word in marked]
    assert len(marked) >= 5, "very short words may begin and end between two reports of the player"


def test_the_position_can_be_moved_and_marks_its_word(browser: Browser) -> None:
    with paused_server() as (_, address), open_page(browser, address) as visit:
        answer_with(visit.page, [{"type": "audio.words", "words": [timed(0, 0, 3), timed(1, 4, 7), timed(1.5, 8, 11)]}])
        visit.say("One two six.")
        visit.until("#player[data-playback=ended]")
        seek, mark = visit.find("#seek"), visit.find("#text-highlight mark")
        seek.focus()
        visit.page.keyboard.press("Home")
        assert visit.played() == 0
        expect(mark).to_have_text("One")
        visit.page.keyboard.press("ArrowRight")
        assert visit.played() == 24_000
        expect(mark).to_have_text("two")
        assert seek.get_attribute("aria-valuetext") == "0:01 of 0:02"
        visit.page.keyboard.press("PageUp")
        assert visit.played() == 48_000
        visit.page.keyboard.press("PageDown")
        box = seek.bounding_box()
        assert box is not None
        visit.page.mouse.click(box["x"] + 0.4 * box["width"], box["y"] + box["height"] / 2)  # the width is 4 s
        assert visit.played() == pytest.approx(1.6 * 24_000, rel=0.05)
        expect(mark).to_have_text("six")


def test_an_utterance_can_be_paused_and_replayed(browser: Browser) -> None:
    with paused_server() as (_, address), open_page(browser, address) as visit:
        answer_with(visit.page, [])
        visit.say("Hello.")
        eventually(lambda: visit.played() > 0)
        visit.page.get_by_role("button", name="Pause").click()
        at = visit.played()
        assert 0 < at < 48_000
        assert visit.player()["playback"] == "paused"
        visit.page.get_by_role("button", name="Play", exact=True).click()
        visit.until("#player[data-playback=ended]")
        assert visit.played() == 48_000
        visit.page.get_by_role("button", name="Replay").click()
        eventually(lambda: 0 < visit.played() < 48_000)
        visit.page.keyboard.press("Escape")


def test_an_edit_removes_the_mark(browser: Browser) -> None:
    with paused_server() as (_, address), open_page(browser, address) as visit:
        answer_with(visit.page, [{"type": "audio.words", "words": [timed(0, 0, 6)]}])
        visit.say("Hello.")
        expect(visit.find("#text-highlight mark")).to_have_text("Hello.")
        visit.find("#text").press_sequentially("!")
        expect(visit.find("#text-highlight mark")).to_be_empty()


def test_stop_silences_playback_and_frees_the_slot(visit: PlaygroundPage, server: ServerProcess) -> None:
    visit.page.fill("#text", STORY)
    visit.page.keyboard.press("Control+Enter")
    visit.until("#player[data-request=streaming]")
    visit.page.keyboard.press("Escape")
    visit.until("#player[data-request=stopped]")
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
        visit.until("#player[data-playback=ended]")
        assert visit.played() == int(visit.player()["received"]) == 10 * 480


def test_live_text_is_spoken_while_it_is_written(browser: Browser) -> None:
    with paused_server() as (engine, address), open_page(browser, address) as visit:
        visit.page.get_by_role("radio", name="Live").check()
        text = visit.find("#text")
        expect(text).to_be_empty()
        text.press_sequentially("This was typed. And")
        eventually(lambda: visit.played() > 0)  # a complete sentence does not wait for the next
        text.press_sequentially(" this has no end")
        visit.until("#player[data-request=waiting]")  # a pause ends the sentence
        spoken = int(visit.player()["received"])
        visit.page.keyboard.insert_text(" It was pasted.")  # as the clipboard does
        visit.until("#player[data-request=speaking]")
        visit.until("#player[data-request=waiting]")
        assert int(visit.player()["received"]) > spoken
        eventually(lambda: visit.played() == int(visit.player()["received"]))
        whole = "This was typed. And this has no end It was pasted."
        assert " ".join(request.text for request in engine.requests[1:]) == whole
        expect(text).to_have_value(whole)
        text.press("Home")
        text.press_sequentially("x")
        expect(text).to_have_value(whole)
        expect(visit.find("#problem")).to_contain_text("cannot be changed")
        text.fill("")
        text.press_sequentially("Anew. ")
        eventually(lambda: engine.requests[-1].text == "Anew.")


def test_live_text_continues_after_a_rejection(browser: Browser) -> None:
    with paused_server() as (engine, address), open_page(browser, address) as visit:
        visit.page.get_by_role("radio", name="Live").check()
        visit.find("#text").press_sequentially("One. ")
        visit.until("#player[data-request=waiting]")
        engine.max_streams = 0
        visit.find("#text").press_sequentially("Two. ")
        expect(visit.find("#problem")).to_contain_text("The server is at capacity")
        engine.max_streams = 1
        visit.find("#problem button:enabled").click()
        visit.until("#player[data-request=waiting]")
        assert [request.text for request in engine.requests[1:]] == ["One.", "Two."]


def test_an_example_is_written_as_a_language_model_writes(browser: Browser) -> None:
    with paused_server() as (_, address), open_page(browser, address) as visit:
        visit.page.get_by_role("radio", name="Live").check()
        visit.page.get_by_role("button", name="A greeting").click()
        eventually(lambda: visit.played() > 0)
        assert 0 < len(visit.find("#text").input_value()) < 60, "it is spoken before all of it was written"
        visit.page.keyboard.press("Escape")
        visit.until("#player[data-request=stopped]")
        assert len(visit.find("#text").input_value()) < 60


def test_a_server_that_hangs_is_timed_out_with_a_retry(browser: Browser) -> None:
    with paused_server() as (engine, address), open_page(browser, address, fake_clock=True) as visit:
        engine.resume(max_chunks=0)
        visit.say("Hello.")
        eventually(lambda: engine.streams == 1)
        visit.page.clock.run_for(5_000)
        expect(visit.find("#status")).to_have_text(re.compile(r"Waiting for the first audio … \d s"))
        visit.page.clock.run_for(30_000)
        expect(visit.find("#problem")).to_contain_text("The server did not respond for 30 s.")
        eventually(lambda: engine.streams == 0)
        engine.resume()
        visit.page.get_by_role("button", name="Retry").click()
        visit.until("#player[data-playback=ended]")
        expect(visit.find("#problem")).to_be_hidden()


def test_a_stream_that_stalls_keeps_what_was_received(browser: Browser) -> None:
    with paused_server(max_chunks=5) as (_, address), open_page(browser, address, fake_clock=True) as visit:
        visit.say("Hello.")
        eventually(lambda: visit.played() == 5 * 480)
        visit.page.clock.run_for(31_000)
        expect(visit.find("#problem")).to_contain_text("The audio is incomplete. The server did not respond")
        expect(visit.find("#play")).to_be_enabled()


def test_a_page_that_gets_no_answer_says_so_and_retries(browser: Browser) -> None:
    with paused_server() as (_, address):
        context = browser.new_context()
        page = context.new_page()
        page.clock.install()
        page.route("**/v1/playground", lambda _: None)  # never answered
        page.goto(f"{address}/")
        page.clock.run_for(11_000)
        expect(page.locator("#notice")).to_contain_text("The server did not respond for 10 s.")
        expect(page.get_by_role("button", name="Retry")).to_be_enabled()
        page.unroute("**/v1/playground")
        page.clock.run_for(2_000)
        expect(page.locator("#playground")).to_be_visible()
        context.close()


def test_retry_counts_down_to_the_time_that_the_server_names(browser: Browser) -> None:
    with paused_server() as (engine, address), open_page(browser, address, fake_clock=True) as visit:
        engine.max_streams = 0
        visit.say("Hello.")
        retry = visit.find("#problem button")
        expect(visit.find("#problem")).to_contain_text("The server is at capacity")
        expect(retry).to_have_text("Retry in 3 s")
        expect(retry).to_be_disabled()
        visit.page.clock.run_for(1_000)
        expect(retry).to_have_text("Retry in 2 s")
        visit.page.clock.run_for(2_000)
        expect(retry).to_have_text("Retry")
        engine.max_streams = 1
        retry.click()
        visit.until("#player[data-playback=ended]")


def test_an_empty_text_is_a_problem_of_the_form(visit: PlaygroundPage) -> None:
    visit.say("")
    expect(visit.find("#problem")).to_contain_text("Write a text first.")
    expect(visit.find("#problem button")).to_be_hidden()


@pytest.mark.parametrize("form", ["wav", "mp3"])
def test_an_utterance_can_be_downloaded(visit: PlaygroundPage, tmp_path: Path, form: str) -> None:
    visit.page.select_option("#format", form)
    visit.say("Keep this.")
    visit.until("#player[data-playback=ended]")
    with visit.page.expect_download(timeout=TIMEOUT_MS) as waiting:
        visit.page.click("#download")
    waiting.value.save_as(tmp_path / f"saved.{form}")
    saved, played = len(read_audio(tmp_path / f"saved.{form}", 24_000)), visit.played()
    assert saved == played if form == "wav" else abs(saved - played) < 3_000, "mp3 adds some silence"


def test_copied_commands_run(browser: Browser, server: ServerProcess, tmp_path: Path) -> None:
    with open_page(browser, server.url, permissions=CLIPBOARD) as visit:
        text = 'It\'s a "test" of $HOME & more.'
        visit.page.fill("#text", text)
        visit.page.fill("#seed", "7")
        visit.page.select_option("#format", "flac")
        visit.page.get_by_role("radio", name="michael").check()
        visit.page.get_by_text("Use this in your code").click()
        copied = {}
        for kind in ("curl", "python"):
            visit.page.click(f"#copy-{kind}")
            expect(visit.find(f"#copy-{kind}")).to_have_text("Copied")
            copied[kind] = visit.page.evaluate("navigator.clipboard.readText()")
        assert visit.find("#code").inner_text() == copied["curl"]
    expected = server.one_shot(text, 7, voice="michael")
    for command in (["sh", "-c", f"{copied['curl']} --fail --silent"], [sys.executable, "-c", copied["python"]]):
        (tmp_path / "speech.flac").unlink(missing_ok=True)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert len(read_audio(tmp_path / "speech.flac", 24_000)) == len(expected)


def test_a_copied_program_speaks_its_input_while_it_arrives(browser: Browser, tmp_path: Path) -> None:
    with paused_server() as (engine, address), open_page(browser, address, permissions=CLIPBOARD) as visit:
        visit.page.get_by_role("radio", name="Live").check()
        visit.page.get_by_text("Use this in your code").click()
        visit.page.click("#copy-python")
        expect(visit.find("#copy-python")).to_have_text("Copied")
        program = visit.page.evaluate("navigator.clipboard.readText()")
        command = [sys.executable, "-c", program]
        with subprocess.Popen(
            command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stdin is not None
            running.stdin.write("One sentence. And then ")
            running.stdin.flush()
            eventually(lambda: engine.requests[-1].text == "One sentence.")
            _, errors = running.communicate("another.", timeout=60)
        assert running.returncode == 0, errors
        assert engine.requests[-1].text == "And then another."
    assert len(read_audio(tmp_path / "speech.wav", 24_000)) >= 2 * 10 * 480
