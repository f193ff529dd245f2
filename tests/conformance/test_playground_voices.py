# SPDX-License-Identifier: Apache-2.0
"""Voices in the playground: samples, recording, upload and deletion, in Chromium with its fake microphone."""

import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from conformance.playground_page import TIMEOUT_MS, PlaygroundPage, open_page, paused_server
from conformance.server_process import ServerProcess
from ipc.engine_processes import eventually
from ipc.fake_engine import ABOUT
from server.fakes import CUSTOM, DESIGN


def test_each_voice_has_a_sample(visit: PlaygroundPage, server: ServerProcess) -> None:
    sample = visit.page.get_by_role("button", name="Play a sample of michael")
    before = len(server.finished_requests())
    sample.click()
    visit.until(".sample[data-state=playing]")
    sample.click()
    expect(visit.find(".sample[data-state=playing]")).to_have_count(0)
    sample.click()
    visit.until(".sample[data-state=playing]")
    assert len(server.finished_requests()) == before + 1, "a sample is synthesised once"
    visit.say("A new utterance ends it.")
    expect(visit.find(".sample[data-state=playing]")).to_have_count(0)
    visit.page.keyboard.press("Escape")


def test_a_sample_of_a_busy_server_says_when_to_try_again(browser: Browser) -> None:
    with paused_server() as (engine, address), open_page(browser, address) as visit:
        engine.max_streams = 0
        visit.page.get_by_role("button", name="Play a sample of heart").click()
        expect(visit.find("#voice-status")).to_contain_text("Try again in 3 s.")


def test_a_voice_is_recorded_saved_used_and_deleted(browser: Browser, cloning: ServerProcess) -> None:
    with open_page(browser, cloning.url, permissions=["microphone"]) as visit:
        expect(visit.find("#no-voices")).to_be_visible()
        visit.page.click("#speak")
        expect(visit.find("#problem")).to_contain_text("Add a voice first")
        visit.page.click("#new-voice")
        visit.page.fill("#voice-name", "beeper")
        visit.page.check("#consent")
        visit.page.click("#voice-save")
        expect(visit.find("#voice-problem")).to_contain_text("Record a voice")
        visit.page.click("#record")
        expect(visit.find("#record-time")).to_have_text(re.compile(r"Starts in \d"))
        eventually(lambda: bool(visit.page.evaluate("document.querySelector('#level').ariaValueNow > 1")))
        expect(visit.find("#record-time")).to_have_text(re.compile(r"^(2[0-7]|1?\d) s left"), timeout=TIMEOUT_MS)
        visit.page.click("#record")
        expect(visit.find("#recorded")).to_contain_text("recorded")
        expect(visit.find("#transcript")).not_to_be_empty()  # the passage
        visit.page.fill("#transcript", "")
        visit.page.click("#voice-save")
        expect(visit.find("#voice-dialog")).not_to_be_visible(timeout=TIMEOUT_MS)
        expect(visit.page.get_by_role("radio", name="beeper")).to_be_checked()
        visit.say("So this is how I sound.")
        visit.until("#player[data-playback=ended]")
        assert visit.played() > 0
        with cloning.client() as client:
            assert "agreed" in client.get("/v1/audio/voices/beeper").json()["consent"]
        visit.page.once("dialog", lambda dialog: dialog.accept())
        visit.page.get_by_role("button", name="Delete the voice beeper").click()
        expect(visit.find("#no-voices")).to_be_visible()
    with cloning.client() as client:
        assert client.get("/v1/audio/voices/beeper").status_code == 404


def test_a_denied_microphone_says_what_to_do(browser: Browser) -> None:
    refuse = """() => {
        navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("no", "NotAllowedError"));
    }"""
    with paused_server(info=ABOUT) as (_, address), open_page(browser, address) as visit:
        visit.page.evaluate(refuse)
        visit.page.click("#new-voice")
        visit.page.click("#record")
        expect(visit.find("#voice-problem")).to_contain_text("Allow it in the browser's settings")
        expect(visit.find("#record")).to_have_text("Record")
        visit.page.keyboard.press("Escape")
        expect(visit.find("#voice-dialog")).to_be_hidden()


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
