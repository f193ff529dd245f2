// SPDX-License-Identifier: Apache-2.0
// As clients/measurement.py.
import { readFileSync } from "node:fs";

export const TEXT =
  "The ferry left the harbour a little after six. Nobody said a word about the weather. " +
  "Two gulls followed us as far as the lighthouse, and then they turned back.";
const MIN_BYTES = 20_000;

export class Measurement {
  #start = performance.now();
  #first = null;
  #numBytes = 0;

  add(audio) {
    if (audio.length && this.#first === null) this.#first = (performance.now() - this.#start) / 1000;
    this.#numBytes += audio.length;
  }

  report(name, notes = "") {
    const end = (performance.now() - this.#start) / 1000;
    if (this.#numBytes < MIN_BYTES) throw new Error(`only ${this.#numBytes} bytes of audio were received`);
    const root = process.env.NODE_MODULES;
    const { version } = JSON.parse(readFileSync(`${root}/${name}/package.json`, "utf8"));
    console.log(JSON.stringify({ version, first: this.#first, end, notes }));
  }
}
