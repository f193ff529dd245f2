// One utterance of a known text: requested, received, measured.

import { ApiError, errorMessage } from "./api.js";
import { SpeechSocket } from "./speech_socket.js";
import { SpeechAudio } from "./speech_audio.js";
import { WordTimes } from "./word_times.js";

const TIMES = { timestamp_granularities: ["word", "segment"] };

export class Utterance {
  state = "requesting"; // then streaming, complete; or stopped, rejected, failed
  problem = null; // message
  error = null;
  seed = null;
  firstAudio = null; // seconds since the request, as is lastAudio
  lastAudio = null;
  times = new WordTimes();
  #stop = new AbortController();
  #began = performance.now();

  constructor(body, sampleRate) {
    this.body = body;
    this.audio = new SpeechAudio(sampleRate);
    this.times.setText(body.input);
  }

  get elapsed() {
    return (performance.now() - this.#began) / 1000;
  }

  // Real-time factor: seconds from the request to the last audio, per second of audio.
  get rtf() {
    return this.audio.length ? this.lastAudio / this.audio.seconds : null;
  }

  get done() {
    return !["requesting", "streaming"].includes(this.state);
  }

  // Settles when all audio was received, or on stop or failure. onChange is called after every change, with samples.
  async run(onChange) {
    try {
      let fileStart = 0; // seconds of audio before the file that times count from
      for await (const message of new SpeechSocket().speech({ ...this.body, ...TIMES }, this.#stop.signal)) {
        if (message instanceof Int16Array) this.#receive(message, onChange);
        else if (message.type === "audio.start") fileStart = this.audio.seconds;
        else if (message.type === "session.done") this.seed = message.seed;
        else this.times.add(message, fileStart);
      }
      this.#end("complete");
    } catch (error) {
      this.#fail(error);
    }
    onChange();
  }

  stop() {
    this.#stop.abort();
    if (!this.done) this.#end("stopped");
  }

  #receive(samples, onChange) {
    if (this.done) return;
    this.lastAudio = this.elapsed;
    this.firstAudio ??= this.lastAudio;
    this.state = "streaming";
    this.audio.add(samples);
    onChange(samples);
  }

  #end(state) {
    this.state = state;
    this.audio.complete = true;
  }

  #fail(error) {
    if (this.#stop.signal.aborted) return;
    const started = this.firstAudio !== null;
    this.error = error;
    this.problem = started ? `The audio is incomplete. ${errorMessage(error)}` : errorMessage(error);
    this.#end(error instanceof ApiError && error.overloaded && !started ? "rejected" : "failed");
  }
}
