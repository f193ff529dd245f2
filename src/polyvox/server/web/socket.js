// A WebSocket to the server: a bounded time to open it, the API key, messages as they arrive, and errors with a reason.

import { ApiError, apiKey, connectionError } from "./api.js";
import { StallTimer, TimeoutError } from "./timeouts.js";

const OPEN_SECONDS = 10;
const PROTOCOL = "polyvox"; // a browser that offers subprotocols requires the server to choose one

export class Socket {
  #socket;
  #opened;
  #messages = []; // not read yet
  #wake = () => {};

  // parse: turns the data of a message into what `messages` yields.
  constructor(path, parse) {
    const url = new URL(path, document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    this.#socket = new WebSocket(url, apiKey.get() ? [PROTOCOL, `polyvox-key.${asToken(apiKey.get())}`] : []);
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onmessage = ({ data }) => this.#enqueue(parse(data));
    this.#opened = new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new TimeoutError(OPEN_SECONDS)), OPEN_SECONDS * 1000);
      this.#socket.onopen = () => resolve(clearTimeout(timer));
      let failed = false;
      this.#socket.onerror = async () => {
        failed = true; // closed next, without a reason
        clearTimeout(timer);
        reject(await connectionError());
      };
      this.#socket.onclose = ({ reason }) => {
        const closed = new ApiError(0, reason || "the connection was closed by the server");
        this.#enqueue(closed);
        if (!failed) reject(closed);
      };
    });
    this.#opened.catch(() => {}); // reported where it is awaited
  }

  opened() {
    return this.#opened;
  }

  // Bytes that were sent and are not on the network yet.
  get buffered() {
    return this.#socket.bufferedAmount;
  }

  send(message) {
    this.#socket.send(JSON.stringify(message));
  }

  close() {
    this.#socket.close();
  }

  // Messages as they arrive. Throws an ApiError, a TimeoutError after stallSeconds without a message in which `expected`
  // is true, and the signal's reason.
  async *messages(signal, stallSeconds, expected = () => true) {
    const stop = () => this.#enqueue(signal.reason);
    signal.addEventListener("abort", stop);
    const timer = new StallTimer(stallSeconds, () => {
      if (expected()) this.#enqueue(new TimeoutError(stallSeconds));
      else timer.progress();
    });
    try {
      for (;;) {
        signal.throwIfAborted();
        const message = await this.#next();
        timer.progress();
        if (message instanceof Error) throw message;
        yield message;
      }
    } finally {
      timer.clear();
      signal.removeEventListener("abort", stop);
      this.#socket.close();
    }
  }

  #enqueue(message) {
    this.#messages.push(message);
    this.#wake();
  }

  async #next() {
    if (!this.#messages.length) await new Promise((resolve) => (this.#wake = resolve));
    return this.#messages.shift();
  }
}

// Browsers cannot set headers on a WebSocket, so the key is a subprotocol, which allows only some characters.
function asToken(key) {
  return encodeURIComponent(key).replaceAll("(", "%28").replaceAll(")", "%29");
}
