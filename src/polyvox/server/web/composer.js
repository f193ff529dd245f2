// The text and the options of a request. The form offers what the loaded checkpoint supports.

import { VoiceList } from "./voice_list.js";

const EXAMPLES = {
  "A greeting": "Good morning! It is lovely to hear from you. How did you sleep?",
  "A story": "The lighthouse had been dark for years. Then, one evening in autumn, a light burned at the top again. The village gathered at the harbour to see it.",
  "Numbers": "Dr. Lee has 3 cats, paid $12.50, and leaves at 9:45 on May 3rd, 2027.",
};
const HINTS = {
  text: { short: "", placeholder: "Write or paste a text …" },
  live: { short: "Spoken while you write", placeholder: "Start to type, or paste what a language model writes. Each sentence is spoken as soon as it is complete." },
};
const DESIGN_HINT = "A warm, low voice of an older man, unhurried and clear.";
const STYLE_HINT = "Softly and slowly, almost whispering.";

const $ = (id) => document.getElementById(id);

export class Composer {
  #info = null;
  #voices;
  #text = Object.values(EXAMPLES)[0]; // of text mode, while live mode is chosen
  #onExample;

  // onExample gets the text of an example in live mode.
  constructor(voiceOptions, onExample) {
    this.#voices = new VoiceList(voiceOptions);
    this.#onExample = onExample;
    $("text").addEventListener("input", () => this.#showCount());
    $("speed").addEventListener("input", () => {
      $("speed-value").textContent = `${Number($("speed").value).toFixed(2)}×`;
    });
    this.showMode();
  }

  show(info) {
    this.#info = info;
    const { model, voices, formats, limits } = info;
    const design = model.designs_voices;
    $("text").maxLength = limits.text;
    $("examples").replaceChildren(...Object.entries(EXAMPLES).map(([name, text]) => this.#example(name, text)));
    $("voice-field").hidden = design;
    $("new-voice").hidden = !model.can_clone;
    this.showVoices(voices, this.voice);
    $("instructions-field").hidden = !model.takes_instructions;
    $("instructions-label").textContent = design ? "Describe the voice" : "Instructions";
    $("instructions").placeholder = design ? DESIGN_HINT : STYLE_HINT;
    if (design && !$("instructions").value) $("instructions").value = DESIGN_HINT;
    $("language-field").hidden = model.languages.filter((name) => name !== "auto").length < 2;
    $("language").replaceChildren(...model.languages.map((name) => new Option(capitalized(name), name)));
    $("format").replaceChildren(...formats.map(({ name }) => new Option(name.toUpperCase(), name)));
    this.#showCount();
  }

  showVoices(voices, selected) {
    this.#info.voices = voices;
    $("no-voices").hidden = this.#info.model.designs_voices || voices.length > 0;
    this.#voices.show(voices, selected);
  }

  get mode() {
    return document.querySelector("input[name=mode]:checked").value;
  }

  // Live mode starts without text; the text of the other mode is kept.
  showMode() {
    const { mode } = this;
    if (mode === "live") this.#text = this.text;
    $("text").value = mode === "live" ? "" : this.#text;
    $("composer").dataset.mode = mode;
    $("speak").querySelector("span").textContent = mode === "live" ? "Speak all" : "Speak";
    $("text").placeholder = HINTS[mode].placeholder;
    $("mode-hint").textContent = HINTS[mode].short;
    this.#showCount();
  }

  get voice() {
    return this.#voices.selected;
  }

  stopSample() {
    this.#voices.stop();
  }

  get format() {
    return this.#info.formats.find(({ name }) => name === $("format").value);
  }

  get text() {
    return $("text").value;
  }

  // The fields of a request beside its text, without those that have their default.
  options() {
    const body = {};
    const instructions = $("instructions").value.trim();
    if (this.voice) body.voice = this.voice;
    if (!$("instructions-field").hidden && instructions) body.instructions = instructions;
    if (!$("language-field").hidden && $("language").value !== "auto") body.language = $("language").value;
    if (Number($("speed").value) !== 1) body.speed = Number($("speed").value);
    if ($("seed").value) body.seed = Number($("seed").value);
    return body;
  }

  // The body of POST /v1/audio/speech; with the written text in live mode too.
  request() {
    return { input: this.text, ...this.options() };
  }

  // The validation error to show; null for a valid form.
  problem() {
    if (!this.text.trim()) return "Write a text first.";
    if (!$("seed").checkValidity()) return "The seed must be an integer.";
    if (this.#info.model.can_clone && !this.voice) return "Add a voice first: press “New voice” to record or upload one.";
    return null;
  }

  #example(name, text) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "chip", textContent: name });
    button.addEventListener("click", () => {
      if (this.mode === "live") return this.#onExample(text);
      $("text").value = text;
      $("text").dispatchEvent(new Event("input"));
      $("text").focus();
    });
    return button;
  }

  #showCount() {
    const count = $("text").value.length;
    $("count").textContent = `${count.toLocaleString("en")} ${count === 1 ? "character" : "characters"}`;
  }
}

const capitalized = (text) => text.charAt(0).toUpperCase() + text.slice(1);
