// The dialog for a new voice: recorded or uploaded, stored by the server only with the speaker's consent.

import { addVoice, errorMessage } from "./api.js";

const MAX_SECONDS = 30; // of a recording that a voice is cloned from
const $ = (id) => document.getElementById(id);

export class VoiceDialog {
  #blob = null;
  #fileName = "";
  #recorder = null;
  #limits;
  #onSaved;

  constructor(limits, onSaved) {
    this.#limits = limits;
    this.#onSaved = onSaved;
    const maxSeconds = Math.min(MAX_SECONDS, limits.audio_seconds);
    $("voice-hint").textContent = `3 to ${maxSeconds} seconds of one speaker, without music or noise.`;
    $("record").hidden = !navigator.mediaDevices; // only pages over https or from localhost have it
    $("new-voice").addEventListener("click", () => this.#open());
    $("voice-cancel").addEventListener("click", () => $("voice-dialog").close());
    $("voice-dialog").addEventListener("close", () => this.#recorder?.stop());
    $("record").addEventListener("click", () => (this.#recorder ? this.#recorder.stop() : this.#record(maxSeconds)));
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
    this.#showProblem(null);
    $("voice-dialog").showModal();
  }

  async #record(maxSeconds) {
    let microphone;
    $("record").disabled = true; // while the browser asks for permission
    try {
      microphone = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    } catch {
      this.#showProblem("The microphone is not available: permission was denied.");
      return;
    } finally {
      $("record").disabled = false;
    }
    if (!$("voice-dialog").open) {
      for (const track of microphone.getTracks()) track.stop();
      return;
    }
    const chunks = [];
    const recorder = new MediaRecorder(microphone);
    const began = performance.now();
    const show = () => {
      const seconds = (performance.now() - began) / 1000;
      $("recorded").textContent = `${seconds.toFixed(0)} s of ${maxSeconds} s`;
      if (seconds >= maxSeconds && recorder.state === "recording") recorder.stop();
    };
    const timer = setInterval(show, 250);
    this.#recorder = recorder;
    recorder.ondataavailable = (event) => chunks.push(event.data);
    recorder.onstop = () => {
      clearInterval(timer);
      for (const track of microphone.getTracks()) track.stop();
      this.#recorder = null;
      this.#showRecording("Record again", false);
      const extension = recorder.mimeType.includes("mp4") ? "m4a" : recorder.mimeType.includes("ogg") ? "ogg" : "webm";
      this.#use(new Blob(chunks, { type: recorder.mimeType }), `recording.${extension}`, `${((performance.now() - began) / 1000).toFixed(1)} s recorded`);
    };
    recorder.start();
    this.#showRecording("Stop", true);
    show();
  }

  #showRecording(caption, recording) {
    $("record").querySelector("span").textContent = caption;
    $("record").dataset.recording = recording;
  }

  #use(blob, fileName, description) {
    if (blob.size > this.#limits.audio_bytes) {
      this.#showProblem(`The file is too large: ${megabytes(blob.size)}, at most ${megabytes(this.#limits.audio_bytes)}.`);
      return;
    }
    this.#blob = blob;
    this.#fileName = fileName;
    this.#showProblem(null);
    $("recorded").textContent = description;
    URL.revokeObjectURL($("preview").src);
    $("preview").src = URL.createObjectURL(blob);
    $("preview").hidden = false;
  }

  async #save() {
    if (this.#blob === null) {
      this.#showProblem("Record a voice or choose a file first.");
      return;
    }
    $("voice-save").disabled = true;
    try {
      const consent = `Confirmed in the playground on ${new Date().toISOString().slice(0, 10)}: the speaker is me or has agreed.`;
      const fields = { name: $("voice-name").value.trim(), consent, ref_text: $("transcript").value.trim() };
      const voice = await addVoice(fields, this.#blob, this.#fileName);
      $("voice-dialog").close();
      await this.#onSaved(voice.name);
    } catch (error) {
      this.#showProblem(errorMessage(error));
    } finally {
      $("voice-save").disabled = false;
    }
  }

  #showProblem(problem) {
    $("voice-problem").hidden = problem === null;
    $("voice-problem").textContent = problem ?? "";
  }
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
