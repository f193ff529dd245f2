// The load test: several streams at once, one of them audible, the others played by simulated players.

import { StreamRow } from "./stream_row.js";

const DRAW_MS = 66;
const MAX_PROBLEMS = 2; // shown: many streams have the same one
const MAX_TEXT = 1000; // characters: every stream buffers its audio until it is played
const STATES = ["streaming", "underrun", "queued", "finished", "rejected", "failed", "stopped"];

export class LoadTest {
  rows = [];
  #player;
  #sampleRate;
  #audible = null; // the row that is played
  #selected = null; // the row that is to be played
  #utterance = 0; // its number in the player
  #list;

  constructor(list, player, sampleRate) {
    this.#list = list;
    this.#player = player;
    this.#sampleRate = sampleRate;
  }

  get done() {
    return this.rows.every((row) => row.done);
  }

  // Starts all streams and settles when the last one has ended. onChange gets {text, problem}.
  async run(bodies, onChange) {
    let began = performance.now();
    const clock = () => (performance.now() - began) / 1000;
    const rowOf = (body, i) => new StreamRow(i + 1, { ...body, input: truncated(body.input) }, this.#sampleRate, clock);
    this.rows = bodies.map(rowOf);
    for (const row of this.rows) {
      row.button.addEventListener("click", () => this.done || this.play(row));
      row.onSamples = (samples) => row === this.#audible && this.#player.push(this.#utterance, samples);
      row.onEnd = () => row === this.#audible && this.#player.end(this.#utterance);
    }
    this.#list.replaceChildren(...this.rows.map((row) => row.item));
    await Promise.allSettled([this.play(this.rows[0]), ...this.rows.map((row) => row.opened())]);
    began = performance.now(); // all sockets are open: now all requests go out at once
    const drawing = setInterval(() => this.draw(onChange), DRAW_MS);
    try {
      await Promise.all(this.rows.map((row) => row.run()));
    } finally {
      clearInterval(drawing);
      this.draw(onChange);
    }
  }

  async play(row) {
    for (const other of this.rows) other.button.setAttribute("aria-pressed", String(other === row));
    this.#audible = null; // nothing is pushed while the player switches
    this.#selected = row;
    const utterance = await this.#player.begin(this.#sampleRate, () => {});
    if (row !== this.#selected || row.state === "stopped") return;
    this.#utterance = utterance;
    this.#audible = row;
    for (const samples of row.buffered()) this.#player.push(utterance, samples);
    if (row.player.ended) this.#player.end(utterance);
  }

  stop() {
    for (const row of this.rows) row.stop();
    this.#player.stop(this.#utterance);
  }

  draw(onChange) {
    const seconds = Math.max(...this.rows.map((row) => row.seconds));
    const maxLead = Math.max(0.5, ...this.rows.map((row) => row.series.max));
    for (const row of this.rows) row.draw(seconds, maxLead);
    onChange(this.#summary());
  }

  #summary() {
    const count = (state) => this.rows.filter((row) => row.state === state).length;
    const firsts = this.rows.map((row) => row.firstAudio).filter((value) => value !== null);
    firsts.sort((a, b) => a - b);
    const underruns = this.rows.reduce((sum, row) => sum + row.player.underruns, 0);
    const parts = STATES.filter((state) => count(state)).map((state) => `${count(state)} ${label(state)}`);
    if (firsts.length) {
      const [median, max] = [firsts[Math.floor((firsts.length - 1) / 2)], firsts.at(-1)].map((s) => Math.round(s * 1000));
      parts.push(`TTFA p50 ${median} ms, max ${max} ms`);
      parts.push(`${underruns} ${underruns === 1 ? "underrun" : "underruns"}`);
    }
    const problems = new Set(this.rows.map((row) => row.problem).filter((problem) => problem !== null));
    const retries = this.rows.map((row) => row.retryAfter).filter((seconds) => seconds !== null);
    const retry = retries.length ? [`Retry in ${Math.ceil(Math.min(...retries))} s.`] : [];
    return { text: parts.join(" · "), problem: [...[...problems].slice(0, MAX_PROBLEMS), ...retry].join(" ") };
  }
}

const label = (state) => (state === "underrun" ? "with underruns" : state);

function truncated(text) {
  return text.length > MAX_TEXT ? text.slice(0, text.lastIndexOf(" ", MAX_TEXT) + 1 || MAX_TEXT) : text;
}
