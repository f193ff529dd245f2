// The dialog for a new voice: recorded or uploaded, stored by the server only with the speaker's consent.

import { addVoice, errorMessage } from "./api.js";
import { Notice } from "./notice.js";
import { Recorder } from "./recorder.js";

const MAX_SECONDS = 30; // of a recording that a voice is cloned from
const MIN_SECONDS = 1;
const PASSAGE =
  "The harbour was quiet that morning. A few boats rocked gently on the water, and somewhere behind the hills a church bell counted seven.";
const $ = (id) => document.getElementById(id);

export class VoiceDialog {
  #blob = null;
  #fileName = "";
  #recorder = null;
  #limits;
  #maxSeconds;
  #onSaved;
  #problem = new Notice($("voice-problem"));

  constructor(limits, onSaved) {
    this.#limits = limits;
    this.#onSaved = onSaved;
    this.#maxSeconds = Math.min(MAX_SECONDS, limits.audio_seconds);
    $("voice-hint").textContent = `3 to ${this.#maxSeconds} seconds of one speaker, without music or noise.`;
    $("passage").textContent = PASSAGE;
    $("record-field").hidden = !navigator.mediaDevices; // only pages over https or from localhost have it
    $("no-microphone").hidden = !$("record-field").hidden;
    $("new-voice").addEventListener("click", () => this.#open());
    $("voice-cancel").addEventListener("click", () => $("voice-dialog").close());
    $("voice-dialog").addEventListener("close", () => this.#recorder?.stop());
    $("record").addEventListener("click", () => (this.#recorder ? this.#recorder.stop() : this.#record()));
    $("recording").addEventListener("change", () => {
      const [file] = $("recording").files;
      if (file) this.#use(file, file.name, file.name);
    });
    $("voice-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
  }

  #open() {
    $("voice-form").reset();
    $("preview").hidden = true;
    $("recorded").textContent = "";
    this.#blob = null;
    this.#problem.hide();
    this.#showRecorder({ state: "idle" });
    $("voice-dialog").showModal();
  }

  async #record() {
    this.#problem.hide();
    const recorder = (this.#recorder = new Recorder((change) => this.#showRecorder(change)));
    try {
      const recording = await recorder.record(this.#maxSeconds);
      if (recording === null || !$("voice-dialog").open) return;
      if (recording.seconds < MIN_SECONDS) return this.#problem.show("The recording is too short. Record at least 3 seconds.");
      this.#use(recording.blob, recording.fileName, `${recording.seconds.toFixed(1)} s recorded`);
      if (!$("transcript").value) $("transcript").value = PASSAGE;
    } catch (error) {
      this.#problem.show(error.message);
    } finally {
      this.#recorder = null;
      this.#showRecorder({ state: "idle" });
    }
  }

  #showRecorder({ state, seconds = 0, level = 0 }) {
    const again = this.#blob === null ? "Record" : "Record again";
    const captions = { idle: again, asking: "Allow the microphone …", countdown: "Cancel", recording: "Stop" };
    const times = { countdown: `Starts in ${seconds}`, recording: `${Math.ceil(seconds)} s left` };
    $("record-field").dataset.state = state;
    $("record").querySelector("span").textContent = captions[state];
    $("level").style.setProperty("--level", String(level));
    $("level").setAttribute("aria-valuenow", String(Math.round(100 * level)));
    $("record-time").textContent = times[state] ?? "";
    $("voice-save").disabled = state !== "idle";
  }

  #use(blob, fileName, description) {
    if (blob.size > this.#limits.audio_bytes) {
      const text = `The file is too large: ${megabytes(blob.size)}. Choose one of at most ${megabytes(this.#limits.audio_bytes)}.`;
      return this.#problem.show(text);
    }
    this.#blob = blob;
    this.#fileName = fileName;
    this.#problem.hide();
    $("recorded").textContent = description;
    URL.revokeObjectURL($("preview").src);
    $("preview").src = URL.createObjectURL(blob);
    $("preview").hidden = false;
  }

  async #save() {
    if (this.#blob === null) return this.#problem.show("Record a voice or upload a file first.");
    this.#problem.hide();
    $("voice-save").disabled = true;
    $("voice-save").textContent = "Saving …";
    try {
      const consent = `Confirmed in the playground on ${new Date().toISOString().slice(0, 10)}: the speaker is me or has agreed.`;
      const fields = { name: $("voice-name").value.trim(), consent, ref_text: $("transcript").value.trim() };
      const voice = await addVoice(fields, this.#blob, this.#fileName);
      $("voice-dialog").close();
      await this.#onSaved(voice.name);
    } catch (error) {
      this.#problem.show(errorMessage(error), () => this.#save(), error.retryAfter);
    } finally {
      $("voice-save").disabled = false;
      $("voice-save").textContent = "Save voice";
    }
  }
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
