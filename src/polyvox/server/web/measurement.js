// The figures of the last utterance and the chart of its lead.

import { LeadChart } from "./chart.js";

const $ = (id) => document.getElementById(id);

export class Measurement {
  #chart = new LeadChart($("chart"));
  #utterance = null;

  constructor() {
    const redraw = () => this.#chart.draw();
    window.addEventListener("resize", redraw);
    window.addEventListener("hashchange", redraw); // a hidden canvas has no size
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  begin(utterance) {
    this.#utterance = utterance;
    this.#chart.reset();
    $("measure-hint").textContent = `“${shortened(utterance.body.input)}”`;
    this.update({ position: 0, underruns: 0, status: "playing" });
  }

  // Adds a point while the utterance is played; later playback is not measured.
  update({ position, underruns, status }) {
    const utterance = this.#utterance;
    const { firstAudio, rtf, audio } = utterance;
    const lead = (audio.length - position) / audio.sampleRate;
    if (firstAudio !== null && status === "playing") {
      this.#chart.firstAudio = firstAudio;
      this.#chart.series.add(utterance.elapsed, lead);
      while (this.#chart.underruns.length < underruns) this.#chart.underruns.push(utterance.elapsed);
      this.#chart.underruns.length = underruns;
    }
    $("ttfa").textContent = firstAudio === null ? "–" : `${Math.round(firstAudio * 1000)} ms`;
    $("rtf").textContent = rtf === null ? "–" : rtf.toFixed(2);
    $("rtf-note").textContent = rtf ? `${(1 / rtf).toFixed(1)}× real time` : "real-time factor";
    $("lead").textContent = firstAudio === null ? "–" : `${Math.max(0, lead).toFixed(2)} s`;
    $("underruns").textContent = firstAudio === null ? "–" : String(underruns);
    $("underruns").dataset.tone = underruns ? "warn" : "";
    this.#chart.draw();
  }
}

const shortened = (text) => (text.length > 80 ? `${text.slice(0, 79)}…` : text);
