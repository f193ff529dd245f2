// The link to /v1/realtime: a connection that is opened when it is needed, and opened again after a drop.

import { RealtimeConnection } from "./realtime.js";
import { sleep } from "./timeouts.js";

const RECONNECT_MS = [200, 1000, 2000, 4000, 8000]; // delays before the attempts
const STABLE_MS = 5000; // a connection that ends sooner after a drop is not opened again

export class RealtimeLink {
  status = "closed"; // or connecting, open, reconnecting
  current = null; // the open connection
  #opening = null; // promise of it
  #abort = null; // of the connection and the attempts to open it
  #stableAt = 0; // when the connection counts as stable
  #events;

  // events: onOpen(connection), onEvent(event, connection), onDrop(error, wasStable) after the end of an open
  // connection, onStatus(), and expectsEvents(), which is false while the server may be silent.
  constructor(events) {
    this.#events = events;
  }

  // The connection that is open or being opened, as a promise; null if there is none.
  get connection() {
    return this.#opening;
  }

  // Opens a connection if there is none. Rejects with why there is none, and with an AbortError after close().
  connect() {
    return (this.#opening ??= this.#open("connecting", [0]));
  }

  reconnect() {
    return (this.#opening ??= this.#open("reconnecting", RECONNECT_MS));
  }

  close() {
    this.#abort?.abort();
    this.current = this.#opening = null;
    this.#setStatus("closed");
  }

  drop(error) {
    if (this.current === null) return;
    this.close();
    this.#events.onDrop(error, performance.now() >= this.#stableAt);
  }

  async #open(status, delays) {
    const { signal } = (this.#abort = new AbortController());
    let problem = null;
    this.#setStatus(status);
    for (const delay of delays) {
      if (delay) await sleep(delay);
      try {
        const connection = await this.#attempt(signal);
        this.#stableAt = status === "reconnecting" ? performance.now() + STABLE_MS : 0;
        return connection;
      } catch (error) {
        signal.throwIfAborted();
        problem = error;
        if (error.status === 401) break;
      }
    }
    this.close();
    throw problem;
  }

  async #attempt(signal) {
    signal.throwIfAborted();
    const connection = new RealtimeConnection();
    try {
      await connection.opened();
      signal.throwIfAborted();
    } catch (error) {
      connection.close();
      throw error;
    }
    this.current = connection;
    this.#events.onOpen(connection);
    this.#receive(connection, signal);
    this.#setStatus("open");
    return connection;
  }

  async #receive(connection, signal) {
    try {
      const events = connection.events(signal, () => this.#events.expectsEvents());
      for await (const event of events) this.#events.onEvent(event, connection);
    } catch (error) {
      if (!signal.aborted) this.drop(error);
    }
  }

  #setStatus(status) {
    if (status === this.status) return;
    this.status = status;
    this.#events.onStatus();
  }
}
