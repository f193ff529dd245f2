// Records the microphone: a countdown, then audio with its level, up to a maximum length.

import { MicrophoneError, closeMicrophone, openMicrophone } from "./microphone.js";
import { sleep } from "./timeouts.js";

const COUNTDOWN = 3; // seconds before the recording starts
const LEVEL_MS = 50;
const SILENCE = 0.01; // peak, of 1
const ENDINGS = { mp4: "m4a", ogg: "ogg" };

export class Recorder {
  #stopped = false;
  #recorder = null;
  #onState;

  // onState gets {state, seconds, level}: asking, countdown (seconds left), recording (seconds left).
  constructor(onState) {
    this.#onState = onState;
  }

  // The recording as {blob, fileName, seconds}; null if it was stopped before it began. Throws a MicrophoneError.
  async record(maxSeconds) {
    this.#onState({ state: "asking" });
    const microphone = await openMicrophone({}, "upload a file");
    const context = new AudioContext();
    try {
      for (let left = COUNTDOWN; left > 0 && !this.#stopped; left--) {
        this.#onState({ state: "countdown", seconds: left, level: 0 });
        await sleep(1000);
      }
      if (this.#stopped) return null;
      return await this.#capture(microphone, measure(context, microphone), maxSeconds);
    } finally {
      closeMicrophone(microphone);
      context.close();
    }
  }

  stop() {
    this.#stopped = true;
    if (this.#recorder?.state === "recording") this.#recorder.stop();
  }

  #capture(microphone, level, maxSeconds) {
    return new Promise((resolve, reject) => {
      const recorder = (this.#recorder = new MediaRecorder(microphone));
      const chunks = [];
      const began = performance.now();
      let peak = 0;
      const seconds = () => (performance.now() - began) / 1000;
      const timer = setInterval(() => {
        const now = level();
        peak = Math.max(peak, now);
        this.#onState({ state: "recording", seconds: Math.max(0, maxSeconds - seconds()), level: now });
        if (seconds() >= maxSeconds) this.stop();
      }, LEVEL_MS);
      recorder.ondataavailable = (event) => chunks.push(event.data);
      recorder.onstop = () => {
        clearInterval(timer);
        if (peak < SILENCE) return reject(new MicrophoneError("The recording is silent. Check the microphone, then record again."));
        const type = recorder.mimeType;
        const ending = Object.entries(ENDINGS).find(([name]) => type.includes(name))?.[1] ?? "webm";
        resolve({ blob: new Blob(chunks, { type }), fileName: `recording.${ending}`, seconds: seconds() });
      };
      recorder.start();
    });
  }
}

// A function that returns the peak of the last samples, 0 to 1.
function measure(context, microphone) {
  const analyser = new AnalyserNode(context, { fftSize: 2048 });
  context.createMediaStreamSource(microphone).connect(analyser);
  const samples = new Float32Array(analyser.fftSize);
  return () => {
    analyser.getFloatTimeDomainData(samples);
    return samples.reduce((max, sample) => Math.max(max, Math.abs(sample)), 0);
  };
}
