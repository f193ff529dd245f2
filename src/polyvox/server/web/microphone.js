// The microphone: opened only when it is used, as 16-bit samples at a fixed rate with their level.

import { TimeoutError } from "./timeouts.js";

const START_SECONDS = 10; // for the browser to start its audio, once the microphone is allowed
const PROBLEMS = {
  NotAllowedError: "The microphone was denied. Allow it in the browser's settings of this page",
  NotFoundError: "No microphone was found. Connect one",
  NotReadableError: "The microphone is in use by another program. Close that program",
};
const INSECURE = "Browsers allow the microphone only on https or localhost. Open this page there";

export class MicrophoneError extends Error {}

// The stream of the microphone. Throws a MicrophoneError, which ends with the alternative: "type your message".
export async function openMicrophone(constraints, alternative) {
  if (!navigator.mediaDevices) throw new MicrophoneError(`${INSECURE}, or ${alternative}.`);
  try {
    return await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, ...constraints } });
  } catch (error) {
    const problem = PROBLEMS[error.name];
    throw new MicrophoneError(problem ? `${problem}, or ${alternative}.` : `The microphone cannot be used: ${error.message}`);
  }
}

export const closeMicrophone = (stream) => stream.getTracks().forEach((track) => track.stop());

// Samples of the microphone without echo, until it is closed.
export class MicrophoneCapture {
  #stream;
  #context = new AudioContext();

  // Throws a MicrophoneError. onSamples gets an Int16Array at the sample rate and its peak, 0 to 1; onEnd is called when
  // the microphone is removed or no longer allowed.
  static async open(sampleRate, onSamples, onEnd) {
    const constraints = { echoCancellation: true, noiseSuppression: true, autoGainControl: true };
    const stream = await openMicrophone(constraints, "type your message");
    const capture = new MicrophoneCapture(stream);
    try {
      await capture.#start(sampleRate, onSamples, onEnd);
    } catch (error) {
      capture.close();
      throw new MicrophoneError(`The microphone cannot be used: ${error.message}`);
    }
    return capture;
  }

  constructor(stream) {
    this.#stream = stream;
  }

  close() {
    closeMicrophone(this.#stream);
    if (this.#context.state !== "closed") this.#context.close();
  }

  async #start(sampleRate, onSamples, onEnd) {
    const context = this.#context;
    let timer = null;
    const timeout = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new TimeoutError(START_SECONDS)), START_SECONDS * 1000);
    });
    const started = Promise.all([context.resume(), context.audioWorklet.addModule(new URL("capture_buffer.js", import.meta.url))]);
    await Promise.race([started, timeout]).finally(() => clearTimeout(timer));
    const node = new AudioWorkletNode(context, "polyvox-capture", { numberOfOutputs: 0, processorOptions: { sampleRate } });
    node.port.onmessage = ({ data: { samples, peak } }) => onSamples(samples, peak);
    context.createMediaStreamSource(this.#stream).connect(node);
    this.#stream.getAudioTracks()[0].addEventListener("ended", onEnd);
  }
}
