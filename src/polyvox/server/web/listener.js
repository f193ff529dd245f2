// A listener that nobody hears. It plays by the rules of the loudspeaker, so it is known when it would have run dry.

import { FIRST_CUSHION, widened } from "./playout.js";

const LATE = 0.005; // seconds: a player asks for its next samples about as often

export class Listener {
  received = 0; // seconds of sound
  underruns = 0;
  ended = false;
  #cushion = FIRST_CUSHION;
  #heard = 0; // seconds of sound, at #since
  #since = null; // when it last began to play; null: it waits
  #dry = false; // it ran out, and nothing has come since

  arrive(seconds, now) {
    this.#settle(now);
    this.received += seconds;
    this.#dry = false;
    if (this.#since === null && this.received - this.#heard >= this.#cushion) this.#since = now;
  }

  end(now) {
    this.#settle(now);
    if (this.#dry) this.underruns -= 1; // nothing was missing: it had all been played
    this.#dry = false;
    this.ended = true;
    this.#since ??= now;
  }

  // Seconds of sound that were heard.
  heard(now) {
    this.#settle(now);
    return this.#since === null ? this.#heard : Math.min(this.received, this.#heard + now - this.#since);
  }

  lead(now) {
    return this.received - this.heard(now);
  }

  #settle(now) {
    if (this.#since === null || this.ended || this.#heard + now - this.#since <= this.received + LATE) return;
    this.#heard = this.received;
    this.#since = null;
    this.#dry = true;
    this.#cushion = widened(this.#cushion);
    this.underruns += 1;
  }
}
