// The messages of a conversation: what was said, with the spoken word marked, and how fast it was answered.

import { Answer } from "./answer.js";
import { MarkedText } from "./marked_text.js";

const INPUT = {
  listening: "Listening …",
  transcribing: "Transcribing …",
  spoken: "Spoken message.",
  failed: "Not understood.",
  discarded: "Not sent.",
};
const NEAR_END = 80; // pixels within which the list follows new text

export class MessageList {
  #list;
  #announcement;
  #messages = new Map(); // {item, text, details, announced} by turn

  // announcement: a live region that gets each message once, when it is complete.
  constructor(list, announcement) {
    this.#list = list;
    this.#announcement = announcement;
  }

  clear() {
    this.#messages.clear();
    this.#list.replaceChildren();
    this.#announcement.replaceChildren();
  }

  // seconds: the position in the audio of the last answer.
  update(turn, seconds) {
    const follow = this.#list.scrollHeight - this.#list.scrollTop - this.#list.clientHeight < NEAR_END;
    const message = this.#messages.get(turn) ?? this.#add(turn);
    Object.assign(message.item.dataset, { state: turn.state, empty: turn.text === "" });
    const isAnswer = turn instanceof Answer;
    message.text.show(turn.text, isAnswer ? turn.marked(seconds) : null);
    setText(message.details, isAnswer ? answerDetails(turn) : (INPUT[turn.state] ?? ""));
    const done = isAnswer ? !turn.active : turn.state === "complete";
    if (done && !message.announced && turn.text) {
      message.announced = true;
      this.#announce(`${speaker(turn)}: ${isAnswer ? turn.playedText : turn.text}`);
    }
    if (follow) this.#list.scrollTop = this.#list.scrollHeight;
  }

  #add(turn) {
    const item = document.createElement("li");
    item.className = "message";
    item.dataset.role = turn.role;
    item.innerHTML = '<span class="visually-hidden"></span><p class="message-text"></p><p class="message-details"></p>';
    const [name, text, details] = item.children;
    name.textContent = `${speaker(turn)}:`;
    const message = { item, text: new MarkedText(text), details, announced: false };
    this.#messages.set(turn, message);
    this.#list.append(item);
    return message;
  }

  #announce(text) {
    const line = document.createElement("p");
    line.textContent = text;
    this.#announcement.replaceChildren(line);
  }
}

// The conversation as plain text.
export function asText(turns) {
  const lines = turns.map((turn) => {
    const cut = turn.state === "interrupted" ? " [interrupted]" : "";
    return `${speaker(turn)}: ${turn instanceof Answer ? turn.playedText : turn.text}${cut}`;
  });
  return `${lines.join("\n\n")}\n`;
}

const speaker = (turn) => (turn.role === "user" ? "You" : "Assistant");

function answerDetails(answer) {
  if (answer.state === "waiting") return "Waiting for the answer …";
  const parts = [];
  if (answer.firstText !== null) parts.push(`first text ${answer.firstText.toFixed(2)} s`);
  if (answer.firstAudio !== null) parts.push(`first audio ${answer.firstAudio.toFixed(2)} s`);
  if (answer.underruns) parts.push(answer.underruns === 1 ? "1 underrun" : `${answer.underruns} underruns`);
  if (answer.state === "interrupted") parts.push(`interrupted after ${answer.playedSeconds.toFixed(1)} s`);
  const figures = parts.map((part) => part.replaceAll(" ", "\u00a0")); // lines break between them only
  return [...figures, answer.note].filter(Boolean).join(" · ");
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
