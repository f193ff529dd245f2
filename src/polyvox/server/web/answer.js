// An answer of the conversation: its text, its audio, the times of its words, and how it ended.

import { SpeechAudio } from "./speech_audio.js";
import { WordTimes } from "./word_times.js";

export class Answer {
  role = "assistant";
  state = "waiting"; // for its first text; then speaking, complete; or interrupted, failed
  text = "";
  playedLength = null; // characters of the text that were played before an interruption, as is playedSeconds
  playedSeconds = null;
  itemId = null;
  note = ""; // why it is incomplete
  firstText = null; // seconds since the request, as is firstAudio
  firstAudio = null;
  received = false; // all of it
  underruns = 0;
  times = new WordTimes();
  #began;

  // began: when the turn of the user ended. connection: the one whose server knows the answer.
  constructor(sampleRate, began, connection) {
    this.audio = new SpeechAudio(sampleRate);
    this.#began = began;
    this.connection = connection;
  }

  get active() {
    return this.state === "waiting" || this.state === "speaking";
  }

  // The text that the conversation continues with.
  get playedText() {
    return this.text.slice(0, this.playedLength ?? undefined);
  }

  addText(text) {
    this.firstText ??= this.#elapsed();
    this.text += text;
    this.times.setText(this.text);
    if (this.active) this.state = "speaking";
  }

  addAudio(samples) {
    this.firstAudio ??= this.#elapsed();
    this.audio.add(samples);
    if (this.active) this.state = "speaking";
  }

  // Times of words or of a sentence, from the first sample on.
  addTimes(event) {
    this.times.add({ ...event, type: event.type.replace("response.output_audio", "audio") }, 0);
  }

  end(state) {
    this.state = state;
    this.audio.complete = true;
  }

  // The audio was played up to this time.
  cut(seconds) {
    this.playedSeconds = seconds;
    this.playedLength = seconds === 0 ? 0 : (this.times.at(seconds)?.to ?? null);
    this.end("interrupted");
  }

  // The server's transcript of what was played: the beginning of the text.
  setPlayed(transcript) {
    if (!this.text.startsWith(transcript)) this.text = transcript;
    this.playedLength = transcript.length;
  }

  // The range to mark at a time of the audio: what is spoken, or after an interruption what was not played.
  marked(seconds) {
    if (this.state === "speaking") return this.times.at(seconds);
    if (this.playedLength === null) return null;
    const rest = this.text.slice(this.playedLength);
    return { kind: "unplayed", from: this.playedLength + rest.search(/\S|$/), to: this.text.length };
  }

  // The answer will not be played again.
  releaseAudio() {
    this.audio.chunks = [];
  }

  #elapsed() {
    return (performance.now() - this.#began) / 1000;
  }
}
