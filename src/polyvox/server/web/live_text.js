// Live text: it is spoken while it is written. Each complete sentence is spoken at once, the rest after a pause.

import { errorMessage } from "./api.js";
import { SpeechSocket } from "./speech_socket.js";
import { SpeechAudio } from "./speech_audio.js";
import { WordTimes } from "./word_times.js";

const PAUSE_MS = 1500; // without new text, after which an incomplete sentence is spoken
const MAX_SEED = 2 ** 31;
const OPTIONS = { split_granularity: "sentence", timestamp_granularities: ["word", "segment"] };

export class LiveText {
  state = "waiting"; // for text; or speaking, stopped, failed
  error = null;
  problem = null; // message
  times = new WordTimes();
  #options;
  #onSamples;
  #onChange;
  #stop = new AbortController();
  #socket = null;
  #spoken; // the part of the text before this object's
  #sent; // the part of the text that was spoken or sent
  #utterances = []; // of the socket: {offset, text, finished, done}
  #timer = null;

  // spoken: the beginning of the text that is not to be spoken. onSamples gets samples, and null when no more will
  // come for now.
  constructor(options, spoken, sampleRate, onSamples, onChange) {
    this.seed = options.seed ?? Math.floor(Math.random() * MAX_SEED); // one seed for all connections
    this.#options = { ...options, seed: this.seed };
    this.#sent = this.#spoken = spoken;
    this.#onSamples = onSamples;
    this.#onChange = onChange;
    this.audio = new SpeechAudio(sampleRate);
  }

  get sent() {
    return this.#sent;
  }

  // The body of POST /v1/audio/speech for the same text.
  get body() {
    return { input: this.#sent.slice(this.#spoken.length), ...this.#options };
  }

  get done() {
    return this.state === "stopped" || this.state === "failed";
  }

  // The text has changed. Returns false if it changes what was sent.
  update(text) {
    if (!text.startsWith(this.#sent)) return false;
    const complete = text.slice(0, text.search(/\S*$/)); // the last word may still change
    if (complete.length > this.#sent.length) this.#send(complete);
    clearTimeout(this.#timer);
    if (text.trim()) this.#timer = setTimeout(() => this.#finish(text), PAUSE_MS);
    return true;
  }

  stop() {
    clearTimeout(this.#timer);
    this.#stop.abort();
    this.audio.complete = true;
    if (!this.done) this.#setState("stopped");
  }

  #finish(text) {
    if (text.length > this.#sent.length) this.#send(text);
    const current = this.#utterances.at(-1);
    if (!current || current.finished) return;
    current.finished = true;
    this.#socket.then((socket) => socket.finish(), () => {});
  }

  #send(text) {
    const added = text.slice(this.#sent.length);
    if (!this.#utterances.length || this.#utterances.at(-1).finished) {
      if (!added.trim()) return; // white space starts no utterance
      this.#utterances.push({ offset: this.#sent.length, text: "", finished: false, done: false });
    }
    this.#utterances.at(-1).text += added;
    this.#sent = text;
    this.#setState("speaking");
    this.#socket ??= this.#open();
    this.#socket.then((socket) => socket.append(added), () => {});
  }

  async #open() {
    const socket = new SpeechSocket();
    this.#receive(socket).catch((error) => this.#end(error));
    await socket.opened();
    socket.configure({ ...this.#options, ...OPTIONS });
    return socket;
  }

  async #receive(socket) {
    await socket.opened();
    let fileStart = 0; // seconds of audio before the file that times count from
    const expected = () => this.#utterances.some(({ finished, done }) => finished && !done);
    for await (const message of socket.messages(this.#stop.signal, expected)) {
      if (message instanceof Int16Array) {
        this.audio.add(message);
        this.#onSamples(message);
        continue;
      }
      const utterance = this.#utterances[message.utterance_index];
      if (message.type === "audio.start") fileStart = this.audio.seconds;
      if (message.type === "audio.done") this.#onSamples(null);
      if (message.type === "session.done") {
        utterance.done = true;
        if (this.#utterances.every(({ done }) => done)) this.#setState("waiting");
      }
      if (message.type === "audio.words" || message.type === "audio.segment") {
        this.times.setText(utterance.text, utterance.offset);
        this.times.add(message, fileStart);
      }
    }
  }

  #end(error) {
    if (this.done) return;
    const pending = this.#utterances.find(({ done }) => !done);
    this.#socket = null;
    this.#utterances = [];
    if (!pending) return this.#setState("waiting"); // idle for too long: the next text opens a new connection
    clearTimeout(this.#timer);
    this.#sent = this.#sent.slice(0, pending.offset);
    this.error = error;
    this.problem = errorMessage(error);
    this.audio.complete = true;
    this.#setState("failed");
  }

  #setState(state) {
    if (state === this.state) return;
    this.state = state;
    this.#onChange();
  }
}
