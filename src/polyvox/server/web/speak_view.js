// The view for listening: text or live text is spoken, its words are marked, it can be replayed and downloaded.

import { createSpeech, errorMessage } from "./api.js";
import { LiveText } from "./live_text.js";
import { Playback } from "./playback.js";
import { PlayerPanel } from "./player_panel.js";
import { saveFile } from "./speech_audio.js";
import { TextHighlight } from "./text_highlight.js";
import { sleep } from "./timeouts.js";
import { Utterance } from "./utterance.js";

const LLM_WORD_MS = 90; // a language model's pace, for examples in live mode
const SLOW_SECONDS = 3; // after which the waiting time is shown
const SECOND_MS = 1000;
const $ = (id) => document.getElementById(id);

export class SpeakView {
  utterance = null; // the last one, also while it is replayed
  #composer;
  #sampleRate;
  #measurement;
  #onKeyRejected;
  #playback;
  #panel;
  #highlight = new TextHighlight($("text"), $("text-highlight"));
  #speech = null; // what the player has: an Utterance or a LiveText
  #liveText = ""; // the text of live mode before the last input
  #example = 0; // number of the example that is being written
  #measuring = false; // the first playback of an utterance is

  constructor(composer, player, sampleRate, measurement, onKeyRejected) {
    this.#composer = composer;
    this.#sampleRate = sampleRate;
    this.#measurement = measurement;
    this.#onKeyRejected = onKeyRejected;
    this.#playback = new Playback(player, () => this.#showPlayback());
    this.#panel = new PlayerPanel(this.#playback, () => this.#showWord());
    this.#panel.update();
    $("text").addEventListener("input", () => this.#showEdit());
    $("modes").addEventListener("change", () => this.#changeMode());
    $("download").addEventListener("click", () => this.#download());
    setInterval(() => this.#showWaiting(), SECOND_MS);
  }

  speak() {
    return this.#composer.mode === "live" ? this.#speakLive("") : this.speakText();
  }

  // Speaks the text as one utterance, in live mode too.
  async speakText() {
    const problem = this.#composer.problem();
    if (problem) return this.#panel.showProblem(problem);
    this.stop();
    const current = (this.utterance = new Utterance(this.#composer.request(), this.#sampleRate));
    this.#measurement.begin(current);
    this.#measuring = true;
    this.#begin(current);
    await current.run((samples) => {
      if (current !== this.#speech) return; // replaced by a newer one
      if (samples) this.#push(samples);
      else if (current.done) this.#playback.end();
      this.#showRequest();
    });
    $("keep-seed").hidden = this.utterance?.seed == null;
  }

  // Ends the request and silences it; what was received can be replayed.
  stop() {
    this.#example += 1;
    if (this.#speech && !this.#speech.done) this.#speech.stop();
    this.#playback.pause();
    if (this.#speech) this.#showRequest();
  }

  #begin(speech) {
    this.#speech = speech;
    this.#highlight.clear();
    this.#panel.begin(this.#sampleRate);
    this.#playback.begin(speech.audio);
    this.#showRequest();
  }

  #push(samples) {
    this.#panel.push(samples);
    this.#playback.push(samples);
  }

  // In live mode: speaks what is written, without the part that was spoken.
  #speakLive(spoken) {
    const problem = this.#composer.problem();
    if (problem) return this.#panel.showProblem(problem);
    this.stop();
    this.#beginLive(spoken);
    this.#speech.update(this.#composer.text);
  }

  #showEdit() {
    if (this.#composer.mode === "live") this.#writeLive(this.#composer.text);
    else if (this.#speech && this.#composer.text !== this.#speech.times.text) this.#highlight.clear();
  }

  #writeLive(text) {
    if (!text) this.stop();
    const before = this.#liveText;
    this.#liveText = text;
    if (!(this.#speech instanceof LiveText) || this.#speech.state === "stopped") {
      if (!text.trim()) return;
      const problem = this.#composer.problem();
      if (problem) return this.#panel.showProblem(problem);
      this.#beginLive(text.startsWith(before) ? before : "");
    }
    if (this.#speech.state === "failed") return;
    this.#panel.hideProblem();
    if (this.#speech.update(text)) return;
    $("text").value = this.#liveText = before;
    this.#panel.showProblem("Spoken text cannot be changed. Add to it, or delete all of it to start again.");
  }

  #beginLive(spoken) {
    const live = new LiveText(
      this.#composer.options(),
      spoken,
      this.#sampleRate,
      (samples) => {
        if (live !== this.#speech) return;
        if (samples) this.#push(samples);
        else this.#playback.end();
        this.#showRequest();
      },
      () => live === this.#speech && this.#showRequest(),
    );
    this.#begin(live);
  }

  #changeMode() {
    this.stop();
    this.#composer.showMode();
    this.#speech = null;
    this.#liveText = "";
    this.#highlight.clear();
    this.#panel.hideProblem();
    this.#panel.showStatus(this.#composer.mode === "live" ? "Start to type." : "Press Speak to hear the text.");
    $("text").focus();
  }

  // Writes an example as a language model does: word by word.
  async writeExample(text) {
    const number = (this.#example += 1);
    const separator = $("text").value && !/\s$/.test($("text").value) ? " " : "";
    for (const word of `${separator}${text}`.match(/\s*\S+/g)) {
      if (number !== this.#example || this.#composer.mode !== "live") return;
      $("text").value += word;
      $("text").dispatchEvent(new Event("input"));
      await sleep(LLM_WORD_MS);
    }
  }

  #showPlayback() {
    this.#panel.update();
    this.#showWord();
    this.#showStatus();
    if (!this.#measuring) return;
    this.#measurement.update(this.#playback);
    this.#measuring = this.#playback.status === "playing";
  }

  #showRequest() {
    const speech = this.#speech;
    this.#panel.showRequest(speech.state);
    this.#panel.update();
    $("stop").disabled = speech.done && this.#playback.status !== "playing";
    $("download").disabled = !(speech.audio.length && (speech.done || speech.state === "waiting"));
    this.#showStatus();
    if (!speech.problem) return;
    if (speech.error.status === 401) return this.#onKeyRejected();
    this.#panel.showProblem(speech.problem, () => this.#retry(), speech.error.retryAfter);
  }

  #retry() {
    if (this.#speech instanceof LiveText) this.#speakLive(this.#speech.sent);
    else this.speakText();
  }

  #showStatus() {
    const speech = this.#speech;
    if (speech) this.#panel.showStatus(statusOf(speech, this.#playback));
    $("stop").disabled = !speech || (speech.done && this.#playback.status !== "playing");
  }

  // A request that takes long shows for how long.
  #showWaiting() {
    const speech = this.#speech;
    if (speech?.state === "requesting" && speech.elapsed > SLOW_SECONDS) {
      this.#panel.showStatus(`Waiting for the first audio … ${Math.floor(speech.elapsed)} s`);
    }
  }

  #showWord() {
    const speech = this.#speech;
    if (!speech || (this.#composer.mode === "text" && this.#composer.text !== speech.times.text)) return;
    const { status, position } = this.#playback;
    const atEnd = status === "ended" || (speech.state === "waiting" && position >= speech.audio.length);
    const spoken = atEnd ? null : speech.times.at(this.#panel.seconds);
    if (spoken) this.#highlight.show(spoken);
    else this.#highlight.clear();
  }

  async #download() {
    const { format } = this.#composer;
    const { audio, body, seed, state } = this.#speech;
    const name = `speech${format.ending}`;
    if (format.name === "wav") return saveFile(audio.wavFile(), name);
    if (format.name === "pcm") return saveFile(audio.pcmFile(), name);
    const encode = async () => {
      $("download").disabled = true;
      $("download").textContent = "Encoding …";
      try {
        saveFile(await createSpeech({ ...body, seed, response_format: format.name }), name);
      } catch (error) {
        this.#panel.showProblem(errorMessage(error), encode, error.retryAfter);
      } finally {
        $("download").disabled = false;
        $("download").textContent = "Download";
      }
    };
    if (state === "complete" || state === "waiting") return encode();
    this.#panel.showProblem("Only complete speech can be encoded in this format. Choose WAV, or speak the text again.");
  }
}

function statusOf(speech, playback) {
  if (speech.problem) return "";
  const length = `${speech.audio.seconds.toFixed(1)} s`;
  switch (speech.state) {
    case "requesting":
      return "Waiting for the first audio …";
    case "streaming":
    case "speaking":
      return playback.status === "paused" ? "Paused. More audio arrives." : "Speaking …";
    case "waiting":
      return playback.status === "paused" ? "Paused." : "Waiting for more text …";
    case "stopped":
      return speech.audio.length ? `Stopped after ${length}.` : "Stopped.";
    default:
      if (playback.status === "playing") return "Speaking …";
      return `${length} of speech · seed ${speech.seed}`;
  }
}
