// Many listeners at once, each a lane: one of them is heard, the others are counted.

import { Lane } from "./lane.js";

const DRAW_MS = 66;
const MOST_PROBLEMS = 2; // that are told: many lanes have the same one
const MOST_TEXT = 1000; // characters: what comes is kept until it is heard, of every stream

export class Crowd {
  lanes = [];
  #player;
  #rate;
  #heard = null; // the lane that is audible
  #wanted = null; // the one that is to be
  #utterance = 0; // of the player's
  #list;

  constructor(list, player, rate) {
    this.#list = list;
    this.#player = player;
    this.#rate = rate;
  }

  get over() {
    return this.lanes.every((lane) => lane.over);
  }

  // Starts them all and settles when the last one has ended. onChange gets the sentence that sums them up.
  async run(bodies, onChange) {
    let began = performance.now();
    const clock = () => (performance.now() - began) / 1000;
    this.lanes = bodies.map((body, i) => new Lane(i + 1, { ...body, input: beginning(body.input) }, this.#rate, clock));
    for (const lane of this.lanes) {
      lane.button.addEventListener("click", () => this.over || this.hear(lane));
      lane.onSamples = (samples) => lane === this.#heard && this.#player.push(this.#utterance, samples);
      lane.onEnd = () => lane === this.#heard && this.#player.end(this.#utterance);
    }
    this.#list.replaceChildren(...this.lanes.map((lane) => lane.item));
    await Promise.allSettled([this.hear(this.lanes[0]), ...this.lanes.map((lane) => lane.opened())]);
    began = performance.now(); // all of them are connected: now they ask at once
    const drawing = setInterval(() => this.draw(onChange), DRAW_MS);
    try {
      await Promise.all(this.lanes.map((lane) => lane.run()));
    } finally {
      clearInterval(drawing);
      this.draw(onChange);
    }
  }

  async hear(lane) {
    for (const other of this.lanes) other.button.setAttribute("aria-pressed", String(other === lane));
    this.#heard = null; // nothing is pushed while the player changes over
    this.#wanted = lane;
    const utterance = await this.#player.begin(this.#rate, () => {});
    if (lane !== this.#wanted || lane.state === "stopped") return;
    this.#utterance = utterance;
    this.#heard = lane;
    for (const samples of lane.unheard()) this.#player.push(utterance, samples);
    if (lane.listener.ended) this.#player.end(utterance);
  }

  stop() {
    for (const lane of this.lanes) lane.stop();
    this.#player.stop(this.#utterance);
  }

  draw(onChange) {
    const seconds = Math.max(...this.lanes.map((lane) => lane.seconds));
    const highest = Math.max(0.5, ...this.lanes.map((lane) => lane.trace.highest));
    for (const lane of this.lanes) lane.draw(seconds, highest);
    onChange(this.#summary());
  }

  #summary() {
    const count = (state) => this.lanes.filter((lane) => lane.state === state).length;
    const firsts = this.lanes.map((lane) => lane.firstSound).filter((value) => value !== null);
    firsts.sort((a, b) => a - b);
    const underruns = this.lanes.reduce((sum, lane) => sum + lane.listener.underruns, 0);
    const parts = ["speaking", "underrun", "queued", "finished", "refused", "failed", "stopped"]
      .filter((state) => count(state))
      .map((state) => `${count(state)} ${state === "underrun" ? "ran dry" : state}`);
    if (firsts.length) {
      const [middle, last] = [firsts[Math.floor((firsts.length - 1) / 2)], firsts.at(-1)].map((s) => Math.round(s * 1000));
      parts.push(`first sound ${middle} ms, the last ${last} ms`);
      parts.push(`${underruns} ${underruns === 1 ? "underrun" : "underruns"}`);
    }
    const problems = new Set(this.lanes.map((lane) => lane.problem).filter((problem) => problem !== null));
    return { text: parts.join(" · "), problem: [...problems].slice(0, MOST_PROBLEMS).join(" ") };
  }
}

function beginning(text) {
  return text.length > MOST_TEXT ? text.slice(0, text.lastIndexOf(" ", MOST_TEXT) + 1 || MOST_TEXT) : text;
}
