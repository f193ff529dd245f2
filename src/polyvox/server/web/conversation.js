// A conversation with the server's LLM: the turns of both sides, spoken answers, and their interruption.

import { Answer } from "./answer.js";
import { Playback } from "./playback.js";
import { SAMPLE_RATE, samplesOf } from "./realtime.js";
import { RealtimeLink } from "./realtime_link.js";
import { Turns } from "./turns.js";

// Errors that need nothing of the user: the answer ended before its cancellation arrived; the next turn opens a session.
const EXPECTED_ERRORS = ["response_cancel_not_active", "session_expired"];
const INCOMPLETE = { max_output_tokens: "The answer reached the maximum length.", content_filter: "The LLM's content filter ended the answer." };

export class Conversation {
  handsFree = false;
  takesSpeech;
  #transcribes; // the server sends transcripts of speech
  #options;
  #turns;
  #player;
  #playback;
  #events;
  #link;
  #responding = false; // from the request of an answer to its end
  #queued = false; // an answer is requested once the current one has ended
  #began = 0; // when the last turn of the user ended

  // events: onTurn(turn) after a change of a turn, onStatus() after any other change, onProblem(error, retry).
  constructor(player, options, { takes_speech: takesSpeech, transcribes }, events) {
    this.#player = player;
    this.#options = options;
    this.takesSpeech = takesSpeech;
    this.#transcribes = transcribes;
    this.#events = events;
    this.#turns = new Turns(events.onTurn);
    this.#playback = new Playback(player, () => this.#showPlayback());
    this.#link = new RealtimeLink({
      onOpen: (connection) => this.#configure(connection),
      onEvent: (event, connection) => this.#handle(event, connection),
      onDrop: (error, wasStable) => this.#restore(error, wasStable),
      onStatus: () => events.onStatus(),
      expectsEvents: () => this.#responding,
    });
  }

  get status() {
    return this.#link.status;
  }

  get turns() {
    return this.#turns.all;
  }

  get answer() {
    return this.#turns.answer;
  }

  // An answer is awaited, generated or played.
  get busy() {
    return this.#responding || this.#playback.status === "playing";
  }

  // Seconds of the last answer that were played.
  get seconds() {
    return this.#playback.seconds;
  }

  get peak() {
    return this.#playback.peak;
  }

  configure(options) {
    const newVoice = options.voice !== this.#options.voice;
    this.#options = options;
    if (this.#link.current === null) return;
    if (!newVoice) return this.#configure(this.#link.current);
    this.interrupt();
    this.#close(); // the voice of a session cannot change: the next turn opens another one
    if (this.handsFree) this.#run(() => {});
  }

  send(text) {
    this.interrupt();
    this.#turns.addText(text);
    return this.#respond();
  }

  // Push to talk: begin, append samples, then end or cancel.
  beginTalk() {
    this.interrupt();
    return this.#run((connection) => connection.clearAudio());
  }

  appendAudio(samples) {
    if (this.status === "reconnecting") return; // it would arrive too late
    const append = (connection) => {
      try {
        connection.appendAudio(samples);
      } catch (error) {
        this.#link.drop(error);
      }
    };
    this.#link.connection?.then(append, () => {});
  }

  endTalk() {
    if (!this.#link.connection) return this.#events.onProblem(new Error("the connection was lost. Say it again"), null);
    this.#run((connection) => connection.commitAudio());
    return this.#respond();
  }

  cancelTalk() {
    this.#link.current?.clearAudio();
  }

  async startHandsFree() {
    this.handsFree = true;
    if (this.#link.current) this.#configure(this.#link.current);
    await this.#run((connection) => connection.clearAudio());
  }

  stopHandsFree() {
    this.handsFree = false;
    this.#link.current?.clearAudio();
    if (this.#link.current) this.#configure(this.#link.current);
    this.#turns.discardSpeech();
  }

  // Silences the answer at once. What was not played is not generated, and the LLM does not remember it.
  interrupt() {
    this.#queued = false;
    if (this.#responding) this.#link.current?.cancel();
    this.#cut();
  }

  clear() {
    this.interrupt();
    this.#close();
    this.#turns.clear();
    if (this.handsFree) this.#run(() => {});
  }

  close() {
    this.interrupt();
    this.handsFree = false;
    this.#close();
    this.#turns.discardSpeech();
  }

  #close() {
    this.#link.close();
    this.#responding = this.#queued = false;
    this.#events.onStatus();
  }

  #cut() {
    const { answer } = this;
    this.#playback.pause();
    if (!answer?.active) return;
    answer.cut(answer.audio.length ? this.seconds : 0);
    if (answer.itemId && answer.connection === this.#link.current) this.#link.current.truncate(answer.itemId, answer.playedSeconds);
    this.#events.onTurn(answer);
  }

  // Asks for an answer to the last turn.
  #respond() {
    this.#began = performance.now();
    return this.#run((connection) => this.#request(connection), () => this.#respond());
  }

  #request(connection) {
    this.#queued = this.#responding;
    if (!this.#responding) connection.respond();
    this.#responding = true;
  }

  // Calls act with an open connection whose server knows all turns. Failures are reported.
  async #run(act, retry = null) {
    this.#player.open(SAMPLE_RATE).catch((error) => this.#events.onProblem(error, null));
    try {
      const connection = await this.#link.connect();
      this.#turns.store(connection);
      act(connection);
    } catch (error) {
      if (error.name !== "AbortError") this.#events.onProblem(error, retry);
    }
    this.#events.onStatus();
  }

  #configure(connection) {
    connection.configure({ ...this.#options, handsFree: this.handsFree, transcribes: this.#transcribes });
  }

  // The connection was lost. It is opened again at once if something waits for it, else with the next turn.
  async #restore(error, wasStable) {
    const { answer } = this;
    const asked = this.#responding;
    this.#responding = this.#queued = false;
    this.#turns.discardSpeech();
    if (answer?.active && !answer.received) {
      answer.note = "The connection was lost.";
      answer.end("failed");
      this.#playback.end(); // what was received is played
      this.#events.onTurn(answer);
    }
    if (!asked && !this.handsFree) return this.#events.onStatus();
    this.#events.onProblem(error, null);
    try {
      if (!wasStable) throw error;
      this.#turns.store(await this.#link.reconnect());
      const restored = "The connection was lost and is restored.";
      this.#events.onProblem(new Error(asked ? `${restored} The answer is incomplete.` : restored), asked ? () => this.#respond() : null);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      this.handsFree = false;
      this.#events.onProblem(problem, asked ? () => this.#respond() : null);
      this.#events.onStatus();
    }
  }

  #handle(event, connection) {
    const { answer } = this;
    switch (event.type) {
      case "input_audio_buffer.speech_started":
        this.#cut();
        this.#turns.setSpeech(event.item_id, "listening", "", connection);
        break;
      case "input_audio_buffer.speech_stopped":
        this.#began = performance.now();
        break;
      case "input_audio_buffer.committed":
        this.#turns.setSpeech(event.item_id, this.#transcribes ? "transcribing" : "spoken", "", connection);
        break;
      case "conversation.item.input_audio_transcription.completed":
        this.#turns.setSpeech(event.item_id, event.transcript.trim() ? "complete" : "failed", event.transcript.trim(), connection);
        break;
      case "conversation.item.input_audio_transcription.failed":
        this.#turns.setSpeech(event.item_id, "failed", "", connection);
        this.#events.onProblem(new Error(event.error.message), null);
        break;
      case "response.created":
        this.#responding = true;
        this.#begin(connection);
        break;
      case "response.output_item.added":
        if (answer && event.item.type === "message") answer.itemId = event.item.id;
        break;
      case "response.output_audio_transcript.delta":
      case "response.output_text.delta":
        if (answer?.active) answer.addText(event.delta);
        break;
      case "response.output_audio.delta":
        if (answer?.active) this.#play(answer, samplesOf(event.delta));
        break;
      case "response.output_audio.words":
      case "response.output_audio.segment":
        if (answer?.active) answer.addTimes(event);
        break;
      case "response.done":
        this.#finish(event.response);
        if (this.#queued) this.#request(connection);
        break;
      case "conversation.item.retrieved":
        this.#turns.setPlayed(event.item.id, event.item.content?.[0]?.transcript ?? event.item.content?.[0]?.text ?? "");
        break;
      case "error":
        this.#reject(event.error);
        break;
    }
    if (answer && event.type.startsWith("response.")) this.#events.onTurn(answer);
    this.#events.onStatus();
  }

  #begin(connection) {
    this.answer?.releaseAudio();
    const answer = new Answer(SAMPLE_RATE, this.#began, connection);
    this.#turns.add(answer);
    this.#playback.begin(answer.audio).catch(() => {}); // #run reports why there is no audio output
  }

  #play(answer, samples) {
    answer.addAudio(samples);
    this.#playback.push(samples);
  }

  #finish({ status, status_details: details }) {
    const { answer } = this;
    this.#responding = false;
    if (answer?.active) {
      answer.received = answer.audio.complete = true;
      this.#playback.end();
      if (status === "cancelled") this.#cut();
      if (status === "incomplete") answer.note = INCOMPLETE[details?.reason] ?? "The answer is incomplete.";
      if (status === "failed") this.#fail(answer, details?.error);
      if (answer.active && !answer.audio.length) answer.end("complete");
    }
  }

  #fail(answer, error) {
    answer.note = "The answer failed.";
    answer.end("failed");
    const notTranscribed = error?.code?.startsWith("stt_"); // the user must say it again
    this.#events.onProblem(new Error(error?.message ?? "the answer failed"), notTranscribed ? null : () => this.#respond());
  }

  // An event of the page was refused, which may have been the request of an answer.
  #reject({ code, message }) {
    if (EXPECTED_ERRORS.includes(code)) return;
    const refused = this.#responding && !this.answer?.active;
    if (refused) this.#responding = this.#queued = false;
    this.#events.onProblem(new Error(message), refused ? () => this.#respond() : null);
  }

  #showPlayback() {
    const { answer } = this;
    if (!answer) return;
    answer.underruns = this.#playback.underruns;
    if (this.#playback.status === "ended" && answer.active && answer.received) answer.end("complete");
    this.#events.onTurn(answer);
    this.#events.onStatus();
  }
}
