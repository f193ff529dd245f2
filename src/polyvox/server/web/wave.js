// The sound as it arrives: what was heard is strong, what waits to be heard is pale.

import { surface } from "./canvas.js";

const MOST_BARS = 400;
const FIRST_BAR_SECONDS = 0.04;
const LEAST_SECONDS = 4;
const BAR_PIXELS = 4;

export class Wave {
  #canvas;

  constructor(canvas) {
    this.#canvas = canvas;
    this.reset(24_000);
  }

  reset(rate) {
    this.rate = rate;
    this.peaks = [];
    this.size = FIRST_BAR_SECONDS * rate; // samples of a bar
    this.count = 0;
    this.draw(0);
  }

  push(samples) {
    for (const sample of samples) {
      const bar = Math.floor(this.count++ / this.size);
      this.peaks[bar] = Math.max(this.peaks[bar] ?? 0, Math.abs(sample) / 32768);
    }
    while (this.peaks.length > MOST_BARS) {
      this.size *= 2;
      this.peaks = this.peaks.flatMap((peak, i) => (i % 2 ? [] : Math.max(peak, this.peaks[i + 1] ?? 0)));
    }
  }

  draw(heardSamples) {
    const { pen, width, height, colour } = surface(this.#canvas);
    const shown = Math.max(LEAST_SECONDS * this.rate, this.peaks.length * this.size);
    const bars = Math.floor(width / BAR_PIXELS);
    const loudest = Math.max(0.2, ...this.peaks);
    for (let i = 0; i < bars; i++) {
      const from = ((i / bars) * shown) / this.size;
      const to = Math.max(from + 1, (((i + 1) / bars) * shown) / this.size);
      const here = this.peaks.slice(Math.floor(from), Math.floor(to));
      const tall = here.length ? Math.max(2, (Math.max(...here) / loudest) * (height - 4)) : 2;
      const heard = (i / bars) * shown < heardSamples;
      pen.fillStyle = colour(here.length ? (heard ? "accent" : "wave") : "line");
      pen.beginPath();
      pen.roundRect(i * BAR_PIXELS, (height - tall) / 2, BAR_PIXELS - 1.5, tall, 1.2);
      pen.fill();
    }
  }
}
