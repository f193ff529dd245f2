// The playground: connects the form, the playback panel and the load test.

import { apiKey, createSpeech, errorMessage, playgroundInfo, readiness } from "./api.js";
import { Composer } from "./composer.js";
import { LoadTest } from "./load_test.js";
import { save, wavFile } from "./pcm.js";
import { PlaybackPanel, showStatus } from "./playback_panel.js";
import { Player } from "./player.js";
import { asCurl, asPython, copy } from "./snippets.js";
import { Utterance } from "./utterance.js";
import { VoiceDialog } from "./voice_dialog.js";

const RETRY_MS = 1500; // while the server is not ready
const COPIED_MS = 1500;
const $ = (id) => document.getElementById(id);
const baseUrl = new URL(".", location.href).href;

const player = new Player();
const composer = new Composer();
let info = null;
let panel = null;
let utterance = null;
let loadTest = null;

function showNotice(problem) {
  $("notice").hidden = problem === null;
  $("notice").textContent = problem ?? "";
}

async function open() {
  try {
    info = await playgroundInfo();
  } catch (error) {
    $("key-form").hidden = error.status !== 401;
    if (error.status !== 401 || apiKey.get()) showNotice(errorMessage(error));
    if (error.status === 401) $("key").focus();
    else setTimeout(open, RETRY_MS);
    return;
  }
  showNotice(null);
  $("key-form").hidden = true;
  $("model").textContent = info.model.id;
  $("version").textContent = `Polyvox ${info.version}`;
  $("playground").hidden = false;
  composer.show(info);
  if (panel === null) {
    panel = new PlaybackPanel();
    composer.listen();
    if (info.model.can_clone) new VoiceDialog(info.limits, showNewVoice);
  }
  pollReadiness();
}

async function pollReadiness() {
  const { status } = await readiness().catch(() => ({ status: "unreachable" }));
  const ready = status === "ready";
  $("model").dataset.ready = ready;
  $("model").title = ready ? "Ready" : `Server status: ${status}`;
  if (!ready) setTimeout(pollReadiness, RETRY_MS);
}

async function showNewVoice(name) {
  composer.showVoices((await playgroundInfo()).voices, name);
  showStatus(`Voice ${name} added.`);
}

async function speak() {
  const problem = composer.problem();
  if (problem) return showStatus(problem, true);
  stopAll();
  const current = (utterance = new Utterance(composer.request(), info.model.sample_rate, player));
  panel.begin(current);
  if (matchMedia("(max-width: 820px)").matches) $("playback").scrollIntoView({ block: "nearest" });
  $("stop").disabled = false;
  $("download").disabled = true;
  await current.run((samples) => {
    if (current !== utterance) return; // replaced by a newer one
    panel.update(samples);
    $("download").disabled = current.received === 0 || ["requesting", "streaming"].includes(current.state);
  });
  if (current === utterance) $("stop").disabled = true;
  $("keep-seed").hidden = current.seed === null;
  if (current.error?.status === 401) open();
}

function stopAll() {
  if (utterance && !utterance.done) utterance.stop();
  if (loadTest && !loadTest.done) loadTest.stop();
}

async function download() {
  const format = composer.format;
  const name = `speech${format.ending}`;
  if (format.name === "wav" || format.name === "pcm") {
    save(format.name === "wav" ? wavFile(utterance.chunks, utterance.sampleRate) : new Blob(utterance.chunks), name);
    return;
  }
  $("download").disabled = true;
  try {
    const body = { ...utterance.body, seed: utterance.seed, response_format: format.name, stream: false };
    save(await (await createSpeech(body)).blob(), name);
  } catch (error) {
    showStatus(errorMessage(error), true);
  } finally {
    $("download").disabled = false;
  }
}

async function copyFrom(button, text) {
  const caption = button.textContent;
  await copy(text);
  button.textContent = "Copied";
  showStatus(`Copied the request ${caption.replace("Copy ", "")}.`);
  setTimeout(() => (button.textContent = caption), COPIED_MS);
}

// The request of the form; with the seed of the last utterance if that had the same request.
function currentRequest() {
  const body = composer.request();
  const repeated = utterance?.seed != null && JSON.stringify(utterance.body) === JSON.stringify(body);
  return { ...body, ...(repeated ? { seed: utterance.seed } : {}), response_format: composer.format.name };
}

async function startLoadTest() {
  const problem = composer.problem();
  if (problem) return showStatus(problem, true);
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
$("keep-seed").addEventListener("click", () => ($("seed").value = utterance.seed));
$("stop").addEventListener("click", stopAll);
$("load-stop").addEventListener("click", stopAll);
$("download").addEventListener("click", download);
$("copy-curl").addEventListener("click", (event) =>
  copyFrom(event.currentTarget, asCurl(baseUrl, currentRequest(), info.needs_key, composer.format.ending)),
);
$("copy-python").addEventListener("click", (event) =>
  copyFrom(event.currentTarget, asPython(baseUrl, currentRequest(), info.needs_key, composer.format.ending, info.model.id)),
);
$("load-size").addEventListener("input", () => {
  $("load-size-value").textContent = $("load-size").value;
  $("load-start").textContent = `Start ${$("load-size").value}`;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("voice-dialog").open) stopAll();
});
open();
