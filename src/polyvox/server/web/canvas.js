// A canvas in the page's colours and at the screen's own resolution.

export function surface(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  const [columns, rows] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== columns || canvas.height !== rows) Object.assign(canvas, { width: columns, height: rows });
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const style = getComputedStyle(canvas);
  return { pen, width, height, colour: (name) => style.getPropertyValue(`--${name}`).trim(), font: style.fontFamily };
}

// A line with the ground below it filled; points are [x, y] of the canvas.
export function area(pen, points, floor, colour) {
  if (points.length < 2) return;
  pen.beginPath();
  points.forEach(([x, y]) => pen.lineTo(x, y));
  pen.strokeStyle = pen.fillStyle = colour;
  pen.lineWidth = 1.75;
  pen.lineJoin = "round";
  pen.stroke();
  pen.lineTo(points.at(-1)[0], floor);
  pen.lineTo(points[0][0], floor);
  pen.globalAlpha = 0.16;
  pen.fill();
  pen.globalAlpha = 1;
}

// Points of a line that grows: when there are too many, every second one goes.
export class Trace {
  points = []; // [seconds, value]
  highest = 0;
  #most;

  constructor(most) {
    this.#most = most;
  }

  add(seconds, value) {
    this.points.push([seconds, value]);
    this.highest = Math.max(this.highest, value);
    if (this.points.length > this.#most) this.points = this.points.filter((_, i) => i % 2 === 0);
  }
}
