// The playback panel: status, metrics, waveform and lead of the current utterance.

import { LeadChart } from "./chart.js";
import { Waveform } from "./waveform.js";

const $ = (id) => document.getElementById(id);

export class PlaybackPanel {
  #chart = new LeadChart($("chart"));
  #waveform = new Waveform($("waveform"));
  #utterance = null;
  #status = "";

  constructor() {
    const redraw = () => this.#draw();
    window.addEventListener("resize", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  begin(utterance) {
    this.#utterance = utterance;
    this.#chart.reset();
    this.#waveform.reset(utterance.sampleRate);
    this.#status = "";
    this.update();
  }

  update(samples) {
    const utterance = this.#utterance;
    if (samples) this.#waveform.push(samples);
    if (utterance.firstAudio !== null && (!utterance.done || utterance.state === "finished")) {
      this.#chart.firstAudio = utterance.firstAudio;
      this.#chart.series.add(utterance.elapsed, utterance.lead);
      while (this.#chart.underruns.length < utterance.underruns) this.#chart.underruns.push(utterance.elapsed);
      this.#chart.underruns.length = utterance.underruns;
    }
    this.#showMetrics(utterance);
    this.#draw();
    const status = statusOf(utterance);
    if (status !== this.#status) showStatus(status, utterance.problem !== null);
    this.#status = status;
  }

  #showMetrics(utterance) {
    const { firstAudio, rtf, lead, underruns } = utterance;
    $("ttfa").textContent = firstAudio === null ? "–" : `${Math.round(firstAudio * 1000)} ms`;
    $("rtf").textContent = rtf === null ? "–" : rtf.toFixed(2);
    $("rtf-note").textContent = rtf ? `${(1 / rtf).toFixed(1)}× real time` : "real-time factor";
    $("lead").textContent = firstAudio === null ? "–" : `${Math.max(0, lead).toFixed(2)} s`;
    $("underruns").textContent = firstAudio === null ? "–" : String(underruns);
    $("underruns").dataset.tone = underruns ? "warn" : "";
    Object.assign($("playback").dataset, {
      state: utterance.state,
      received: utterance.received,
      played: utterance.played,
      peak: utterance.peak.toFixed(3),
    });
  }

  #draw() {
    this.#chart.draw();
    this.#waveform.draw(this.#utterance?.played ?? 0);
  }
}

export function showStatus(text, warn = false) {
  $("status").textContent = text;
  $("status").dataset.tone = warn ? "warn" : "";
}

function statusOf(utterance) {
  if (utterance.problem) return utterance.problem;
  const length = `${(utterance.received / utterance.sampleRate).toFixed(1)} s`;
  switch (utterance.state) {
    case "requesting":
      return "Waiting for the first audio …";
    case "streaming":
      return "Streaming …";
    case "playing":
      return "Received completely, playing …";
    case "stopped":
      return "Stopped.";
    default:
      return `${length} of speech, seed ${utterance.seed}.`;
  }
}
