// One stream of a crowd: its own request, a listener that is counted, and a strip that shows the lead.

import { inWords } from "./api.js";
import { Trace, area, surface } from "./canvas.js";
import { Listener } from "./listener.js";
import { SpeechSocket } from "./socket.js";
import { pause } from "./utterance.js";

const MOST_POINTS = 240;
const LOOK_MS = 60;
const WORDS = { queued: "queued", finished: "finished", refused: "refused", failed: "failed", stopped: "stopped" };

export class Lane {
  state = "queued"; // then speaking, underrun (it ran dry once), finished; or refused, failed, stopped
  firstSound = null;
  problem = null;
  seconds = 0; // since the crowd began
  trace = new Trace(MOST_POINTS);
  listener = new Listener();
  onSamples = () => {};
  onEnd = () => {};
  #dry = []; // when
  #kept = []; // [first sample, samples] that are not heard yet
  #socket = new SpeechSocket();
  #stop = new AbortController();
  #clock;

  constructor(number, body, rate, clock) {
    this.body = body;
    this.rate = rate;
    this.#clock = clock;
    this.item = document.createElement("li");
    this.button = this.item.appendChild(document.createElement("button"));
    Object.assign(this.button, { type: "button", className: "lane" });
    const name = body.voice ?? "voice";
    this.button.innerHTML = '<span class="number"></span><span class="who"></span><canvas></canvas><span class="what"></span>';
    this.button.querySelector(".number").textContent = number;
    this.button.querySelector(".who").textContent = name;
    this.button.setAttribute("aria-label", `Hear stream ${number}, ${name}`);
    this.button.setAttribute("aria-pressed", "false");
  }

  get over() {
    return !["queued", "speaking", "underrun"].includes(this.state);
  }

  opened() {
    return this.#socket.opened();
  }

  // Settles when the last sound was heard, or when it was refused, failed or stopped.
  async run() {
    try {
      for await (const samples of this.#socket.samples(this.body, this.#stop.signal)) {
        this.#arrived(samples);
      }
      this.#stop.signal.throwIfAborted();
      this.listener.end(this.#clock());
      this.onEnd();
      await this.#playedOut();
    } catch (error) {
      this.#failed(error);
    }
  }

  stop() {
    this.#stop.abort();
    if (!this.over) this.state = "stopped";
  }

  unheard() {
    const from = Math.floor(this.listener.heard(this.#clock()) * this.rate);
    return this.#kept.filter(([at, samples]) => at + samples.length > from).map(([at, samples]) => samples.slice(Math.max(0, from - at)));
  }

  draw(seconds, highest) {
    this.#look();
    const { pen, width, height, colour } = surface(this.button.querySelector("canvas"));
    const x = (at) => (at / Math.max(3, seconds)) * width;
    const y = (lead) => height - 2 - (lead / highest) * (height - 5);
    pen.strokeStyle = colour("line");
    pen.beginPath();
    pen.moveTo(0, height - 1.5);
    pen.lineTo(width, height - 1.5);
    pen.stroke();
    pen.fillStyle = colour("queued"); // how long it waited
    pen.fillRect(0, height - 2.5, x(this.firstSound ?? this.seconds), 2);
    area(pen, this.trace.points.map(([at, lead]) => [x(at), y(lead)]), height - 2, colour("state"));
    pen.fillStyle = colour("warn");
    for (const at of this.#dry) pen.fillRect(x(at) - 1, 2, 2, height - 4);
  }

  #arrived(samples) {
    const now = this.#clock();
    this.firstSound ??= now;
    this.#kept.push([Math.round(this.listener.received * this.rate), samples]);
    this.listener.arrive(samples.length / this.rate, now);
    this.onSamples(samples);
  }

  // The last sound is here before it was heard.
  async #playedOut() {
    while (!this.over && this.listener.lead(this.#clock()) > 0) await pause(LOOK_MS);
    if (!this.over) this.state = "finished";
  }

  #look() {
    const now = this.#clock();
    const { listener } = this;
    const lead = listener.lead(now);
    if (!this.over) {
      this.seconds = now;
      if (this.firstSound !== null) {
        this.state = listener.underruns ? "underrun" : "speaking";
        this.trace.add(now, lead);
      }
      while (this.#dry.length < listener.underruns) this.#dry.push(now);
      this.#dry.length = listener.underruns;
      const heard = listener.heard(now) * this.rate;
      this.#kept = this.#kept.filter(([at, samples]) => at + samples.length > heard);
    }
    const dry = this.#dry.length ? ` · ${this.#dry.length} dry` : "";
    this.button.dataset.state = this.state === "finished" && dry ? "underrun" : this.state;
    this.button.querySelector(".what").textContent = WORDS[this.state] ? WORDS[this.state] + dry : `${lead.toFixed(1)} s${dry}`;
  }

  #failed(error) {
    if (this.#stop.signal.aborted) return;
    const begun = this.firstSound !== null;
    this.state = error.full && !begun ? "refused" : "failed";
    this.problem = begun ? "A stream broke off before its end." : inWords(error);
  }
}
