// Timeouts of requests, sockets and streams.

export class TimeoutError extends Error {
  constructor(seconds) {
    super(`the server did not respond for ${seconds} s`);
  }
}

// Calls onStall after `seconds` without a call of `progress`.
export class StallTimer {
  #timer = null;
  #milliseconds;
  #onStall;

  constructor(seconds, onStall) {
    this.#milliseconds = seconds * 1000;
    this.#onStall = onStall;
    this.progress();
  }

  progress() {
    this.clear();
    this.#timer = setTimeout(this.#onStall, this.#milliseconds);
  }

  clear() {
    clearTimeout(this.#timer);
  }
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
