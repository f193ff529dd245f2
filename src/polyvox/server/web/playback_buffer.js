// The buffer between the network and the audio device. This file is both the audio worklet and, where a page may not
// have one, a module.

// Seconds to buffer before playback starts. A frame of the model is 80 ms, so the first one is enough.
export const MIN_START_BUFFER = 0.06;
const MAX_START_BUFFER = 0.5;

// After an underrun the start buffer doubles: a longer pause, but fewer of them.
export const doubled = (startBuffer) => Math.min(MAX_START_BUFFER, 2 * startBuffer);

const REPORT_SAMPLES = 1024;

export class PlaybackBuffer {
  constructor(sampleRate) {
    this.sampleRate = sampleRate;
    this.begin(0);
  }

  begin(utterance) {
    this.utterance = utterance;
    this.startBuffer = MIN_START_BUFFER;
    this.chunks = [];
    this.offset = 0; // into the first chunk
    this.queued = 0;
    this.played = 0;
    this.underruns = 0;
    this.peak = 0;
    this.playing = false;
    this.empty = false; // it ran out, and nothing has arrived since
    this.ended = false;
    this.unreported = 0;
  }

  receive(message) {
    if (message.begin !== undefined) this.begin(message.begin);
    if (message.utterance !== this.utterance) return;
    if (message.samples) {
      this.chunks.push(message.samples);
      this.queued += message.samples.length;
      this.empty = false;
      this.ended = false;
    }
    if (message.end) {
      this.ended = true;
      if (this.empty) this.underruns -= 1; // nothing was missing: all of it had been played
      this.empty = false;
    }
  }

  fill(output) {
    if (!this.playing) {
      this.playing = this.queued > 0 && (this.ended || this.queued >= this.startBuffer * this.sampleRate);
    }
    let filled = 0;
    while (this.playing && filled < output.length && this.chunks.length) {
      const chunk = this.chunks[0];
      const count = Math.min(output.length - filled, chunk.length - this.offset);
      for (let i = 0; i < count; i++) {
        const value = chunk[this.offset + i] / 32768;
        output[filled + i] = value;
        if (Math.abs(value) > this.peak) this.peak = Math.abs(value);
      }
      filled += count;
      this.offset += count;
      if (this.offset === chunk.length) {
        this.chunks.shift();
        this.offset = 0;
      }
    }
    output.fill(0, filled);
    this.queued -= filled;
    this.played += filled;
    if (this.playing && filled < output.length) {
      this.playing = false;
      this.empty = !this.ended;
      if (this.empty) {
        this.underruns += 1;
        this.startBuffer = doubled(this.startBuffer);
      }
    }
    this.unreported += output.length;
  }

  // The state, once every REPORT_SAMPLES; null in between.
  report() {
    if (this.unreported < REPORT_SAMPLES) return null;
    this.unreported = 0;
    const { utterance, queued, played, underruns, peak } = this;
    return { utterance, queued, played, underruns, peak, finished: this.ended && queued === 0 };
  }
}

if (typeof registerProcessor === "function") {
  registerProcessor(
    "polyvox-playback",
    class extends AudioWorkletProcessor {
      constructor() {
        super();
        this.buffer = new PlaybackBuffer(sampleRate);
        this.port.onmessage = (event) => this.buffer.receive(event.data);
      }

      process(_, [[output]]) {
        this.buffer.fill(output);
        const report = this.buffer.report();
        if (report) this.port.postMessage(report);
        return true;
      }
    },
  );
}
