// What is heard: the figures, the sound and the lead of one utterance while it goes.

import { LeadChart } from "./chart.js";
import { Wave } from "./wave.js";

const $ = (id) => document.getElementById(id);

export class Heard {
  #chart = new LeadChart($("chart"));
  #wave = new Wave($("wave"));
  #utterance = null;
  #told = "";

  constructor() {
    const redraw = () => this.#draw();
    window.addEventListener("resize", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  begin(utterance) {
    this.#utterance = utterance;
    this.#chart.reset();
    this.#wave.reset(utterance.rate);
    this.#told = "";
    this.update();
  }

  update(samples) {
    const now = this.#utterance;
    if (samples) this.#wave.push(samples);
    if (now.firstSound !== null && (!now.over || now.state === "finished")) {
      this.#chart.first = now.firstSound;
      this.#chart.trace.add(now.elapsed, now.lead);
      while (this.#chart.dry.length < now.underruns) this.#chart.dry.push(now.elapsed);
      this.#chart.dry.length = now.underruns;
    }
    this.#figures(now);
    this.#draw();
    const said = sentence(now);
    if (said !== this.#told) say(said, now.problem !== null);
    this.#told = said;
  }

  #figures(now) {
    $("ttfa").textContent = now.firstSound === null ? "–" : `${Math.round(now.firstSound * 1000)} ms`;
    $("rtf").textContent = now.rtf === null ? "–" : now.rtf.toFixed(2);
    $("rtf-note").textContent = now.rtf ? `${(1 / now.rtf).toFixed(1)}× real time` : "seconds per second";
    $("lead").textContent = now.firstSound === null ? "–" : `${Math.max(0, now.lead).toFixed(2)} s`;
    $("underruns").textContent = now.firstSound === null ? "–" : String(now.underruns);
    $("underruns").dataset.tone = now.underruns ? "warn" : "";
    Object.assign($("heard").dataset, {
      state: now.state,
      received: now.received,
      played: now.played,
      peak: now.peak.toFixed(3),
    });
  }

  #draw() {
    this.#chart.draw();
    this.#wave.draw(this.#utterance?.played ?? 0);
  }
}

export function say(text, warn = false) {
  $("status").textContent = text;
  $("status").dataset.tone = warn ? "warn" : "";
}

function sentence(now) {
  if (now.problem) return now.problem;
  const length = `${(now.received / now.rate).toFixed(1)} s`;
  switch (now.state) {
    case "asking":
      return "Asking …";
    case "speaking":
      return "Speaking while it is made …";
    case "playing out":
      return "All of it is here.";
    case "stopped":
      return "Stopped.";
    default:
      return `${length} of speech, seed ${now.seed}.`;
  }
}
