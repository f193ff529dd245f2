# SPDX-License-Identifier: Apache-2.0
"""Conversations in Chromium with the embedded voice, a scripted LLM and STT, and a recording as the microphone."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from conformance.playground_page import ARGUMENTS, CHROMIUM, TIMEOUT_MS, PlaygroundPage, open_page
from conformance.server_process import ServerProcess, run_server
from ipc.engine_processes import eventually
from polyvox.audio import Audio
from server.scripted_llm import Script, ScriptedLLM, split_tokens
from server.scripted_server import Action
from server.scripted_stt import ScriptedSTT, TranscriptScript

SAMPLE_RATE = 24_000
SPOKEN = "What can you see from the top of the lighthouse?"
SHORT = "I can see the harbour and three small boats."
LONG = " ".join(["I can see the harbour, three small boats, and the hills behind the village."] * 6)
FIRST, LAST = ".message[data-role=assistant] >> nth=0", ".message[data-role=assistant] >> nth=-1"


@pytest.fixture(scope="module")
def talking(
    shared_llm: ScriptedLLM, shared_stt: ScriptedSTT, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server on the embedded voice with an LLM and an STT."""
    llm, stt = ("--llm", shared_llm.url), ("--stt", shared_stt.url)
    arguments = (*llm, "--llm-model", "scripted-1", *stt, "--stt-model", "scripted-1")
    with run_server(tmp_path_factory.mktemp("voices"), *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def speaking(talking: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser whose microphone repeats a spoken question after ten seconds of silence."""
    question = talking.one_shot(SPOKEN, seed=1, voice="michael")
    silence = np.zeros(SAMPLE_RATE, np.float32)
    file = tmp_path_factory.mktemp("microphone") / "question.wav"
    Audio(np.concatenate([silence, question, *[silence] * 9]), SAMPLE_RATE, 1, "stop").save(file)
    with sync_playwright() as playwright:
        arguments = [*ARGUMENTS, f"--use-file-for-fake-audio-capture={file}"]
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield running
        running.close()


@pytest.fixture
def visit(speaking: Browser, talking: ServerProcess, llm: ScriptedLLM, stt: ScriptedSTT) -> Iterator[PlaygroundPage]:
    """The conversation page. The LLM gives a short answer, the STT the spoken question."""
    llm.script = Script(split_tokens(SHORT))
    stt.script = TranscriptScript([SPOKEN])
    with open_page(speaking, talking.url) as visit:
        visit.view("Conversation")
        yield visit


def send(visit: PlaygroundPage, text: str) -> None:
    visit.page.fill("#message", text)
    visit.page.keyboard.press("Enter")


def messages(llm: ScriptedLLM) -> list[dict[str, Any]]:
    """The messages of the LLM's last request after the system prompt."""
    return [message for message in llm.requests[-1]["messages"] if message["role"] != "system"]


def wait_for_answer(visit: PlaygroundPage, state: str = "complete") -> None:
    visit.until(f"#conversation[data-answer={state}]")


def test_a_typed_message_is_answered_aloud(visit: PlaygroundPage, llm: ScriptedLLM) -> None:
    send(visit, "What can you see?")
    wait_for_answer(visit, "speaking")
    expect(visit.find(f"{FIRST} >> mark[data-kind=word]")).to_have_text("boats.", timeout=TIMEOUT_MS)
    wait_for_answer(visit)
    assert float(visit.find("#conversation").get_attribute("data-peak") or 0) > 0.05, "the audio is silent"
    expect(visit.find(f"{FIRST} >> .message-text")).to_have_text(SHORT)
    expect(visit.find(f"{FIRST} >> .message-details")).to_contain_text("first audio")
    send(visit, "And now?")
    eventually(lambda: len(llm.requests) == 2 or visit.page.wait_for_timeout(20))
    assert llm.requests[-1]["messages"][0]["role"] == "system"
    assert [(message["role"], message["content"]) for message in messages(llm)] == [
        ("user", "What can you see?"),
        ("assistant", SHORT),
        ("user", "And now?"),
    ]
    wait_for_answer(visit)


def test_the_llm_remembers_only_what_was_played(visit: PlaygroundPage, llm: ScriptedLLM) -> None:
    llm.script = Script(split_tokens(LONG))
    send(visit, "What can you see?")
    expect(visit.find(f"{FIRST} >> mark[data-kind=word]")).to_have_text("boats,", timeout=TIMEOUT_MS)
    visit.page.keyboard.press("Escape")
    wait_for_answer(visit, "interrupted")
    expect(visit.find(f"{FIRST} >> mark[data-kind=unplayed]")).to_contain_text("village.", timeout=TIMEOUT_MS)
    unplayed = visit.find(f"{FIRST} >> mark[data-kind=unplayed]").inner_text()
    llm.script = Script(split_tokens(SHORT))
    send(visit, "And now?")
    eventually(lambda: len(llm.requests) == 2 or visit.page.wait_for_timeout(20))
    played = messages(llm)[1]["content"]
    assert played.startswith("I can see the harbour, three small")
    assert LONG.startswith(f"{played} {unplayed}"), "the page shows the cut that the LLM knows"
    wait_for_answer(visit)


def test_a_question_is_spoken_while_the_button_is_pressed(
    visit: PlaygroundPage, llm: ScriptedLLM, stt: ScriptedSTT
) -> None:
    before = len(stt.requests)
    visit.find("#talk").hover()
    visit.page.mouse.down()
    expect(visit.find("#talk")).to_have_attribute("data-state", "on", timeout=TIMEOUT_MS)
    eventually(lambda: level(visit) > 5 or visit.page.wait_for_timeout(20))
    visit.page.wait_for_timeout(1500)
    visit.page.mouse.up()
    expect(visit.find(".message[data-role=user]")).to_contain_text(SPOKEN, timeout=TIMEOUT_MS)
    wait_for_answer(visit)
    assert level(visit) == 0
    assert len(stt.requests) == before + 1
    assert messages(llm) == [{"role": "user", "content": SPOKEN}]


def level(visit: PlaygroundPage) -> int:
    return int(visit.find("#talk-level").get_attribute("aria-valuenow") or 0)


def test_a_question_is_spoken_hands_free_and_the_next_one_interrupts_the_answer(
    visit: PlaygroundPage, llm: ScriptedLLM
) -> None:
    llm.script = Script(split_tokens(LONG))
    visit.page.get_by_role("radio", name="Hands-free").check()
    visit.page.get_by_role("button", name="Start listening").click()
    expect(visit.find(".message[data-role=user]").first).to_contain_text(SPOKEN, timeout=TIMEOUT_MS)
    wait_for_answer(visit, "speaking")
    interrupted = visit.find(".message[data-role=assistant][data-state=interrupted] .message-details").first
    expect(interrupted).to_contain_text(re.compile(r"interrupted\safter\s[1-9]"), timeout=TIMEOUT_MS)
    visit.page.get_by_role("button", name="Stop listening").click()
    expect(visit.find("#talk")).to_have_attribute("data-state", "off")
    visit.page.keyboard.press("Escape")


def test_an_error_of_the_llm_is_a_sentence(visit: PlaygroundPage, llm: ScriptedLLM) -> None:
    llm.script = Script(["Let me", " see", Action.DISCONNECT])
    send(visit, "What can you see?")
    expect(visit.find("#conversation-problem p")).to_have_text(re.compile("LLM.*[.]$"), timeout=TIMEOUT_MS)
    llm.script = Script(split_tokens(SHORT))
    visit.page.get_by_role("button", name="Retry").click()
    wait_for_answer(visit)
    expect(visit.find(f"{LAST} >> .message-text")).to_have_text(SHORT)
    expect(visit.find("#conversation-problem")).to_be_hidden()


def test_an_error_of_the_stt_is_a_sentence(visit: PlaygroundPage, stt: ScriptedSTT) -> None:
    stt.script = TranscriptScript([SPOKEN], status=500)
    visit.page.click("#talk", delay=2000)
    expect(visit.find("#conversation-problem p")).to_have_text(re.compile("STT.*[.]$"), timeout=TIMEOUT_MS)
    expect(visit.find(".message[data-role=user]")).to_contain_text("Not understood.")
    stt.script = TranscriptScript([SPOKEN])
    visit.page.click("#talk", delay=2000)
    wait_for_answer(visit)
    expect(visit.find(f"{LAST} >> .message-text")).to_have_text(SHORT)
