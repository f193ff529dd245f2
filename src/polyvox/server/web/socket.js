// A connection for speech over a WebSocket: text is sent in pieces, audio and word times are received as they are
// generated. Browsers limit HTTP connections to six per server; WebSockets have no such limit.

import { ApiError, apiKey, connectionError } from "./api.js";
import { StallTimer, TimeoutError } from "./timeouts.js";

const OPEN_SECONDS = 10;
const STALL_SECONDS = 30; // without a message while speech is expected
const MAX_MESSAGE = 60_000; // characters of text in a message; the server accepts 128 Ki
const STATUS = { overloaded: 503, too_many_requests: 429, invalid_api_key: 401, engine_down: 503 };

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
    this.#socket.onclose = () => this.#enqueue(new ApiError(0, "the connection was closed by the server"));
    this.#opened = new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new TimeoutError(OPEN_SECONDS)), OPEN_SECONDS * 1000);
      this.#socket.onopen = () => resolve(clearTimeout(timer));
      this.#socket.onerror = async () => {
        clearTimeout(timer);
        reject(await connectionError());
      };
    });
    this.#opened.catch(() => {}); // reported where it is awaited
  }

  opened() {
    return this.#opened;
  }

  get open() {
    return this.#socket.readyState <= WebSocket.OPEN;
  }

  configure(options) {
    this.#send({ type: "session.config", ...options, response_format: "pcm", stream_audio: true });
  }

  append(text) {
    for (let at = 0; at < text.length; at += MAX_MESSAGE) {
      this.#send({ type: "input.text", text: text.slice(at, at + MAX_MESSAGE) });
    }
  }

  finish() {
    this.#send({ type: "input.done" });
  }

  close() {
    this.#socket.close();
  }

  // Messages as they arrive: Int16Array for samples, else an object with a type. Throws an ApiError, a TimeoutError
  // after a while without a message in which `expected` is true, and the signal's reason.
  async *messages(signal, expected = () => true) {
    const stop = () => this.#enqueue(signal.reason);
    signal.addEventListener("abort", stop);
    const timer = new StallTimer(STALL_SECONDS, () => {
      if (expected()) this.#enqueue(new TimeoutError(STALL_SECONDS));
      else timer.progress();
    });
    try {
      for (;;) {
        signal.throwIfAborted();
        const message = await this.#next();
        timer.progress();
        if (message instanceof Error) throw message;
        if (message.type === "error") throw errorFrom(message);
        yield message;
      }
    } finally {
      timer.clear();
      signal.removeEventListener("abort", stop);
      this.#socket.close();
    }
  }

  // The messages of one utterance with a known text, up to session.done.
  async *speech({ input, ...options }, signal) {
    await Promise.race([this.#opened, aborted(signal)]).catch((error) => {
      this.#socket.close();
      throw error;
    });
    this.configure(options);
    this.append(input);
    this.finish();
    for await (const message of this.messages(signal)) {
      yield message;
      if (message.type === "session.done") return;
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

function aborted(signal) {
  return new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener("abort", () => reject(signal.reason));
  });
}

// Browsers cannot set headers on a WebSocket, so the key is a subprotocol, which allows only some characters.
function asToken(key) {
  return encodeURIComponent(key).replaceAll("(", "%28").replaceAll(")", "%29");
}

function errorFrom({ message, code, retry_after: retryAfter }) {
  return new ApiError(STATUS[code] ?? (retryAfter ? 503 : 400), message, retryAfter ?? null);
}
