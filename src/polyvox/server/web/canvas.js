// Drawing on a canvas in the page's colours, at the screen's resolution.

export function surface(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  const [columns, rows] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== columns || canvas.height !== rows) Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const style = getComputedStyle(canvas);
  return { context, width, height, colour: (name) => style.getPropertyValue(`--${name}`).trim(), font: style.fontFamily };
}

// A line with the area below it filled; points are [x, y] of the canvas.
export function area(context, points, bottom, colour) {
  if (points.length < 2) return;
  context.beginPath();
  points.forEach(([x, y]) => context.lineTo(x, y));
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 1.75;
  context.lineJoin = "round";
  context.stroke();
  context.lineTo(points.at(-1)[0], bottom);
  context.lineTo(points[0][0], bottom);
  context.globalAlpha = 0.16;
  context.fill();
  context.globalAlpha = 1;
}

// A time series of bounded size: past `maxPoints` every second point is dropped.
export class TimeSeries {
  points = []; // [seconds, value]
  max = 0;
  #maxPoints;

  constructor(maxPoints) {
    this.#maxPoints = maxPoints;
  }

  add(seconds, value) {
    this.points.push([seconds, value]);
    this.max = Math.max(this.max, value);
    if (this.points.length > this.#maxPoints) this.points = this.points.filter((_, i) => i % 2 === 0);
  }
}
