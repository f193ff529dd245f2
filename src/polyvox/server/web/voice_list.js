// The voices to choose from, each with a sample that is synthesised when it is first played.

import { createSpeech, errorMessage } from "./api.js";

const SAMPLE_TEXT = "Hello! This is how I sound. I hope you like it.";
const SAMPLE_SEED = 1;
const HUES = 12; // different colours
const $ = (id) => document.getElementById(id);

export class VoiceList {
  #samples = new Map(); // URL of a sample, by the content of the voice
  #audio = new Audio();
  #playing = null; // button of the sample that is requested or played
  #onPlay;
  #onDelete;

  // onPlay is called before a sample is played, onDelete with the name of a voice.
  constructor({ onPlay, onDelete }) {
    this.#onPlay = onPlay;
    this.#onDelete = onDelete;
    this.#audio.addEventListener("ended", () => this.stop());
  }

  show(voices, selected) {
    this.stop();
    $("voices").replaceChildren(...voices.map((voice) => this.#row(voice)));
    const inputs = [...$("voices").querySelectorAll("input")];
    const checked = inputs.find((input) => input.value === selected) ?? inputs[0];
    if (checked) checked.checked = true;
  }

  get selected() {
    return $("voices").querySelector("input:checked")?.value ?? null;
  }

  stop() {
    this.#audio.pause();
    this.#showState(null);
    this.#playing = null;
  }

  #row(voice) {
    const { name, type, seconds } = voice;
    const row = document.createElement("div");
    row.className = "voice";
    row.innerHTML = `<label><input type="radio" name="voice"><span class="avatar" aria-hidden="true"></span>
      <span class="voice-text"><span class="voice-name"></span><span class="voice-kind"></span></span></label>
      <button type="button" class="round delete" hidden><svg viewBox="0 0 16 16" aria-hidden="true"><path d="M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.5 8.5h6l.5-8.5"/></svg></button>
      <button type="button" class="round sample"><svg class="icon-play" viewBox="0 0 16 16" aria-hidden="true"><path d="M5 3v10l8-5z"/></svg><svg class="icon-stop" viewBox="0 0 16 16" aria-hidden="true"><rect x="4" y="4" width="8" height="8" rx="1"/></svg></button>`;
    const [remove, sample] = row.querySelectorAll("button");
    row.querySelector("input").value = name;
    row.querySelector(".avatar").textContent = name.charAt(0).toUpperCase();
    row.querySelector(".avatar").style.setProperty("--hue", String((360 / HUES) * (hash(name) % HUES)));
    row.querySelector(".voice-name").textContent = name;
    const cloned = type !== "own";
    row.querySelector(".voice-kind").textContent = cloned ? `Cloned${seconds ? ` from ${seconds.toFixed(0)} s` : ""}` : "Built in";
    sample.setAttribute("aria-label", `Play a sample of ${name}`);
    sample.addEventListener("click", () => (sample === this.#playing ? this.stop() : this.#play(voice, sample)));
    remove.hidden = !cloned;
    remove.setAttribute("aria-label", `Delete the voice ${name}`);
    remove.addEventListener("click", () => this.#onDelete(name));
    return row;
  }

  async #play({ name, content_id: content = name }, button) {
    this.stop();
    this.#onPlay();
    this.#playing = button;
    this.#showState("loading");
    $("voice-status").textContent = "";
    try {
      if (!this.#samples.has(content)) {
        const body = { input: SAMPLE_TEXT, voice: name, seed: SAMPLE_SEED, response_format: "wav" };
        this.#samples.set(content, URL.createObjectURL(await createSpeech(body)));
      }
      if (button !== this.#playing) return;
      this.#audio.src = this.#samples.get(content);
      await this.#audio.play();
      this.#showState("playing");
    } catch (error) {
      if (button !== this.#playing) return;
      this.stop();
      const retry = error.retryAfter ? ` Try again in ${Math.ceil(error.retryAfter)} s.` : "";
      $("voice-status").textContent = `${errorMessage(error)}${retry}`;
    }
  }

  #showState(state) {
    if (this.#playing) this.#playing.dataset.state = state ?? "";
  }
}

function hash(text) {
  return [...text].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) >>> 0, 7);
}
