// One stream of the load test: its request, its simulated player and a strip that shows its lead.

import { errorMessage } from "./api.js";
import { TimeSeries, area, surface } from "./canvas.js";
import { SimulatedPlayer } from "./simulated_player.js";
import { SpeechSocket } from "./speech_socket.js";
import { sleep } from "./timeouts.js";

const MAX_POINTS = 240;
const POLL_MS = 60;
const ACTIVE = ["queued", "streaming", "underrun"];

export class StreamRow {
  state = "queued"; // then streaming, underrun (after the first one), finished; or rejected, failed, stopped
  firstAudio = null;
  problem = null;
  retryAfter = null; // seconds
  seconds = 0; // since the test began
  series = new TimeSeries(MAX_POINTS);
  player = new SimulatedPlayer();
  onSamples = () => {};
  onEnd = () => {};
  #underruns = []; // times
  #chunks = []; // [first sample, samples] not played yet
  #socket = new SpeechSocket();
  #stop = new AbortController();
  #clock;

  constructor(number, body, sampleRate, clock) {
    this.body = body;
    this.sampleRate = sampleRate;
    this.#clock = clock;
    this.item = document.createElement("li");
    this.button = this.item.appendChild(document.createElement("button"));
    Object.assign(this.button, { type: "button", className: "stream" });
    const voice = body.voice ?? "voice";
    this.button.innerHTML =
      '<span class="number"></span><span class="voice-name"></span><canvas></canvas><span class="stream-state"></span>';
    this.button.querySelector(".number").textContent = number;
    this.button.querySelector(".voice-name").textContent = voice;
    this.button.setAttribute("aria-label", `Play stream ${number}, ${voice}`);
    this.button.setAttribute("aria-pressed", "false");
  }

  get done() {
    return !ACTIVE.includes(this.state);
  }

  opened() {
    return this.#socket.opened();
  }

  // Settles when the last sample was played, or on rejection, failure or stop.
  async run() {
    try {
      for await (const message of this.#socket.speech(this.body, this.#stop.signal)) {
        if (message instanceof Int16Array) this.#receive(message);
      }
      this.#stop.signal.throwIfAborted();
      this.player.end(this.#clock());
      this.onEnd();
      await this.#playToEnd();
    } catch (error) {
      this.#fail(error);
    }
  }

  stop() {
    this.#stop.abort();
    if (!this.done) this.state = "stopped";
  }

  // Samples that were received and not played yet.
  buffered() {
    const from = Math.floor(this.player.played(this.#clock()) * this.sampleRate);
    const unplayed = this.#chunks.filter(([start, samples]) => start + samples.length > from);
    return unplayed.map(([start, samples]) => samples.slice(Math.max(0, from - start)));
  }

  draw(seconds, maxLead) {
    this.#update();
    const { context, width, height, colour } = surface(this.button.querySelector("canvas"));
    const x = (time) => (time / Math.max(3, seconds)) * width;
    const y = (lead) => height - 2 - (lead / maxLead) * (height - 5);
    context.strokeStyle = colour("line");
    context.beginPath();
    context.moveTo(0, height - 1.5);
    context.lineTo(width, height - 1.5);
    context.stroke();
    context.fillStyle = colour("queued"); // time to first audio
    context.fillRect(0, height - 2.5, x(this.firstAudio ?? this.seconds), 2);
    area(context, this.series.points.map(([time, lead]) => [x(time), y(lead)]), height - 2, colour("state"));
    context.fillStyle = colour("warn");
    for (const time of this.#underruns) context.fillRect(x(time) - 1, 2, 2, height - 4);
  }

  #receive(samples) {
    const now = this.#clock();
    this.firstAudio ??= now;
    this.#chunks.push([Math.round(this.player.received * this.sampleRate), samples]);
    this.player.receive(samples.length / this.sampleRate, now);
    this.onSamples(samples);
  }

  // The last samples arrive before they are played.
  async #playToEnd() {
    while (!this.done && this.player.lead(this.#clock()) > 0) await sleep(POLL_MS);
    if (!this.done) this.state = "finished";
  }

  #update() {
    const now = this.#clock();
    const { player } = this;
    const lead = player.lead(now);
    if (!this.done) {
      this.seconds = now;
      if (this.firstAudio !== null) {
        this.state = player.underruns ? "underrun" : "streaming";
        this.series.add(now, lead);
      }
      while (this.#underruns.length < player.underruns) this.#underruns.push(now);
      this.#underruns.length = player.underruns;
      const played = player.played(now) * this.sampleRate;
      this.#chunks = this.#chunks.filter(([start, samples]) => start + samples.length > played);
    }
    const count = this.#underruns.length;
    const suffix = count ? ` · ${count} gap${count === 1 ? "" : "s"}` : "";
    const shown = ["streaming", "underrun"].includes(this.state) ? `${lead.toFixed(1)} s` : this.state;
    this.button.dataset.state = this.state === "finished" && count ? "underrun" : this.state;
    this.button.querySelector(".stream-state").textContent = shown + suffix;
  }

  #fail(error) {
    if (this.#stop.signal.aborted) return;
    const started = this.firstAudio !== null;
    this.state = error.overloaded && !started ? "rejected" : "failed";
    this.retryAfter = error.retryAfter ?? null;
    this.problem = started ? "A stream ended early." : errorMessage(error);
  }
}
