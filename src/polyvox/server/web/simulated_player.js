// A player without audio output. It follows the rules of the playback buffer, so that its underruns are those that a
// listener would have had.

import { MIN_START_BUFFER, doubled } from "./playback_buffer.js";

const TOLERANCE = 0.005; // seconds: a player asks for its next samples about as often

export class SimulatedPlayer {
  received = 0; // seconds of audio
  underruns = 0;
  ended = false;
  #startBuffer = MIN_START_BUFFER;
  #played = 0; // seconds of audio, at #since
  #since = null; // when playback last started; null while it buffers
  #empty = false; // it ran out, and nothing has arrived since

  receive(seconds, now) {
    this.#update(now);
    this.received += seconds;
    this.#empty = false;
    if (this.#since === null && this.received - this.#played >= this.#startBuffer) this.#since = now;
  }

  end(now) {
    this.#update(now);
    if (this.#empty) this.underruns -= 1; // nothing was missing: all of it had been played
    this.#empty = false;
    this.ended = true;
    this.#since ??= now;
  }

  // Seconds of audio played.
  played(now) {
    this.#update(now);
    return this.#since === null ? this.#played : Math.min(this.received, this.#played + now - this.#since);
  }

  lead(now) {
    return this.received - this.played(now);
  }

  #update(now) {
    if (this.#since === null || this.ended || this.#played + now - this.#since <= this.received + TOLERANCE) return;
    this.#played = this.received;
    this.#since = null;
    this.#empty = true;
    this.#startBuffer = doubled(this.#startBuffer);
    this.underruns += 1;
  }
}
