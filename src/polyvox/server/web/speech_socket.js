// A connection for speech over a WebSocket: text is sent in pieces, audio and word times are received as they are
// generated. Browsers limit HTTP connections to six per server; WebSockets have no such limit.

import { ApiError } from "./api.js";
import { Socket } from "./socket.js";

const STALL_SECONDS = 30; // without a message while speech is expected
const MAX_MESSAGE = 60_000; // characters of text in a message; the server accepts 128 Ki
const STATUS = { overloaded: 503, too_many_requests: 429, invalid_api_key: 401, engine_down: 503 };

export class SpeechSocket {
  #socket = new Socket("v1/audio/speech/stream", (data) => (typeof data === "string" ? JSON.parse(data) : new Int16Array(data)));

  opened() {
    return this.#socket.opened();
  }

  configure(options) {
    this.#socket.send({ type: "session.config", ...options, response_format: "pcm", stream_audio: true });
  }

  append(text) {
    for (let at = 0; at < text.length; at += MAX_MESSAGE) {
      this.#socket.send({ type: "input.text", text: text.slice(at, at + MAX_MESSAGE) });
    }
  }

  finish() {
    this.#socket.send({ type: "input.done" });
  }

  close() {
    this.#socket.close();
  }

  // Messages as they arrive: Int16Array for samples, else an object with a type. Throws an ApiError, a TimeoutError
  // after a while without a message in which `expected` is true, and the signal's reason.
  async *messages(signal, expected) {
    for await (const message of this.#socket.messages(signal, STALL_SECONDS, expected)) {
      if (message.type === "error") throw errorFrom(message);
      yield message;
    }
  }

  // The messages of one utterance with a known text, up to session.done.
  async *speech({ input, ...options }, signal) {
    await Promise.race([this.opened(), aborted(signal)]).catch((error) => {
      this.close();
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
}

function aborted(signal) {
  return new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener("abort", () => reject(signal.reason));
  });
}

function errorFrom({ message, code, retry_after: retryAfter }) {
  return new ApiError(STATUS[code] ?? (retryAfter ? 503 : 400), message, retryAfter ?? null);
}
