// The playground: connects to the server, then starts the views.

import { apiKey, deleteVoice, errorMessage, playgroundInfo, readiness } from "./api.js";
import { copyFrom } from "./clipboard.js";
import { Composer } from "./composer.js";
import { ConversationView } from "./conversation_view.js";
import { LoadTest } from "./load_test.js";
import { Measurement } from "./measurement.js";
import { Notice } from "./notice.js";
import { Player } from "./player.js";
import { showResponses } from "./response_dialog.js";
import { asCurl, asPipe, asPython } from "./snippets.js";
import { SpeakView } from "./speak_view.js";
import { showViews } from "./views.js";
import { VoiceDialog } from "./voice_dialog.js";

const RETRY_MS = 1500; // while the server is not ready
const $ = (id) => document.getElementById(id);
const baseUrl = new URL(".", location.href).href;

const notice = new Notice($("notice"));
const player = new Player();
const composer = new Composer({ onPlay: stopAll, onDelete: removeVoice }, (text) => speakView.writeExample(text));
let info = null;
let speakView = null;
let conversationView = null;
let loadTest = null;
let retryTimer = null;

async function open() {
  clearTimeout(retryTimer);
  try {
    info = await playgroundInfo();
  } catch (error) {
    $("key-form").hidden = error.status !== 401;
    if (error.status !== 401 || apiKey.get()) notice.show(errorMessage(error), error.status === 401 ? null : open, error.retryAfter);
    if (error.status === 401) $("key").focus();
    else retryTimer = setTimeout(open, Math.max(RETRY_MS, 1000 * (error.retryAfter ?? 0)));
    return;
  }
  notice.hide();
  $("key-form").hidden = true;
  $("model").textContent = info.model.id;
  $("version").textContent = `Polyvox ${info.version}`;
  $("playground").hidden = $("views").hidden = false;
  composer.show(info);
  if (speakView === null) {
    speakView = new SpeakView(composer, player, info.model.sample_rate, new Measurement(), open);
    if (info.model.can_clone) new VoiceDialog(info.limits, showVoices);
    $("no-llm").hidden = info.conversation.llm;
    $("conversation").hidden = !info.conversation.llm;
    if (info.conversation.llm) conversationView = new ConversationView(player, info, stopSpeech, open);
    showViews((name) => name !== "conversation" && conversationView?.close());
  }
  showSnippet();
  pollReadiness();
}

async function pollReadiness() {
  const { status } = await readiness().catch(() => ({ status: "unreachable" }));
  const ready = status === "ready";
  $("model").dataset.ready = ready;
  $("model").title = ready ? "Ready" : `Server status: ${status}`;
  if (!ready) setTimeout(pollReadiness, RETRY_MS);
}

async function showVoices(selected) {
  const { voices } = await playgroundInfo();
  composer.showVoices(voices, selected);
  conversationView?.showVoices(voices);
  showSnippet();
}

async function removeVoice(name) {
  if (!confirm(`Delete the voice “${name}”? This cannot be undone.`)) return;
  try {
    await deleteVoice(name);
    await showVoices(composer.voice);
  } catch (error) {
    $("voice-status").textContent = errorMessage(error);
  }
}

function stopSpeech() {
  composer.stopSample();
  speakView?.stop();
  if (loadTest && !loadTest.done) loadTest.stop();
}

function stopAll() {
  stopSpeech();
  conversationView?.interrupt();
}

function speak() {
  stopAll();
  speakView.speak();
}

function measure() {
  stopAll();
  speakView.speakText();
}

// The request of the form; with the seed of the last utterance if that had the same request.
function currentRequest() {
  const body = composer.request();
  const last = speakView.utterance;
  const repeated = last?.seed != null && JSON.stringify(last.body) === JSON.stringify(body);
  return { ...body, ...(repeated ? { seed: last.seed } : {}), response_format: composer.format.name };
}

function curl() {
  return asCurl(baseUrl, currentRequest(), info.needs_key, composer.format.ending);
}

function python() {
  if (composer.mode === "live") return asPipe(baseUrl, composer.options(), info.needs_key, info.model.sample_rate);
  return asPython(baseUrl, currentRequest(), info.needs_key, composer.format.ending, info.model.id);
}

function showSnippet() {
  const live = composer.mode === "live";
  $("code-hint").textContent = live
    ? "A program that speaks its input while it arrives. Pipe a language model into it; it needs the package websockets."
    : "The same speech from a terminal or a program.";
  $("code").textContent = live ? python() : curl();
  $("copy-curl").hidden = live;
}

async function startLoadTest() {
  const problem = composer.problem();
  $("load-problem").hidden = problem === null;
  $("load-problem").textContent = problem ?? "";
  if (problem) return;
  stopAll();
  const body = composer.request();
  const voices = info.voices.map((voice) => voice.name);
  const bodies = Array.from({ length: Number($("load-size").value) }, (_, i) => ({
    ...body,
    ...(voices.length ? { voice: voices[(voices.indexOf(body.voice) + i) % voices.length] } : {}),
    ...(body.seed === undefined ? {} : { seed: body.seed + i }),
  }));
  const current = (loadTest = new LoadTest($("streams"), player, info.model.sample_rate));
  $("load-stop").disabled = false;
  $("legend").hidden = false;
  await current.run(bodies, ({ text, problem }) => {
    if (current !== loadTest) return;
    $("load-status").textContent = text;
    $("load-problem").hidden = problem === "";
    $("load-problem").textContent = problem;
  });
  if (current !== loadTest) return;
  $("load-stop").disabled = true;
  $("load-announcement").textContent = `${$("load-status").textContent} ${$("load-problem").textContent}`;
}

function onSubmit(id, act) {
  $(id).addEventListener("submit", (event) => {
    event.preventDefault();
    act();
  });
}

onSubmit("composer", speak);
onSubmit("load-form", startLoadTest);
onSubmit("key-form", () => {
  apiKey.set($("key").value.trim());
  open();
});
$("keep-seed").addEventListener("click", () => ($("seed").value = speakView.utterance.seed));
$("stop").addEventListener("click", stopAll);
$("measure-start").addEventListener("click", measure);
$("load-stop").addEventListener("click", stopAll);
$("copy-curl").addEventListener("click", (event) => copyFrom(event.currentTarget, curl()));
$("copy-python").addEventListener("click", (event) => copyFrom(event.currentTarget, python()));
$("playground").addEventListener("input", () => showSnippet());
$("playground").addEventListener("change", () => showSnippet());
$("load-size").addEventListener("input", () => {
  $("load-size-value").textContent = $("load-size").value;
  $("load-start").textContent = `Start ${$("load-size").value}`;
});
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") stopAll();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && location.hash !== "#conversation") $("composer").requestSubmit();
});
showResponses();
open();
