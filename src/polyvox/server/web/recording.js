// A new voice: recorded here or brought as a file, kept by the server only with its owner's consent.

import { addVoice, inWords } from "./api.js";

const LONGEST_SECONDS = 30; // that a voice is made from
const $ = (id) => document.getElementById(id);

export class Recording {
  #blob = null;
  #fileName = "";
  #recorder = null;
  #limits;
  #onKept;

  constructor(limits, onKept) {
    this.#limits = limits;
    this.#onKept = onKept;
    const longest = Math.min(LONGEST_SECONDS, limits.audio_seconds);
    $("voice-hint").textContent = `3 to ${longest} seconds of one person who speaks, without music or noise.`;
    $("record").hidden = !navigator.mediaDevices; // which only pages over https, or of this machine, have
    $("new-voice").addEventListener("click", () => this.#open());
    $("voice-cancel").addEventListener("click", () => $("voice-dialog").close());
    $("voice-dialog").addEventListener("close", () => this.#recorder?.stop());
    $("record").addEventListener("click", () => (this.#recorder ? this.#recorder.stop() : this.#record(longest)));
    $("recording").addEventListener("change", () => {
      const [file] = $("recording").files;
      if (file) this.#use(file, file.name, file.name);
    });
    $("voice-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#keep();
    });
  }

  #open() {
    $("voice-form").reset();
    $("preview").hidden = true;
    $("recorded").textContent = "";
    this.#blob = null;
    this.#tell(null);
    $("voice-dialog").showModal();
  }

  async #record(longest) {
    let microphone;
    $("record").disabled = true; // while the browser asks
    try {
      microphone = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    } catch {
      this.#tell("The microphone cannot be used: the browser or you have not allowed it.");
      return;
    } finally {
      $("record").disabled = false;
    }
    if (!$("voice-dialog").open) {
      for (const track of microphone.getTracks()) track.stop();
      return;
    }
    const parts = [];
    const recorder = new MediaRecorder(microphone);
    const began = performance.now();
    const show = () => {
      const seconds = (performance.now() - began) / 1000;
      $("recorded").textContent = `${seconds.toFixed(0)} s of ${longest} s`;
      if (seconds >= longest && recorder.state === "recording") recorder.stop();
    };
    const ticking = setInterval(show, 250);
    this.#recorder = recorder;
    recorder.ondataavailable = (event) => parts.push(event.data);
    recorder.onstop = () => {
      clearInterval(ticking);
      for (const track of microphone.getTracks()) track.stop();
      this.#recorder = null;
      this.#shownAs("Record again", false);
      const ending = recorder.mimeType.includes("mp4") ? "m4a" : recorder.mimeType.includes("ogg") ? "ogg" : "webm";
      this.#use(new Blob(parts, { type: recorder.mimeType }), `recording.${ending}`, `${((performance.now() - began) / 1000).toFixed(1)} s recorded`);
    };
    recorder.start();
    this.#shownAs("Stop", true);
    show();
  }

  #shownAs(word, recording) {
    $("record").querySelector("span").textContent = word;
    $("record").dataset.recording = recording;
  }

  #use(blob, fileName, told) {
    if (blob.size > this.#limits.audio_bytes) {
      this.#tell(`This file has ${megabytes(blob.size)}; the server takes ${megabytes(this.#limits.audio_bytes)}.`);
      return;
    }
    this.#blob = blob;
    this.#fileName = fileName;
    this.#tell(null);
    $("recorded").textContent = told;
    URL.revokeObjectURL($("preview").src);
    $("preview").src = URL.createObjectURL(blob);
    $("preview").hidden = false;
  }

  async #keep() {
    if (this.#blob === null) {
      this.#tell("Record something or choose a file first.");
      return;
    }
    $("voice-save").disabled = true;
    try {
      const consent = `Said in the playground on ${new Date().toISOString().slice(0, 10)}: the speaker is me, or has agreed.`;
      const fields = { name: $("voice-name").value.trim(), consent, ref_text: $("transcript").value.trim() };
      const voice = await addVoice(fields, this.#blob, this.#fileName);
      $("voice-dialog").close();
      await this.#onKept(voice.name);
    } catch (error) {
      this.#tell(inWords(error));
    } finally {
      $("voice-save").disabled = false;
    }
  }

  #tell(problem) {
    $("voice-problem").hidden = problem === null;
    $("voice-problem").textContent = problem ?? "";
  }
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
