// The waveform as it arrives: played samples are dark, buffered samples are pale.

import { surface } from "./canvas.js";

const MAX_BARS = 400;
const FIRST_BAR_SECONDS = 0.04;
const BAR_PIXELS = 4;
const MIN_BAR = 3; // pixels

export class Waveform {
  #canvas;

  constructor(canvas) {
    this.#canvas = canvas;
    this.reset(24_000);
  }

  reset(sampleRate) {
    this.sampleRate = sampleRate;
    this.peaks = [];
    this.barSamples = FIRST_BAR_SECONDS * sampleRate;
    this.count = 0;
  }

  push(samples) {
    for (const sample of samples) {
      const bar = Math.floor(this.count++ / this.barSamples);
      this.peaks[bar] = Math.max(this.peaks[bar] ?? 0, Math.abs(sample) / 32768);
    }
    while (this.peaks.length > MAX_BARS) {
      this.barSamples *= 2;
      this.peaks = this.peaks.flatMap((peak, i) => (i % 2 ? [] : Math.max(peak, this.peaks[i + 1] ?? 0)));
    }
  }

  // `seconds` is the width of the canvas in time.
  draw(playedSeconds, seconds) {
    const { context, width, height, colour } = surface(this.#canvas);
    const shown = seconds * this.sampleRate;
    const bars = Math.floor(width / BAR_PIXELS);
    const loudest = Math.max(0.2, ...this.peaks);
    for (let i = 0; i < bars; i++) {
      const from = ((i / bars) * shown) / this.barSamples;
      const to = Math.max(from + 1, (((i + 1) / bars) * shown) / this.barSamples);
      const peaks = this.peaks.slice(Math.floor(from), Math.floor(to));
      const barHeight = peaks.length ? Math.max(MIN_BAR, (Math.max(...peaks) / loudest) * (height - 4)) : MIN_BAR;
      const played = (i / bars) * seconds < playedSeconds;
      context.fillStyle = colour(peaks.length ? (played ? "accent" : "wave") : "line");
      context.beginPath();
      context.roundRect(i * BAR_PIXELS, (height - barHeight) / 2, BAR_PIXELS - 1.5, barHeight, 1.2);
      context.fill();
    }
  }
}
