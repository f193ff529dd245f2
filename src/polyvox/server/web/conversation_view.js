// The view of a conversation: type or speak, read and hear the answer, interrupt it.

import { errorMessage } from "./api.js";
import { copyFrom } from "./clipboard.js";
import { Conversation } from "./conversation.js";
import { MessageList, asText } from "./message_list.js";
import { Notice } from "./notice.js";
import { TalkControl } from "./talk_control.js";

const INSTRUCTIONS = "You are a friendly assistant. Your answers are spoken: keep them short, without lists and markup.";
const STATUS = { connecting: "Connecting …", reconnecting: "The connection was lost. Reconnecting …" };
const $ = (id) => document.getElementById(id);

export class ConversationView {
  #conversation;
  #messages = new MessageList($("messages"), $("conversation-announcement"));
  #problem = new Notice($("conversation-problem"));
  #talk = null;
  #onStart;
  #onKeyRejected;

  // onStart is called before the conversation plays audio, onKeyRejected if the server rejects the key.
  constructor(player, { voices, conversation }, onStart, onKeyRejected) {
    this.#onStart = onStart;
    this.#onKeyRejected = onKeyRejected;
    $("system-prompt").value = INSTRUCTIONS;
    this.showVoices(voices);
    this.#conversation = new Conversation(player, this.#options(), conversation, {
      onTurn: (turn) => this.#messages.update(turn, this.#conversation.seconds),
      onStatus: () => {
        this.#talk?.update();
        this.#showStatus();
      },
      onProblem: (error, retry) => this.#showProblem(error, retry),
    });
    this.#talk = new TalkControl(
      this.#conversation,
      () => this.#showTalk(),
      (message) => this.#problem.show(message),
    );
    this.#listen();
    this.#showStatus();
  }

  #listen() {
    $("message-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    $("message").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    $("interrupt").addEventListener("click", () => this.interrupt());
    $("clear-conversation").addEventListener("click", () => this.#clear());
    $("copy-conversation").addEventListener("click", (event) => copyFrom(event.currentTarget, asText(this.#conversation.turns)));
    $("conversation-speed").addEventListener("input", () => {
      $("conversation-speed-value").textContent = `${Number($("conversation-speed").value).toFixed(2)}×`;
    });
    $("conversation-options").addEventListener("change", () => this.#conversation.configure(this.#options()));
  }

  showVoices(voices) {
    const selected = $("conversation-voice").value;
    $("conversation-voice").replaceChildren(...voices.map(({ name }) => new Option(name, name, false, name === selected)));
    $("conversation-voice-field").hidden = voices.length === 0;
  }

  interrupt() {
    this.#conversation.interrupt();
    this.#showStatus();
  }

  // The user leaves the view: nothing is played or recorded any more; the messages stay.
  close() {
    this.#talk.stop();
    this.#conversation.close();
  }

  #send() {
    const text = $("message").value.trim();
    if (!text) return;
    $("message").value = "";
    this.#start();
    this.#conversation.send(text);
  }

  #start() {
    this.#problem.hide();
    this.#onStart();
  }

  #clear() {
    this.#conversation.clear();
    this.#messages.clear();
    this.#problem.hide();
    this.#showStatus();
    $("message").focus();
  }

  #options() {
    return {
      voice: $("conversation-voice").value,
      instructions: $("system-prompt").value.trim(),
      speed: Number($("conversation-speed").value),
    };
  }

  #showTalk() {
    if (this.#talk?.state === "on") this.#start();
    this.#showStatus();
  }

  #showStatus() {
    if (!this.#talk) return;
    const { busy, turns, answer, status, peak } = this.#conversation;
    $("interrupt").disabled = !busy;
    $("clear-conversation").disabled = $("copy-conversation").disabled = turns.length === 0;
    $("no-messages").hidden = turns.length > 0;
    const text = this.#status();
    if ($("conversation-status").textContent !== text) $("conversation-status").textContent = text;
    Object.assign($("conversation").dataset, { status, answer: answer?.state ?? "none", peak: peak.toFixed(3) });
  }

  #status() {
    const { busy, status, answer, handsFree } = this.#conversation;
    if (STATUS[status]) return STATUS[status];
    if (this.#talk.state === "on" && !handsFree) return "Listening …";
    if (busy && answer?.state === "speaking") return "Speaking …";
    if (busy) return "Waiting for the answer …";
    return handsFree ? "Listening …" : "";
  }

  #showProblem(error, retry) {
    if (error.status === 401) return this.#onKeyRejected();
    this.#problem.show(errorMessage(error), retry, error.retryAfter ?? null);
  }
}
