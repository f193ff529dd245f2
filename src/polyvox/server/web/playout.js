// Samples on their way to the loudspeaker. This file is both the audio worklet and, where a page may not have one, a module.

// Seconds that must be there before it plays. A frame of the model is 80 ms, so the first one is enough.
export const FIRST_CUSHION = 0.06;
const WIDEST_CUSHION = 0.5;

// After it ran dry: who plays on with every frame that comes stutters, who waits a little has fewer gaps.
export const widened = (cushion) => Math.min(WIDEST_CUSHION, 2 * cushion);

const REPORT_SAMPLES = 1024;

export class Playout {
  constructor(rate) {
    this.rate = rate;
    this.begin(0);
  }

  begin(utterance) {
    this.utterance = utterance;
    this.cushion = FIRST_CUSHION;
    this.parts = [];
    this.offset = 0; // into the first part
    this.queued = 0;
    this.played = 0;
    this.underruns = 0;
    this.peak = 0;
    this.playing = false;
    this.dry = false; // it ran out, and nothing has come since
    this.ended = false;
    this.unreported = 0;
  }

  take(message) {
    if (message.begin !== undefined) this.begin(message.begin);
    if (message.utterance !== this.utterance) return;
    if (message.samples) {
      this.parts.push(message.samples);
      this.queued += message.samples.length;
      this.dry = false;
    }
    if (message.end) {
      this.ended = true;
      if (this.dry) this.underruns -= 1; // nothing was missing: it had all been played
      this.dry = false;
    }
  }

  fill(output) {
    if (!this.playing) this.playing = this.queued > 0 && (this.ended || this.queued >= this.cushion * this.rate);
    let filled = 0;
    while (this.playing && filled < output.length && this.parts.length) {
      const part = this.parts[0];
      const count = Math.min(output.length - filled, part.length - this.offset);
      for (let i = 0; i < count; i++) {
        const value = part[this.offset + i] / 32768;
        output[filled + i] = value;
        if (Math.abs(value) > this.peak) this.peak = Math.abs(value);
      }
      filled += count;
      this.offset += count;
      if (this.offset === part.length) {
        this.parts.shift();
        this.offset = 0;
      }
    }
    output.fill(0, filled);
    this.queued -= filled;
    this.played += filled;
    if (this.playing && filled < output.length) {
      this.playing = false;
      this.dry = !this.ended;
      if (this.dry) {
        this.underruns += 1;
        this.cushion = widened(this.cushion);
      }
    }
    this.unreported += output.length;
  }

  // What there is to tell, now and then.
  report() {
    if (this.unreported < REPORT_SAMPLES) return null;
    this.unreported = 0;
    const { utterance, queued, played, underruns, peak } = this;
    return { utterance, queued, played, underruns, peak, finished: this.ended && queued === 0 };
  }
}

if (typeof registerProcessor === "function") {
  registerProcessor(
    "polyvox-playout",
    class extends AudioWorkletProcessor {
      constructor() {
        super();
        this.playout = new Playout(sampleRate);
        this.port.onmessage = (event) => this.playout.take(event.data);
      }

      process(_, [[output]]) {
        this.playout.fill(output);
        const report = this.playout.report();
        if (report) this.port.postMessage(report);
        return true;
      }
    },
  );
}
