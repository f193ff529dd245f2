// A connection to /v1/realtime: the events of OpenAI's Realtime API that a conversation uses.

import { Socket } from "./socket.js";

export const SAMPLE_RATE = 24_000; // of both directions
const STALL_SECONDS = 90; // without an event while an answer is expected; an LLM may take long for its first token
const MAX_BUFFERED = 1_000_000; // bytes of audio that wait for the network: about 15 s
const PCM = { type: "audio/pcm", rate: SAMPLE_RATE };
const TIMES = ["word", "segment"];

export class RealtimeConnection {
  #socket = new Socket("v1/realtime", JSON.parse);

  opened() {
    return this.#socket.opened();
  }

  close() {
    this.#socket.close();
  }

  // Events as they arrive. Throws like the messages of a socket.
  events(signal, expected) {
    return this.#socket.messages(signal, STALL_SECONDS, expected);
  }

  configure({ instructions, voice, speed, handsFree, transcribes }) {
    const detection = handsFree ? { type: "server_vad", create_response: true, interrupt_response: true } : null;
    const input = { format: PCM, turn_detection: detection, ...(transcribes ? { transcription: {} } : {}) };
    const output = { format: PCM, speed, timestamp_granularities: TIMES, ...(voice ? { voice } : {}) };
    const session = { type: "realtime", output_modalities: ["audio"], instructions, audio: { input, output } };
    this.#socket.send({ type: "session.update", session });
  }

  addMessage(role, text) {
    const content = [{ type: role === "user" ? "input_text" : "output_text", text }];
    this.#socket.send({ type: "conversation.item.create", item: { type: "message", role, content } });
  }

  respond() {
    this.#socket.send({ type: "response.create" });
  }

  cancel() {
    this.#socket.send({ type: "response.cancel" });
  }

  // What follows in the audio of the item was not heard. The server cuts the item's transcript and returns it.
  truncate(id, seconds) {
    const end = Math.floor(1000 * seconds);
    this.#socket.send({ type: "conversation.item.truncate", item_id: id, content_index: 0, audio_end_ms: end });
    this.#socket.send({ type: "conversation.item.retrieve", item_id: id });
  }

  // Throws if the network is too slow.
  appendAudio(samples) {
    if (this.#socket.buffered > MAX_BUFFERED) throw new Error("the network is too slow for the microphone");
    this.#socket.send({ type: "input_audio_buffer.append", audio: asBase64(samples) });
  }

  clearAudio() {
    this.#socket.send({ type: "input_audio_buffer.clear" });
  }

  commitAudio() {
    this.#socket.send({ type: "input_audio_buffer.commit" });
  }
}

export function samplesOf(base64) {
  const text = atob(base64);
  const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  return new Int16Array(bytes.buffer);
}

function asBase64(samples) {
  const bytes = new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength);
  return btoa(String.fromCharCode(...bytes)); // a chunk of the microphone: 1,920 bytes
}
