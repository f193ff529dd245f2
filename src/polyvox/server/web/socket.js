// A stream over a WebSocket. Browsers open six HTTP connections to a server and let the seventh request wait, which
// would be measured as the server's time; sockets they open by the hundred.

import { Refusal, apiKey } from "./api.js";

const OPEN_SECONDS = 10;
const BROKEN = "the stream broke off before its end";

export class SpeechSocket {
  #socket;
  #opened;
  #messages = []; // that nobody has read yet
  #wake = () => {};

  constructor() {
    const address = new URL("v1/audio/speech/stream", document.baseURI);
    address.protocol = address.protocol.replace("http", "ws");
    this.#socket = new WebSocket(address, apiKey.get() ? ["polyvox", `polyvox-key.${asToken(apiKey.get())}`] : []);
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onmessage = ({ data }) => this.#came(typeof data === "string" ? JSON.parse(data) : new Int16Array(data));
    this.#socket.onclose = () => this.#came({ type: "error", message: BROKEN });
    this.#opened = new Promise((resolve, reject) => {
      this.#socket.onopen = resolve;
      const refused = () => reject(new Refusal(0, "the server took no more connections"));
      this.#socket.onerror = refused;
      setTimeout(refused, OPEN_SECONDS * 1000);
    });
    this.#opened.catch(() => {}); // whoever asks for it hears of it
  }

  opened() {
    return this.#opened;
  }

  // The sound of a request as it comes; throws a Refusal.
  async *samples({ input, ...how }, signal) {
    signal.addEventListener("abort", () => this.#came({ type: "error", message: "stopped" }));
    try {
      await this.#opened;
      signal.throwIfAborted();
      this.#send({ type: "session.config", ...how, response_format: "pcm", stream_audio: true });
      this.#send({ type: "input.text", text: input });
      this.#send({ type: "input.done" });
      for (;;) {
        signal.throwIfAborted();
        const message = await this.#next();
        if (message instanceof Int16Array) yield message;
        else if (message.type === "error") throw refusal(message);
        else if (message.type === "session.done") return;
      }
    } finally {
      this.#socket.close();
    }
  }

  #send(message) {
    this.#socket.send(JSON.stringify(message));
  }

  #came(message) {
    this.#messages.push(message);
    this.#wake();
  }

  async #next() {
    if (!this.#messages.length) await new Promise((resolve) => (this.#wake = resolve));
    return this.#messages.shift();
  }
}

// A page can give a socket no headers, but protocols; their names may have only some characters.
function asToken(key) {
  return encodeURIComponent(key).replaceAll("(", "%28").replaceAll(")", "%29");
}

const STATUS = { overloaded: 503, too_many_requests: 429, invalid_api_key: 401 };

function refusal({ message, code, retry_after: wait }) {
  return new Refusal(STATUS[code] ?? (wait ? 503 : 400), message, wait ?? null);
}
