# SPDX-License-Identifier: Apache-2.0
"""The view for measurements in Chromium: latency, lead, underruns and the load test."""

import re

from playwright.sync_api import Browser, expect

from conformance.playground_page import STORY, TIMEOUT_MS, PlaygroundPage, open_page, paused_server
from conformance.server_process import ServerProcess
from ipc.engine_processes import eventually


def test_the_figures_of_an_utterance_are_shown(visit: PlaygroundPage) -> None:
    visit.page.fill("#text", STORY)
    visit.view("Measure")
    empty = visit.image("#chart")
    visit.page.click("#measure-start")
    visit.until("#player[data-playback=ended]")
    assert visit.image("#chart") != empty
    expect(visit.find("#measure-hint")).to_contain_text("The lighthouse")
    expect(visit.find("#ttfa")).to_have_text(re.compile(r"^\d+ ms$"))
    expect(visit.find("#rtf")).to_have_text(re.compile(r"^\d+\.\d\d$"))
    expect(visit.find("#underruns")).to_have_text(re.compile(r"^\d+$"))


def test_an_underrun_is_counted_and_marked(browser: Browser) -> None:
    with paused_server(max_chunks=5) as (engine, address), open_page(browser, address) as visit:
        visit.say("One. Two. Three. Four.")
        visit.view("Measure")
        expect(visit.find("#underruns")).to_have_text("1", timeout=TIMEOUT_MS)
        assert visit.find("#underruns").get_attribute("data-tone") == "warn"
        assert visit.played() == 5 * 480
        engine.resume()
        visit.until("#player[data-playback=ended]")
        assert int(visit.find("#underruns").inner_text()) >= 1
        assert visit.played() == int(visit.player()["received"]) >= 40 * 480


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
    visit.view("Measure")
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
        visit.page.fill("#text", "")
        visit.view("Measure")
        visit.page.click("#load-start")
        expect(visit.find("#load-problem")).to_contain_text("Write a text first.")
        visit.view("Speak")
        visit.page.fill("#text", "One.")
        visit.view("Measure")
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
        visit.view("Measure")
        visit.find("#load-size").fill("12")
        visit.page.click("#load-start")
        eventually(lambda: engine.streams >= 12)
        visit.page.click("#load-stop")
        expect(visit.find("#load-status")).to_have_text(re.compile("12 stopped"))
        eventually(lambda: engine.streams == 0)
