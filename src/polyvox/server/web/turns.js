// The turns of a conversation: answers, and what the user wrote or said.

import { Answer } from "./answer.js";

const MAX_RESTORED = 50; // turns that a new connection gets

export class Turns {
  // Answers, and {role: "user", text, state, itemId, connection}. state: complete; or of speech listening, transcribing,
  // spoken (without a transcript), failed, discarded. connection: the one whose server knows the turn.
  all = [];
  #onChange;

  // onChange gets the turn that was added or changed.
  constructor(onChange) {
    this.#onChange = onChange;
  }

  get answer() {
    return this.all.findLast((turn) => turn instanceof Answer) ?? null;
  }

  clear() {
    this.all = [];
  }

  add(turn) {
    this.all.push(turn);
    this.#onChange(turn);
  }

  addText(text) {
    this.add({ role: "user", text, state: "complete", itemId: null, connection: null });
  }

  // Changes the spoken turn with this id, and adds it if it is new.
  setSpeech(itemId, state, text, connection) {
    let turn = this.all.find((each) => each.itemId === itemId);
    if (!turn) this.all.push((turn = { role: "user", itemId, connection }));
    Object.assign(turn, { state, text });
    this.#onChange(turn);
  }

  // Speech that is not transcribed yet is lost with its connection or its microphone.
  discardSpeech() {
    for (const turn of this.all) {
      if (turn.state !== "listening" && turn.state !== "transcribing") continue;
      turn.state = "discarded";
      this.#onChange(turn);
    }
  }

  // The server's transcript of the part of an answer that was played.
  setPlayed(itemId, transcript) {
    const answer = this.all.find((turn) => turn.itemId === itemId);
    if (!(answer instanceof Answer) || answer.state !== "interrupted") return;
    answer.setPlayed(transcript);
    this.#onChange(answer);
  }

  // Sends the turns that the connection's server does not know.
  store(connection) {
    for (const turn of this.all.slice(-MAX_RESTORED)) {
      const text = turn instanceof Answer ? turn.playedText : turn.text;
      if (turn.connection !== connection && turn.state !== "failed" && text) connection.addMessage(turn.role, text);
      turn.connection = connection;
    }
  }
}
