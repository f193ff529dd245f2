// A listener that nobody hears: it plays from the first sound on, and it is known when it would have run dry.

const LATE = 0.005; // seconds: a player asks for its next samples about as often

export class Listener {
  received = 0; // seconds of sound
  underruns = 0;
  ended = false;
  #began = null;
  #stalled = 0; // seconds without sound
  #dry = false;

  arrive(seconds, now) {
    this.#settle(now);
    if (this.#began === null) this.#began = now;
    else if (this.#dry) this.#stalled = now - this.#began - this.received;
    this.#dry = false;
    this.received += seconds;
  }

  end(now) {
    this.#settle(now);
    if (this.#dry) this.underruns -= 1; // nothing was missing: it had all been played
    this.#dry = false;
    this.ended = true;
  }

  // Seconds of sound that were heard.
  heard(now) {
    this.#settle(now);
    return this.#began === null ? 0 : Math.min(this.received, now - this.#began - this.#stalled);
  }

  lead(now) {
    return this.received - this.heard(now);
  }

  #settle(now) {
    if (this.#began === null || this.#dry || this.ended) return;
    if (now - this.#began - this.#stalled > this.received + LATE) {
      this.#dry = true;
      this.underruns += 1;
    }
  }
}
