// Audio output: one utterance at a time, gapless, at the model's sample rate.

import { PlaybackBuffer } from "./playback_buffer.js";

const SCRIPT_BLOCK = 1024; // samples of a block without an audio worklet

export class Player {
  #context = null;
  #connected = null; // promise of #post
  #post = null; // sends a message to the playback buffer
  #utterance = 0;
  #onReport = () => {};

  // Must be called from a click before the first audio: browsers block audio without one.
  async open(sampleRate) {
    if (this.#context?.sampleRate !== sampleRate) {
      this.#context?.close();
      this.#context = new AudioContext({ sampleRate, latencyHint: "interactive" });
      this.#connected = this.#connect(this.#context);
    }
    this.#context.resume(); // not awaited: it settles only once the browser allows audio
    try {
      this.#post = await this.#connected;
    } catch (error) {
      this.#context = null; // the next call tries again
      throw error;
    }
  }

  // Opens the output if it is not open. onReport gets {queued, played, underruns, peak, finished}.
  async begin(sampleRate, onReport) {
    const utterance = ++this.#utterance;
    this.#onReport = onReport;
    await this.open(sampleRate);
    this.#post({ begin: utterance, utterance });
    return utterance;
  }

  push(utterance, samples) {
    this.#post({ utterance, samples });
  }

  // All samples were pushed, or all for now: what is buffered is played without waiting for more.
  end(utterance) {
    this.#post({ utterance, end: true });
  }

  // Silences the utterance at once, unless another one has replaced it.
  stop(utterance) {
    if (utterance !== this.#utterance) return;
    this.#utterance += 1;
    this.#onReport = () => {};
    this.#post?.({ begin: this.#utterance, utterance: this.#utterance });
  }

  async #connect(context) {
    const onReport = (report) => report.utterance === this.#utterance && this.#onReport(report);
    if (context.audioWorklet) {
      await context.audioWorklet.addModule(new URL("playback_buffer.js", import.meta.url));
      const node = new AudioWorkletNode(context, "polyvox-playback", { numberOfInputs: 0, outputChannelCount: [1] });
      node.port.onmessage = (event) => onReport(event.data);
      node.connect(context.destination);
      return (message) => node.port.postMessage(message);
    }
    // Pages loaded over plain http from another machine have no worklet.
    const buffer = new PlaybackBuffer(context.sampleRate);
    const node = context.createScriptProcessor(SCRIPT_BLOCK, 0, 1);
    node.onaudioprocess = (event) => {
      buffer.fill(event.outputBuffer.getChannelData(0));
      const report = buffer.report();
      if (report) onReport(report);
    };
    node.connect(context.destination);
    return (message) => buffer.receive(message);
  }
}
