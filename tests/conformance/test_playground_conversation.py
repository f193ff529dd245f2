# SPDX-License-Identifier: Apache-2.0
"""The conversation page in Chromium on a scripted connection: marks, interruption, reconnection, options, errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from conformance.playground_page import CLIPBOARD, TIMEOUT_MS, PlaygroundPage, open_page, paused_server
from conformance.scripted_realtime import ScriptedRealtime
from ipc.engine_processes import eventually
from polyvox.server.settings import Settings

NOWHERE = "http://127.0.0.1:9/v1"  # the connection is scripted: neither LLM nor STT are asked
RECORD_MARKS = """() => {
  window.marked = [];
  const list = document.getElementById("messages");
  new MutationObserver(() => {
    const text = [...list.querySelectorAll("mark")].map((mark) => mark.textContent).join("");
    if (text && text !== window.marked.at(-1)) window.marked.push(text);
  }).observe(list, { childList: true, characterData: true, subtree: true });
}"""


@contextmanager
def conversing(
    browser: Browser, script: ScriptedRealtime | None = None, stt: str | None = NOWHERE, **more: Any
) -> Iterator[tuple[PlaygroundPage, ScriptedRealtime]]:
    """The conversation page on a scripted connection."""
    script = script or ScriptedRealtime()
    settings = Settings(llm=NOWHERE, stt=stt)
    with paused_server(settings) as (_, address), open_page(browser, address, **more) as visit:
        script.install(visit.page)
        visit.view("Conversation")
        yield visit, script


def counting(completes: bool = True) -> ScriptedRealtime:
    """A long answer, with a pause in which it is interrupted."""
    words = ((0.0, "One"), (0.5, "two"), (1.0, "three"), (9.0, "four."))
    return ScriptedRealtime(words, seconds=10.0, completes=completes)


def send(visit: PlaygroundPage, text: str) -> None:
    visit.page.fill("#message", text)
    visit.page.keyboard.press("Enter")


def wait_for_sent(visit: PlaygroundPage, script: ScriptedRealtime, kind: str, count: int = 1) -> list[dict[str, Any]]:
    """The events of this type, once the page has sent this number of them."""
    eventually(lambda: len(script.sent(kind)) >= count or visit.page.wait_for_timeout(20))
    return script.sent(kind)


def answer(visit: PlaygroundPage, state: str) -> None:
    """Waits until the last answer has this state."""
    visit.until(f"#conversation[data-answer={state}]")


def test_without_an_llm_the_page_says_how_to_start_the_server(browser: Browser) -> None:
    with paused_server() as (_, address), open_page(browser, address) as visit:
        visit.view("Conversation")
        expect(visit.find("#no-llm")).to_contain_text("polyvox serve --llm")
        expect(visit.find("#message")).to_be_hidden()


def test_each_word_of_an_answer_is_marked_while_it_is_played(browser: Browser) -> None:
    with conversing(browser) as (visit, script):
        visit.page.evaluate(RECORD_MARKS)
        send(visit, "Say hello.")
        answer(visit, "complete")
        assert visit.page.evaluate("window.marked") == [word for _, word in script.words]
        expect(visit.find(".message[data-role=assistant] mark")).to_have_text("")
        expect(visit.find(".message[data-role=user]")).to_contain_text("Say hello.")
        expect(visit.find("#conversation-announcement")).to_have_text("Assistant: Hi there, again.")
        details = visit.find(".message[data-role=assistant] .message-details").inner_text().replace("\u00a0", " ")
        assert re.fullmatch(r"first text \d+\.\d\d s · first audio \d+\.\d\d s", details)


@pytest.mark.parametrize("completes", [True, False], ids=["all received", "while it is generated"])
@pytest.mark.parametrize("by", ["the Escape key", "the button", "a message"])
def test_an_answer_is_interrupted_by(browser: Browser, by: str, completes: bool) -> None:
    with conversing(browser, counting(completes)) as (visit, script):
        send(visit, "Count.")
        expect(visit.find(".message mark[data-kind=word]")).to_have_text("three", timeout=TIMEOUT_MS)
        if by == "a message":
            send(visit, "Enough!")
        elif by == "the button":
            visit.page.click("#interrupt")
        else:
            visit.page.keyboard.press("Escape")
        first = visit.find(".message[data-role=assistant]").first
        expect(first).to_have_attribute("data-state", "interrupted")
        expect(first.locator(".message-details")).to_contain_text("interrupted")
        expect(first.locator("mark[data-kind=unplayed]")).to_have_text("four.")
        (cut,) = wait_for_sent(visit, script, "conversation.item.truncate")
        assert cut["item_id"] == "item_1"
        assert 1000 <= cut["audio_end_ms"] < 9000
        assert len(script.sent("response.cancel")) == (0 if completes else 1)
        if by != "a message":
            expect(visit.find("#interrupt")).to_be_disabled()
            send(visit, "Again.")
        wait_for_sent(visit, script, "response.create", 2)
        expect(visit.find(".message[data-role=assistant]")).to_have_count(2)


def test_a_lost_connection_is_restored_with_the_conversation(browser: Browser) -> None:
    with conversing(browser, counting(completes=False)) as (visit, script):
        send(visit, "Count.")
        answer(visit, "speaking")
        script.sockets[-1].close()
        expect(visit.find("#conversation-problem")).to_contain_text("is restored", timeout=TIMEOUT_MS)
        expect(visit.find(".message[data-role=assistant]")).to_contain_text("The connection was lost.")
        assert len(script.sockets) == 2
        assert script.messages() == [("user", "Count."), ("user", "Count.")]
        visit.page.get_by_role("button", name="Retry").click()
        wait_for_sent(visit, script, "response.create", 2)
        expect(visit.find("#conversation-problem")).to_be_hidden()


def test_a_server_that_cannot_be_reached_again_is_reported(browser: Browser) -> None:
    with conversing(browser, counting(completes=False), fake_clock=True) as (visit, script):
        send(visit, "Count.")
        answer(visit, "speaking")
        visit.page.evaluate("void (window.WebSocket = class { constructor() { throw new Error('refused') } })")
        script.sockets[-1].close()
        expect(visit.find("#conversation-status")).to_contain_text("Reconnecting")
        visit.page.clock.run_for(60_000)
        expect(visit.find("#conversation-problem")).to_contain_text("Refused.")
        expect(visit.page.get_by_role("button", name="Retry")).to_be_enabled()


def test_a_server_that_closes_every_connection_is_not_asked_forever(browser: Browser) -> None:
    with conversing(browser, counting(completes=False)) as (visit, script):
        visit.page.get_by_role("radio", name="Hands-free").check()
        visit.page.click("#talk")
        visit.until("#conversation[data-status=open]")
        script.refuses = True
        script.sockets[-1].close(code=1008, reason="No sessions left.")
        expect(visit.find("#conversation-problem")).to_contain_text("No sessions left.", timeout=TIMEOUT_MS)
        visit.until("#conversation[data-status=closed]")
        expect(visit.find("#talk")).to_have_attribute("data-state", "off")
        script.refuses = False
        visit.page.click("#talk")
        visit.until("#conversation[data-status=open]")
        assert len(script.sockets) == 3


def test_an_idle_connection_that_ended_is_opened_by_the_next_message(browser: Browser) -> None:
    with conversing(browser, ScriptedRealtime(seconds=0.2)) as (visit, script):
        send(visit, "One.")
        answer(visit, "complete")
        script.send("error", error={"type": "invalid_request_error", "code": "session_expired", "message": "Expired."})
        script.sockets[-1].close()
        visit.until("#conversation[data-status=closed]")
        expect(visit.find("#conversation-problem")).to_be_hidden()
        send(visit, "Two.")
        wait_for_sent(visit, script, "response.create", 2)
        restored = [("user", "One."), ("assistant", "Hi there, again."), ("user", "Two.")]
        assert script.messages() == [("user", "One."), *restored]


def test_a_failed_answer_is_explained_and_can_be_requested_again(browser: Browser) -> None:
    with conversing(browser, ScriptedRealtime(completes=False)) as (visit, script):
        send(visit, "Hello.")
        answer(visit, "speaking")
        script.finish("failed", error={"code": "llm_failed", "message": "The LLM ended without a finish reason."})
        expect(visit.find("#conversation-problem")).to_contain_text("The LLM ended without a finish reason.")
        expect(visit.find(".message[data-state=failed]")).to_contain_text("The answer failed.")
        visit.page.get_by_role("button", name="Retry").click()
        wait_for_sent(visit, script, "response.create", 2)
        script.send("error", error={"type": "server_error", "code": "overloaded", "message": "All slots are in use."})
        expect(visit.find("#conversation-problem")).to_contain_text("All slots are in use.")


def test_options_change_the_session_and_a_new_voice_opens_another_one(browser: Browser) -> None:
    with conversing(browser, ScriptedRealtime(seconds=0.2)) as (visit, script):
        visit.page.fill("#system-prompt", "Answer in rhymes.")
        send(visit, "One.")
        answer(visit, "complete")
        session = script.sent("session.update")[0]["session"]
        assert session["instructions"] == "Answer in rhymes."
        assert session["audio"]["output"]["voice"] == "heart"
        assert session["audio"]["input"]["turn_detection"] is None
        visit.page.fill("#conversation-speed", "1.5")
        assert wait_for_sent(visit, script, "session.update", 2)[1]["session"]["audio"]["output"]["speed"] == 1.5
        assert len(script.sockets) == 1
        visit.page.select_option("#conversation-voice", "michael")
        send(visit, "Two.")
        wait_for_sent(visit, script, "response.create", 2)
        assert len(script.sockets) == 2
        assert script.sent("session.update")[-1]["session"]["audio"]["output"]["voice"] == "michael"
        assert script.messages()[1:] == [("user", "One."), ("assistant", "Hi there, again."), ("user", "Two.")]


def test_a_conversation_is_copied_and_cleared(browser: Browser) -> None:
    with conversing(browser, ScriptedRealtime(seconds=0.2), permissions=CLIPBOARD) as (visit, script):
        expect(visit.find("#copy-conversation")).to_be_disabled()
        send(visit, "One.")
        answer(visit, "complete")
        visit.page.click("#copy-conversation")
        expect(visit.find("#copy-conversation")).to_have_text("Copied")
        assert visit.page.evaluate("navigator.clipboard.readText()") == "You: One.\n\nAssistant: Hi there, again.\n"
        visit.page.click("#clear-conversation")
        expect(visit.find(".message")).to_have_count(0)
        expect(visit.find("#no-messages")).to_be_visible()
        send(visit, "Two.")
        wait_for_sent(visit, script, "response.create", 2)
        assert script.messages() == [("user", "One."), ("user", "Two.")]


def test_leaving_the_page_silences_it(browser: Browser) -> None:
    with conversing(browser, counting()) as (visit, _):
        send(visit, "Count.")
        answer(visit, "speaking")
        visit.view("Speak")
        answer(visit, "interrupted")
        visit.until("#conversation[data-status=closed]")
        visit.view("Conversation")
        expect(visit.find(".message[data-role=assistant]")).to_have_count(1)


def test_without_transcription_the_microphone_says_why(browser: Browser) -> None:
    with conversing(browser, stt=None) as (visit, _):
        expect(visit.find("#talk")).to_be_disabled()
        expect(visit.find("#talk-hint")).to_contain_text("Start it with --stt")
        send(visit, "Typing works.")
        answer(visit, "complete")


REJECT = "void (navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('no', '{}')))"
MICROPHONES = {
    "denied": (REJECT.format("NotAllowedError"), "Allow it in the browser's settings of this page, or type"),
    "absent": (REJECT.format("NotFoundError"), "No microphone was found. Connect one, or type your message."),
    "in use": (REJECT.format("NotReadableError"), "in use by another program"),
    "insecure": ("Object.defineProperty(navigator, 'mediaDevices', { value: undefined })", "on https or localhost"),
}


@pytest.mark.parametrize("mode", ["Push to talk", "Hands-free"])
@pytest.mark.parametrize("problem", MICROPHONES)
def test_a_microphone_that_cannot_be_used_says_what_to_do(browser: Browser, problem: str, mode: str) -> None:
    script, message = MICROPHONES[problem]
    with conversing(browser) as (visit, realtime):
        visit.page.evaluate(script)
        visit.page.get_by_role("radio", name=mode).check()
        visit.page.click("#talk")
        expect(visit.find("#conversation-problem")).to_contain_text(message)
        expect(visit.find("#talk")).to_have_attribute("data-state", "off")
        assert realtime.sockets == [], "nothing is sent without a microphone"


def test_the_space_bar_talks_unless_a_field_has_the_focus(browser: Browser) -> None:
    with conversing(browser) as (visit, script):
        visit.page.focus("#message")
        visit.page.keyboard.down(" ")
        expect(visit.find("#talk")).to_have_attribute("data-state", "off")
        visit.page.keyboard.up(" ")
        visit.page.evaluate("document.activeElement.blur()")
        visit.page.keyboard.down(" ")
        expect(visit.find("#talk")).to_have_attribute("data-state", "on", timeout=TIMEOUT_MS)
        expect(visit.find("#conversation-status")).to_have_text("Listening …")
        wait_for_sent(visit, script, "input_audio_buffer.append", 20)
        visit.page.keyboard.up(" ")
        wait_for_sent(visit, script, "response.create")
        kinds = [event["type"] for event in script.events if event["type"].startswith(("input", "response"))]
        appended = ["input_audio_buffer.append"] * len(script.sent("input_audio_buffer.append"))
        expected = ["input_audio_buffer.clear", *appended, "input_audio_buffer.commit", "response.create"]
        assert kinds == expected
        script.send("input_audio_buffer.committed", item_id="spoken")
        expect(visit.find(".message[data-role=user]")).to_contain_text("Transcribing")
        failed = {"item_id": "spoken", "error": {"message": "The STT cannot be reached."}}
        script.send("conversation.item.input_audio_transcription.failed", **failed)
        expect(visit.find(".message[data-role=user]")).to_contain_text("Not understood.")
        expect(visit.find("#conversation-problem")).to_contain_text("The STT cannot be reached.")


def test_a_short_press_sends_nothing_and_says_to_hold(browser: Browser) -> None:
    with conversing(browser) as (visit, script):
        visit.page.click("#talk", delay=2000)  # opens the microphone
        wait_for_sent(visit, script, "response.create")
        before = len(script.sent("input_audio_buffer.commit"))
        visit.page.click("#talk")
        expect(visit.find("#conversation-problem")).to_contain_text("Hold the button")
        assert len(script.sent("input_audio_buffer.commit")) == before
