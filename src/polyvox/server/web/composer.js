// The form: it shows what the loaded checkpoint can do, and gives the request that it stands for.

const EXAMPLES = {
  "A greeting": "Good morning! It is lovely to hear from you. How did you sleep?",
  "A story": "The lighthouse had been dark for years. Then, one evening in autumn, somebody lit the lamp again. Nobody in the village could say who it was.",
  "Numbers": "Dr. Lee has 3 cats, owes $12.50, and leaves at 9:45 on May 3rd, 2027.",
};
const DESIGN_HINT = "A warm, low voice of an older man who has told this story many times.";
const STYLE_HINT = "Softly, as if somebody were asleep next door.";

const $ = (id) => document.getElementById(id);

export class Composer {
  #facts = null;

  show(facts) {
    this.#facts = facts;
    const { model, voices, formats, limits } = facts;
    const design = model.kind === "voice_design";
    $("text").maxLength = limits.text;
    if (!$("text").value) $("text").value = Object.values(EXAMPLES)[0];
    $("examples").replaceChildren(...Object.entries(EXAMPLES).map(([name, text]) => this.#example(name, text)));
    $("voice-field").hidden = design;
    $("no-voices").hidden = design || voices.length > 0;
    $("new-voice").hidden = !model.clones;
    this.showVoices(voices, this.voice);
    $("instructions-field").hidden = !model.takes_instructions;
    $("instructions-label").textContent = design ? "Describe the voice" : "How to say it";
    $("instructions").placeholder = design ? DESIGN_HINT : STYLE_HINT;
    if (design && !$("instructions").value) $("instructions").value = DESIGN_HINT;
    $("language-field").hidden = model.languages.filter((name) => name !== "auto").length < 2;
    $("language").replaceChildren(...model.languages.map((name) => new Option(capital(name), name)));
    $("format").replaceChildren(...formats.map(({ name }) => new Option(name.toUpperCase(), name)));
    this.#count();
  }

  listen() {
    $("text").addEventListener("input", () => this.#count());
    $("speed").addEventListener("input", () => {
      $("speed-shown").textContent = `${Number($("speed").value).toFixed(2)}×`;
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !$("voice-dialog").open) $("composer").requestSubmit();
    });
  }

  showVoices(voices, chosen) {
    this.#facts.voices = voices;
    $("no-voices").hidden = this.#facts.model.kind === "voice_design" || voices.length > 0;
    $("voices").replaceChildren(...voices.map((voice) => choice(voice.name)));
    const inputs = [...$("voices").querySelectorAll("input")];
    const checked = inputs.find((input) => input.value === chosen) ?? inputs[0];
    if (checked) checked.checked = true;
  }

  get voice() {
    return $("voices").querySelector("input:checked")?.value ?? null;
  }

  get format() {
    return this.#facts.formats.find(({ name }) => name === $("format").value);
  }

  // What POST /v1/audio/speech is asked, without what the checkpoint would have chosen itself.
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

  // What is missing, in words; null where nothing is.
  problem() {
    if (!$("text").value.trim()) return "There is nothing to say yet: type something.";
    if (!$("seed").checkValidity()) return "A seed is a whole number.";
    if (this.#facts.model.clones && !this.voice) return "This model has no voice of its own: record or upload one first.";
    return null;
  }

  #example(name, text) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "chip", textContent: name });
    button.addEventListener("click", () => {
      $("text").value = text;
      this.#count();
      $("text").focus();
    });
    return button;
  }

  #count() {
    const count = $("text").value.length;
    $("count").textContent = `${count.toLocaleString("en")} ${count === 1 ? "character" : "characters"}`;
  }
}

function choice(name) {
  const label = document.createElement("label");
  label.className = "chip voice";
  const input = Object.assign(document.createElement("input"), { type: "radio", name: "voice", value: name });
  const shown = Object.assign(document.createElement("span"), { textContent: name });
  label.append(input, shown);
  return label;
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
