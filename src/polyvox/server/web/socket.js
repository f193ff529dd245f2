// A stream over a WebSocket. Browsers limit HTTP connections to six per server and queue the seventh request, which
// would be measured as server time; WebSockets have no such limit.

import { ApiError, apiKey } from "./api.js";

const OPEN_SECONDS = 10;
const CLOSED = "the stream ended early";

export class SpeechSocket {
  #socket;
  #opened;
  #messages = []; // not read yet
  #wake = () => {};

  constructor() {
    const url = new URL("v1/audio/speech/stream", document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    this.#socket = new WebSocket(url, apiKey.get() ? ["polyvox", `polyvox-key.${asToken(apiKey.get())}`] : []);
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onmessage = ({ data }) => this.#enqueue(typeof data === "string" ? JSON.parse(data) : new Int16Array(data));
    this.#socket.onclose = () => this.#enqueue({ type: "error", message: CLOSED });
    this.#opened = new Promise((resolve, reject) => {
      this.#socket.onopen = resolve;
      const fail = () => reject(new ApiError(0, "the connection failed"));
      this.#socket.onerror = fail;
      setTimeout(fail, OPEN_SECONDS * 1000);
    });
    this.#opened.catch(() => {}); // reported where it is awaited
  }

  opened() {
    return this.#opened;
  }

  // The samples of a request as they arrive; throws an ApiError.
  async *samples({ input, ...options }, signal) {
    signal.addEventListener("abort", () => this.#enqueue({ type: "error", message: "stopped" }));
    try {
      await this.#opened;
      signal.throwIfAborted();
      this.#send({ type: "session.config", ...options, response_format: "pcm", stream_audio: true });
      this.#send({ type: "input.text", text: input });
      this.#send({ type: "input.done" });
      for (;;) {
        signal.throwIfAborted();
        const message = await this.#next();
        if (message instanceof Int16Array) yield message;
        else if (message.type === "error") throw errorFrom(message);
        else if (message.type === "session.done") return;
      }
    } finally {
      this.#socket.close();
    }
  }

  #send(message) {
    this.#socket.send(JSON.stringify(message));
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

const STATUS = { overloaded: 503, too_many_requests: 429, invalid_api_key: 401 };

function errorFrom({ message, code, retry_after: retryAfter }) {
  return new ApiError(STATUS[code] ?? (retryAfter ? 503 : 400), message, retryAfter ?? null);
}
