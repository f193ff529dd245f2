// The audio worklet of the microphone: converts what the device records into 16-bit chunks at a fixed rate.

const CHUNK_SECONDS = 0.04;

// Resamples by the average over each output sample's time, which keeps speech and needs no state beyond one sum.
class CaptureBuffer {
  constructor(inputRate, outputRate) {
    this.step = outputRate / inputRate; // output samples per input sample
    this.chunkSize = Math.round(CHUNK_SECONDS * outputRate);
    this.sum = 0; // of the input, each sample weighted by its share of the output sample
    this.filled = 0; // part of the output sample, 0 to 1
    this.begin();
  }

  begin() {
    this.samples = new Int16Array(this.chunkSize);
    this.length = 0;
    this.peak = 0;
  }

  // Adds recorded samples. Returns the chunks that are complete.
  push(input) {
    const chunks = [];
    for (const value of input) {
      let left = this.step;
      while (this.filled + left >= 1) {
        const share = 1 - this.filled;
        this.add(this.sum + share * value);
        if (this.length === this.chunkSize) {
          chunks.push({ samples: this.samples, peak: this.peak });
          this.begin();
        }
        this.sum = this.filled = 0;
        left -= share;
      }
      this.sum += left * value;
      this.filled += left;
    }
    return chunks;
  }

  add(value) {
    const clipped = Math.min(1, Math.max(-1, value));
    this.samples[this.length++] = Math.round(32767 * clipped);
    this.peak = Math.max(this.peak, Math.abs(clipped));
  }
}

registerProcessor(
  "polyvox-capture",
  class extends AudioWorkletProcessor {
    constructor({ processorOptions }) {
      super();
      this.buffer = new CaptureBuffer(sampleRate, processorOptions.sampleRate);
    }

    process([[input]]) {
      for (const chunk of this.buffer.push(input ?? [])) this.port.postMessage(chunk, [chunk.samples.buffer]);
      return true;
    }
  },
);
