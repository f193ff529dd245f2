// The player's lead over time, with the moments when it ran dry.

import { Trace, area, surface } from "./canvas.js";

const MOST_POINTS = 1500;
const LEAST_SECONDS = 4;
const LEFT = 34;
const BOTTOM = 22;
const TOP = 8;
const DRY_PIXELS = 18; // the height of a mark

export class LeadChart {
  #canvas;

  constructor(canvas) {
    this.#canvas = canvas;
    this.reset();
  }

  reset() {
    this.trace = new Trace(MOST_POINTS);
    this.dry = []; // when
    this.first = null; // when the first sound came
    this.draw();
  }

  draw() {
    const { pen, width, height, colour, font } = surface(this.#canvas);
    const last = this.trace.points.at(-1)?.[0] ?? 0;
    const seconds = Math.max(LEAST_SECONDS, last * 1.04);
    const highest = round(Math.max(1, this.trace.highest * 1.1));
    const floor = height - BOTTOM;
    const x = (at) => LEFT + (at / seconds) * (width - LEFT - 4);
    const y = (lead) => floor - (lead / highest) * (floor - TOP);
    pen.font = `11px ${font}`;

    pen.strokeStyle = colour("line");
    pen.fillStyle = colour("quiet");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const lead of [0, highest / 2, highest]) {
      line(pen, LEFT, y(lead), width, y(lead));
      pen.fillText(`${+lead.toFixed(1)} s`, LEFT - 7, y(lead));
    }
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    const step = round(seconds / 8);
    for (let at = step; at < seconds * 0.97; at += step) pen.fillText(`${+at.toFixed(1)}`, x(at), height - 6);

    area(pen, this.trace.points.map(([at, lead]) => [x(at), y(lead)]), floor, colour("accent"));
    if (this.first !== null) {
      pen.fillStyle = colour("accent");
      dot(pen, x(this.first), floor);
    }
    pen.strokeStyle = pen.fillStyle = colour("warn");
    pen.lineWidth = 1.5;
    for (const at of this.dry) {
      line(pen, x(at), floor - DRY_PIXELS, x(at), floor);
      dot(pen, x(at), floor);
    }
  }
}

function line(pen, fromX, fromY, toX, toY) {
  pen.beginPath();
  pen.moveTo(fromX, Math.round(fromY) + 0.5);
  pen.lineTo(toX, Math.round(toY) + 0.5);
  pen.stroke();
}

function dot(pen, x, y) {
  pen.beginPath();
  pen.arc(x, y, 3.5, 0, 2 * Math.PI);
  pen.fill();
}

// The next of 1, 2, 5, 10, 20, 50 …
function round(value) {
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((n) => n * size >= value * 0.999) * size;
}
