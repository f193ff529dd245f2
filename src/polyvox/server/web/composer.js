// The request form. It offers what the loaded checkpoint supports and builds the request.

const EXAMPLES = {
  "A greeting": "Good morning! It is lovely to hear from you. How did you sleep?",
  "A story": "The lighthouse had been dark for years. Then, one evening in autumn, a light burned at the top again. The village gathered at the harbour to see it.",
  "Numbers": "Dr. Lee has 3 cats, paid $12.50, and leaves at 9:45 on May 3rd, 2027.",
};
const DESIGN_HINT = "A warm, low voice of an older man, unhurried and clear.";
const STYLE_HINT = "Softly and slowly, almost whispering.";

const $ = (id) => document.getElementById(id);

export class Composer {
  #info = null;

  show(info) {
    this.#info = info;
    const { model, voices, formats, limits } = info;
    const design = model.designs_voices;
    $("text").maxLength = limits.text;
    if (!$("text").value) $("text").value = Object.values(EXAMPLES)[0];
    $("examples").replaceChildren(...Object.entries(EXAMPLES).map(([name, text]) => this.#example(name, text)));
    $("voice-field").hidden = design;
    $("no-voices").hidden = design || voices.length > 0;
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

  listen() {
    $("text").addEventListener("input", () => this.#showCount());
    $("speed").addEventListener("input", () => {
      $("speed-value").textContent = `${Number($("speed").value).toFixed(2)}×`;
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !$("voice-dialog").open) $("composer").requestSubmit();
    });
  }

  showVoices(voices, selected) {
    this.#info.voices = voices;
    $("no-voices").hidden = this.#info.model.designs_voices || voices.length > 0;
    $("voices").replaceChildren(...voices.map((voice) => voiceChip(voice.name)));
    const inputs = [...$("voices").querySelectorAll("input")];
    const checked = inputs.find((input) => input.value === selected) ?? inputs[0];
    if (checked) checked.checked = true;
  }

  get voice() {
    return $("voices").querySelector("input:checked")?.value ?? null;
  }

  get format() {
    return this.#info.formats.find(({ name }) => name === $("format").value);
  }

  // The body of POST /v1/audio/speech, without fields that have their default.
  request() {
    const body = { input: $("text").value };
    const instructions = $("instructions").value.trim();
    if (this.voice) body.voice = this.voice;
    if (!$("instructions-field").hidden && instructions) body.instructions = instructions;
    if (!$("language-field").hidden && $("language").value !== "auto") body.language = $("language").value;
    if (Number($("speed").value) !== 1) body.speed = Number($("speed").value);
    if ($("seed").value) body.seed = Number($("seed").value);
    return body;
  }

  // The validation error to show; null for a valid form.
  problem() {
    if (!$("text").value.trim()) return "Enter a text first.";
    if (!$("seed").checkValidity()) return "The seed must be an integer.";
    if (this.#info.model.can_clone && !this.voice) return "This model has no built-in voices: record or upload one first.";
    return null;
  }

  #example(name, text) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "chip", textContent: name });
    button.addEventListener("click", () => {
      $("text").value = text;
      this.#showCount();
      $("text").focus();
    });
    return button;
  }

  #showCount() {
    const count = $("text").value.length;
    $("count").textContent = `${count.toLocaleString("en")} ${count === 1 ? "character" : "characters"}`;
  }
}

function voiceChip(name) {
  const label = document.createElement("label");
  label.className = "chip voice";
  const input = Object.assign(document.createElement("input"), { type: "radio", name: "voice", value: name });
  const caption = Object.assign(document.createElement("span"), { textContent: name });
  label.append(input, caption);
  return label;
}

const capitalized = (text) => text.charAt(0).toUpperCase() + text.slice(1);
