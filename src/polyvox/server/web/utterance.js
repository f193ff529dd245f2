// One utterance: asked for, heard while it comes, measured.

import { Refusal, inWords, outcome, speech } from "./api.js";
import { samplesOf } from "./pcm.js";

// Sound that is fetched ahead of the ear. Past it the page reads no faster than it plays, and the server waits.
const MOST_LEAD = 60;
const LOOK_MS = 100;

export class Utterance {
  state = "asking"; // then speaking, playing out, finished; or stopped, refused, failed
  problem = null;
  parts = [];
  received = 0; // samples
  played = 0;
  underruns = 0;
  peak = 0;
  firstSound = null; // seconds from the request, as is everything below
  lastSound = null;
  seed = null;
  #waited = 0; // seconds in which we did not read
  #playing = null; // its number at the player
  #stop = new AbortController();
  #began = performance.now();

  constructor(body, rate, player) {
    this.body = body;
    this.rate = rate;
    this.player = player;
  }

  get elapsed() {
    return (performance.now() - this.#began) / 1000;
  }

  // Seconds of work for a second of sound, from the request to the last sound that came.
  get rtf() {
    return this.received ? (this.lastSound - this.#waited) / (this.received / this.rate) : null;
  }

  get lead() {
    return (this.received - this.played) / this.rate;
  }

  get over() {
    return !["asking", "speaking", "playing out"].includes(this.state);
  }

  // Settles when the last sample was heard, or when it was stopped or failed. onChange: something is new.
  async run(onChange) {
    let id = null;
    try {
      const heard = signal();
      const utterance = (this.#playing = await this.player.begin(this.rate, (report) => {
        Object.assign(this, { played: report.played, underruns: report.underruns, peak: report.peak });
        if (report.finished) heard.resolve();
        onChange();
      }));
      this.#stop.signal.throwIfAborted();
      this.#began = performance.now();
      const response = await speech({ ...this.body, response_format: "pcm" }, this.#stop.signal);
      this.seed = Number(response.headers.get("x-seed"));
      id = response.headers.get("x-request-id");
      for await (const samples of samplesOf(response)) {
        if (this.#stop.signal.aborted) break;
        this.#arrived(samples);
        this.player.push(utterance, samples);
        onChange(samples);
        await this.#room();
      }
      this.#stop.signal.throwIfAborted();
      this.player.end(utterance);
      this.state = "playing out";
      onChange();
      this.#stop.signal.addEventListener("abort", heard.resolve);
      if (this.received) await heard.promise;
      this.#stop.signal.throwIfAborted();
      this.state = "finished";
    } catch (error) {
      this.player.stop(this.#playing);
      await this.#failed(error, id);
    }
    onChange();
  }

  stop() {
    this.#stop.abort();
    this.player.stop(this.#playing);
  }

  #arrived(samples) {
    this.lastSound = this.elapsed;
    this.firstSound ??= this.lastSound;
    this.state = "speaking";
    this.parts.push(samples);
    this.received += samples.length;
  }

  async #room() {
    const since = this.elapsed;
    while (this.lead > MOST_LEAD && !this.#stop.signal.aborted) await pause(LOOK_MS);
    this.#waited += this.elapsed - since;
  }

  async #failed(error, id) {
    if (this.#stop.signal.aborted) {
      this.state = "stopped";
      return;
    }
    this.state = error instanceof Refusal ? "refused" : "failed";
    this.error = error;
    this.problem = id === null ? inWords(error) : await whyBroken(id);
  }
}

// A body that broke off tells nothing; the server does when asked.
async function whyBroken(id) {
  const told = await outcome(id).catch(() => null);
  return `The stream broke off before its end${told?.error ? `: ${told.error}` : "."}`;
}

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function signal() {
  const made = {};
  made.promise = new Promise((resolve) => (made.resolve = resolve));
  return made;
}
