// The player: play and pause, the waveform with its seek bar, status and problems.

import { Notice } from "./notice.js";
import { Waveform } from "./waveform.js";

const MIN_SECONDS = 4; // width of the waveform
const KEY_SECONDS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -5, PageUp: 5 };
const $ = (id) => document.getElementById(id);

export class PlayerPanel {
  #playback;
  #waveform = new Waveform($("waveform"));
  #dragged = null; // seconds, while the user moves the position
  #problem = new Notice($("problem"));

  // onSeek is called with seconds while the user moves the position, and at its end.
  constructor(playback, onSeek) {
    this.#playback = playback;
    const redraw = () => this.update();
    window.addEventListener("resize", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    $("play").addEventListener("click", () => (playback.status === "playing" ? playback.pause() : playback.play()));
    $("seek").addEventListener("input", () => {
      this.#dragged = this.#clamped(Number($("seek").value));
      this.update();
      onSeek(this.#dragged);
    });
    $("seek").addEventListener("change", () => this.#seek(this.#dragged ?? 0));
    $("seek").addEventListener("keydown", (event) => {
      if (!(event.key in KEY_SECONDS)) return; // Home and End work as they are
      event.preventDefault();
      this.#seek(this.#clamped(playback.seconds + KEY_SECONDS[event.key]));
      onSeek(playback.seconds);
    });
  }

  get seconds() {
    return this.#dragged ?? this.#playback.seconds;
  }

  begin(sampleRate) {
    this.#waveform.reset(sampleRate);
    this.#dragged = null;
    this.hideProblem();
    this.update();
  }

  push(samples) {
    this.#waveform.push(samples);
  }

  update() {
    const { status, audio } = this.#playback;
    const duration = audio?.seconds ?? 0;
    const shown = Math.max(MIN_SECONDS, duration);
    this.#waveform.draw(this.seconds, shown);
    const empty = duration === 0;
    $("play").disabled = $("seek").disabled = empty;
    $("play").setAttribute("aria-label", status === "playing" ? "Pause" : status === "ended" ? "Replay" : "Play");
    $("seek").max = shown;
    if (this.#dragged === null) $("seek").value = this.seconds;
    $("seek").setAttribute("aria-valuetext", `${clock(this.seconds)} of ${clock(duration)}`);
    $("position").textContent = clock(this.seconds);
    $("duration").textContent = clock(duration);
    Object.assign($("player").dataset, {
      playback: status,
      received: audio?.length ?? 0,
      played: this.#playback.position,
      peak: this.#playback.peak.toFixed(3),
    });
  }

  showRequest(state) {
    $("player").dataset.request = state;
  }

  showStatus(text) {
    if ($("status").textContent !== text) $("status").textContent = text;
  }

  showProblem(text, retry, retryAfter) {
    this.#problem.show(text, retry, retryAfter);
  }

  hideProblem() {
    this.#problem.hide();
  }

  #clamped(seconds) {
    return Math.min(Math.max(0, seconds), this.#playback.audio?.seconds ?? 0);
  }

  #seek(seconds) {
    this.#dragged = null;
    this.#playback.seek(seconds);
    this.update();
  }
}

const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
