// One utterance: requested, played while it streams, measured.

import { ApiError, createSpeech, errorMessage, speechResult } from "./api.js";
import { samplesOf } from "./pcm.js";

// Seconds of audio to buffer. Past it the page reads at playback speed, and backpressure pauses the server.
const MAX_LEAD = 60;
const POLL_MS = 100;

export class Utterance {
  state = "requesting"; // then streaming, playing, finished; or stopped, rejected, failed
  problem = null;
  chunks = [];
  received = 0; // samples
  played = 0;
  underruns = 0;
  peak = 0;
  firstAudio = null; // seconds since the request, as is lastAudio
  lastAudio = null;
  seed = null;
  #paused = 0; // seconds in which the page did not read
  #playing = null; // its number in the player
  #stop = new AbortController();
  #began = performance.now();

  constructor(body, sampleRate, player) {
    this.body = body;
    this.sampleRate = sampleRate;
    this.player = player;
  }

  get elapsed() {
    return (performance.now() - this.#began) / 1000;
  }

  // Real-time factor: seconds from the request to the last audio, per second of audio.
  get rtf() {
    return this.received ? (this.lastAudio - this.#paused) / (this.received / this.sampleRate) : null;
  }

  get lead() {
    return (this.received - this.played) / this.sampleRate;
  }

  get done() {
    return !["requesting", "streaming", "playing"].includes(this.state);
  }

  // Settles when the last sample was played, or on stop or failure. onChange is called after every change.
  async run(onChange) {
    let id = null;
    try {
      const playback = deferred();
      const utterance = (this.#playing = await this.player.begin(this.sampleRate, (report) => {
        Object.assign(this, { played: report.played, underruns: report.underruns, peak: report.peak });
        if (report.finished) playback.resolve();
        onChange();
      }));
      this.#stop.signal.throwIfAborted();
      this.#began = performance.now();
      const response = await createSpeech({ ...this.body, response_format: "pcm" }, this.#stop.signal);
      this.seed = Number(response.headers.get("x-seed"));
      id = response.headers.get("x-request-id");
      for await (const samples of samplesOf(response)) {
        if (this.#stop.signal.aborted) break;
        this.#receive(samples);
        this.player.push(utterance, samples);
        onChange(samples);
        await this.#limitLead();
      }
      this.#stop.signal.throwIfAborted();
      this.player.end(utterance);
      this.state = "playing";
      onChange();
      this.#stop.signal.addEventListener("abort", playback.resolve);
      if (this.received) await playback.promise;
      this.#stop.signal.throwIfAborted();
      this.state = "finished";
    } catch (error) {
      this.player.stop(this.#playing);
      await this.#fail(error, id);
    }
    onChange();
  }

  stop() {
    this.#stop.abort();
    this.player.stop(this.#playing);
  }

  #receive(samples) {
    this.lastAudio = this.elapsed;
    this.firstAudio ??= this.lastAudio;
    this.state = "streaming";
    this.chunks.push(samples);
    this.received += samples.length;
  }

  async #limitLead() {
    const since = this.elapsed;
    while (this.lead > MAX_LEAD && !this.#stop.signal.aborted) await sleep(POLL_MS);
    this.#paused += this.elapsed - since;
  }

  async #fail(error, id) {
    if (this.#stop.signal.aborted) {
      this.state = "stopped";
      return;
    }
    this.state = error instanceof ApiError ? "rejected" : "failed";
    this.error = error;
    this.problem = id === null ? errorMessage(error) : await incompleteMessage(id);
  }
}

// An incomplete body has no error in it; the server reports it by request id.
async function incompleteMessage(id) {
  const result = await speechResult(id).catch(() => null);
  return `The stream ended early${result?.error ? `: ${result.error}` : "."}`;
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function deferred() {
  const made = {};
  made.promise = new Promise((resolve) => (made.resolve = resolve));
  return made;
}
