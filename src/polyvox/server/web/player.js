// The loudspeaker: one utterance at a time, gapless, at the model's own rate.

import { Playout } from "./playout.js";

const OLD_BLOCK = 1024; // samples of a block where there is no worklet

export class Player {
  #context = null;
  #tell = null; // sends a message to the playout
  #utterance = 0;
  #onReport = () => {};

  // Call it from a click: browsers let no page speak unasked. onReport gets {queued, played, underruns, peak, finished}.
  async begin(rate, onReport) {
    const utterance = ++this.#utterance;
    this.#onReport = onReport;
    if (this.#context === null || this.#context.sampleRate !== rate) {
      await this.#context?.close();
      this.#context = new AudioContext({ sampleRate: rate, latencyHint: "interactive" });
      this.#tell = await this.#connect();
    }
    this.#tell({ begin: utterance, utterance });
    this.#context.resume(); // settles only once the browser lets it, so nobody waits for it
    return utterance;
  }

  push(utterance, samples) {
    this.#tell({ utterance, samples });
  }

  end(utterance) {
    this.#tell({ utterance, end: true });
  }

  // Silent at once, unless another utterance has taken its place.
  stop(utterance) {
    if (utterance !== this.#utterance) return;
    this.#utterance += 1;
    this.#onReport = () => {};
    this.#tell?.({ begin: this.#utterance, utterance: this.#utterance });
  }

  async #connect() {
    const context = this.#context;
    const heard = (report) => report.utterance === this.#utterance && this.#onReport(report);
    if (context.audioWorklet) {
      await context.audioWorklet.addModule(new URL("playout.js", import.meta.url));
      const node = new AudioWorkletNode(context, "polyvox-playout", { numberOfInputs: 0, outputChannelCount: [1] });
      node.port.onmessage = (event) => heard(event.data);
      node.connect(context.destination);
      return (message) => node.port.postMessage(message);
    }
    // Pages that came over plain http from another machine have no worklet.
    const playout = new Playout(context.sampleRate);
    const node = context.createScriptProcessor(OLD_BLOCK, 0, 1);
    node.onaudioprocess = (event) => {
      playout.fill(event.outputBuffer.getChannelData(0));
      const report = playout.report();
      if (report) heard(report);
    };
    node.connect(context.destination);
    return (message) => playout.take(message);
  }
}
