// The player's lead over time, with its underruns marked.

import { TimeSeries, area, surface } from "./canvas.js";

const MAX_POINTS = 1500;
const MIN_SECONDS = 4;
const LEFT = 34;
const BOTTOM = 22;
const TOP = 8;
const UNDERRUN_PIXELS = 18; // height of a mark

export class LeadChart {
  #canvas;

  constructor(canvas) {
    this.#canvas = canvas;
    this.reset();
  }

  reset() {
    this.series = new TimeSeries(MAX_POINTS);
    this.underruns = []; // times
    this.firstAudio = null; // time
    this.draw();
  }

  draw() {
    const { context, width, height, colour, font } = surface(this.#canvas);
    const last = this.series.points.at(-1)?.[0] ?? 0;
    const seconds = Math.max(MIN_SECONDS, last * 1.04);
    const maxLead = roundUp(Math.max(1, this.series.max * 1.1));
    const bottom = height - BOTTOM;
    const x = (time) => LEFT + (time / seconds) * (width - LEFT - 4);
    const y = (lead) => bottom - (lead / maxLead) * (bottom - TOP);
    context.font = `11px ${font}`;

    context.strokeStyle = colour("line");
    context.fillStyle = colour("quiet");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const lead of [0, maxLead / 2, maxLead]) {
      line(context, LEFT, y(lead), width, y(lead));
      context.fillText(`${+lead.toFixed(1)} s`, LEFT - 7, y(lead));
    }
    context.textAlign = "center";
    context.textBaseline = "alphabetic";
    const step = roundUp(seconds / 8);
    for (let time = step; time < seconds * 0.97; time += step) {
      context.fillText(`${+time.toFixed(1)}`, x(time), height - 6);
    }

    area(context, this.series.points.map(([time, lead]) => [x(time), y(lead)]), bottom, colour("accent"));
    if (this.firstAudio !== null) {
      context.fillStyle = colour("accent");
      dot(context, x(this.firstAudio), bottom);
    }
    context.strokeStyle = context.fillStyle = colour("warn");
    context.lineWidth = 1.5;
    for (const time of this.underruns) {
      line(context, x(time), bottom - UNDERRUN_PIXELS, x(time), bottom);
      dot(context, x(time), bottom);
    }
  }
}

function line(context, fromX, fromY, toX, toY) {
  context.beginPath();
  context.moveTo(fromX, Math.round(fromY) + 0.5);
  context.lineTo(toX, Math.round(toY) + 0.5);
  context.stroke();
}

function dot(context, x, y) {
  context.beginPath();
  context.arc(x, y, 3.5, 0, 2 * Math.PI);
  context.fill();
}

// Rounds up to 1, 2, 5, 10, 20, 50 …
function roundUp(value) {
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((n) => n * size >= value * 0.999) * size;
}
