// The microphone's controls: push to talk (hold the button or the space bar) or hands-free, with a level meter.

import { MicrophoneCapture } from "./microphone.js";
import { SAMPLE_RATE } from "./realtime.js";
import { StallTimer } from "./timeouts.js";

const MIN_TALK_SECONDS = 0.3; // a shorter press was a mistake
const IDLE_SECONDS = 30; // after which an unused microphone is closed
const CAPTIONS = {
  push: { off: "Hold to talk", asking: "Allow the microphone …", on: "Release to send" },
  free: { off: "Start listening", asking: "Allow the microphone …", on: "Stop listening" },
};
const HINTS = {
  push: "Hold the button or the space bar while you speak.",
  free: "Speak when you like. Talking interrupts the answer.",
};
const NO_STT = "This server does not transcribe speech. Start it with --stt to speak with it.";
const TAKES_SPACE = "input, textarea, select, button, a, summary, [contenteditable]";
const $ = (id) => document.getElementById(id);

export class TalkControl {
  state = "off"; // asking: for the microphone; on: what is said is sent
  #conversation;
  #onChange;
  #onProblem;
  #capture = null; // open microphone
  #opening = 0; // number of the attempt to open it
  #pressed = false; // the button or the space bar
  #talked = 0; // seconds of audio that were sent
  #idle = null; // closes the microphone

  // onProblem gets a message.
  constructor(conversation, onChange, onProblem) {
    this.#conversation = conversation;
    $("talk").disabled = $("talk-modes").disabled = !conversation.takesSpeech;
    this.#onChange = onChange;
    this.#onProblem = onProblem;
    const button = $("talk");
    button.addEventListener("pointerdown", (event) => event.button === 0 && this.#press(event));
    for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) button.addEventListener(name, () => this.#release());
    button.addEventListener("click", () => this.mode === "free" && this.#toggle());
    button.addEventListener("contextmenu", (event) => event.preventDefault()); // a long press on a phone
    button.addEventListener("keydown", (event) => this.#onKey(event, ["Enter", " "]));
    button.addEventListener("blur", () => this.#release());
    document.addEventListener("keydown", (event) => !event.target.closest(TAKES_SPACE) && this.#onKey(event, [" "]));
    document.addEventListener("keyup", (event) => ["Enter", " "].includes(event.key) && this.#release());
    window.addEventListener("blur", () => this.#release());
    $("talk-modes").addEventListener("change", () => this.stop());
    this.#show();
  }

  get mode() {
    return document.querySelector("input[name=talk-mode]:checked").value;
  }

  // Closes the microphone if the conversation has ended hands-free mode.
  update() {
    if (this.mode === "free" && this.state === "on" && !this.#conversation.handsFree) this.stop();
  }

  // Closes the microphone; what was not sent is discarded.
  stop() {
    const wasOn = this.state === "on";
    this.#pressed = false;
    this.#closeMicrophone();
    this.#setState("off");
    if (wasOn && this.#conversation.handsFree) this.#conversation.stopHandsFree();
    else if (wasOn) this.#conversation.cancelTalk();
  }

  #onKey(event, keys) {
    if (!keys.includes(event.key) || event.repeat || this.mode !== "push" || $("conversation").offsetParent === null) return;
    event.preventDefault();
    this.#press(event);
  }

  async #press(event) {
    if (this.mode !== "push" || $("talk").disabled || this.#pressed) return;
    if (event.pointerId !== undefined) $("talk").setPointerCapture(event.pointerId);
    this.#pressed = true;
    this.#idle?.clear();
    const open = await this.#openMicrophone();
    if (open && !this.#pressed) this.#closeWhenIdle(); // the button was released before the microphone was allowed
    if (!open || !this.#pressed) return this.#setState("off");
    this.#talked = 0;
    this.#conversation.beginTalk();
    this.#setState("on");
  }

  #release() {
    if (!this.#pressed) return;
    this.#pressed = false;
    if (this.state !== "on") return;
    if (this.#talked < MIN_TALK_SECONDS) {
      this.#conversation.cancelTalk();
      this.#onProblem(HINTS.push);
    } else this.#conversation.endTalk();
    this.#setState("off");
    this.#closeWhenIdle();
  }

  #closeWhenIdle() {
    this.#idle?.clear();
    this.#idle = new StallTimer(IDLE_SECONDS, () => this.#closeMicrophone());
  }

  async #toggle() {
    if (this.state !== "off") return this.stop();
    if (!(await this.#openMicrophone())) return this.#setState("off");
    this.#conversation.startHandsFree();
    this.#setState("on");
  }

  async #openMicrophone() {
    if (this.#capture) return true;
    const number = ++this.#opening;
    this.#setState("asking");
    try {
      const capture = await MicrophoneCapture.open(SAMPLE_RATE, (...chunk) => this.#receive(...chunk), () => this.#lose());
      if (number === this.#opening) this.#capture = capture;
      else capture.close(); // no longer wanted
    } catch (error) {
      if (number === this.#opening) this.#onProblem(error.message);
    }
    return number === this.#opening && this.#capture !== null;
  }

  #closeMicrophone() {
    this.#opening += 1;
    this.#idle?.clear();
    this.#capture?.close();
    this.#capture = null;
  }

  #lose() {
    this.stop();
    this.#onProblem("The microphone was disconnected.");
  }

  #receive(samples, peak) {
    if (this.state !== "on") return;
    this.#talked += samples.length / SAMPLE_RATE;
    this.#conversation.appendAudio(samples);
    this.#showLevel(peak);
  }

  #setState(state) {
    this.state = state;
    this.#show();
    this.#onChange();
  }

  #show() {
    const { mode, state } = this;
    $("talk").dataset.state = state;
    $("talk").querySelector("span").textContent = CAPTIONS[mode][state];
    if (mode === "free") $("talk").setAttribute("aria-pressed", String(state === "on"));
    else $("talk").removeAttribute("aria-pressed");
    $("talk-hint").textContent = this.#conversation.takesSpeech ? HINTS[mode] : NO_STT;
    if (state !== "on") this.#showLevel(0);
  }

  #showLevel(peak) {
    const level = Math.sqrt(peak); // quiet speech is visible too
    $("talk-level").style.setProperty("--level", String(level));
    $("talk-level").setAttribute("aria-valuenow", String(Math.round(100 * level)));
  }
}
