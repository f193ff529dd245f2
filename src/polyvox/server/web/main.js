// The page: who is asked, what is heard, and the crowd.

import { apiKey, facts as askFacts, inWords, readiness, speech } from "./api.js";
import { Composer } from "./composer.js";
import { Crowd } from "./crowd.js";
import { Heard, say } from "./heard.js";
import { save, wavFile } from "./pcm.js";
import { Player } from "./player.js";
import { Recording } from "./recording.js";
import { asCurl, asPython, copy } from "./snippets.js";
import { Utterance } from "./utterance.js";

const LOOK_AGAIN_MS = 1500; // at a server that is not ready yet
const $ = (id) => document.getElementById(id);
const address = new URL(".", location.href).href;

const player = new Player();
const composer = new Composer();
let facts = null;
let heard = null;
let utterance = null;
let crowd = null;

function notice(problem) {
  $("notice").hidden = problem === null;
  $("notice").textContent = problem ?? "";
}

async function open() {
  try {
    facts = await askFacts();
  } catch (error) {
    $("key-form").hidden = error.status !== 401;
    if (error.status !== 401 || apiKey.get()) notice(inWords(error));
    if (error.status === 401) $("key").focus();
    else setTimeout(open, LOOK_AGAIN_MS);
    return;
  }
  notice(null);
  $("key-form").hidden = true;
  $("model").textContent = facts.model.id;
  $("version").textContent = `Polyvox ${facts.version}`;
  $("playground").hidden = false;
  composer.show(facts);
  if (heard === null) {
    heard = new Heard();
    composer.listen();
    if (facts.model.clones) new Recording(facts.limits, showNewVoice);
  }
  look();
}

async function look() {
  const told = await readiness().catch(() => ({ status: "cannot be reached" }));
  const ready = told.status === "ready";
  $("model").dataset.ready = ready;
  $("model").title = ready ? "Ready" : `The server is ${told.status}`;
  if (!ready) setTimeout(look, LOOK_AGAIN_MS);
}

async function showNewVoice(name) {
  composer.showVoices((await askFacts()).voices, name);
  say(`${name} is here. Let it speak.`);
}

async function speak() {
  const problem = composer.problem();
  if (problem) return say(problem, true);
  stopAll();
  const mine = (utterance = new Utterance(composer.request(), facts.model.sample_rate, player));
  heard.begin(mine);
  if (matchMedia("(max-width: 820px)").matches) $("heard").scrollIntoView({ block: "nearest" });
  $("stop").disabled = false;
  $("download").disabled = true;
  await mine.run((samples) => {
    if (mine !== utterance) return; // another one has begun
    heard.update(samples);
    $("download").disabled = mine.received === 0 || ["asking", "speaking"].includes(mine.state);
  });
  if (mine === utterance) $("stop").disabled = true;
  $("keep-seed").hidden = mine.seed === null;
  if (mine.error?.status === 401) open();
}

function stopAll() {
  if (utterance && !utterance.over) utterance.stop();
  if (crowd && !crowd.over) crowd.stop();
}

async function download() {
  const format = composer.format;
  const name = `speech${format.ending}`;
  if (format.name === "wav" || format.name === "pcm") {
    save(format.name === "wav" ? wavFile(utterance.parts, utterance.rate) : new Blob(utterance.parts), name);
    return;
  }
  $("download").disabled = true;
  try {
    const body = { ...utterance.body, seed: utterance.seed, response_format: format.name, stream: false };
    save(await (await speech(body)).blob(), name);
  } catch (error) {
    say(inWords(error), true);
  } finally {
    $("download").disabled = false;
  }
}

async function copied(button, text) {
  const word = button.textContent;
  await copy(text);
  button.textContent = "Copied";
  say(`${word.replace("Copy as", "The request as")} is on the clipboard.`);
  setTimeout(() => (button.textContent = word), LOOK_AGAIN_MS);
}

// The request as it stands; where it is the one that was heard, with its seed.
function shown() {
  const body = composer.request();
  const heardIt = utterance?.seed != null && JSON.stringify(utterance.body) === JSON.stringify(body);
  return { ...body, ...(heardIt ? { seed: utterance.seed } : {}), response_format: composer.format.name };
}

async function startCrowd() {
  const problem = composer.problem();
  if (problem) return say(problem, true);
  stopAll();
  const body = composer.request();
  const voices = facts.voices.map((voice) => voice.name);
  const bodies = Array.from({ length: Number($("crowd-size").value) }, (_, i) => ({
    ...body,
    ...(voices.length ? { voice: voices[(voices.indexOf(body.voice) + i) % voices.length] } : {}),
    ...(body.seed === undefined ? {} : { seed: body.seed + i }),
  }));
  const mine = (crowd = new Crowd($("lanes"), player, facts.model.sample_rate));
  $("crowd-stop").disabled = false;
  $("legend").hidden = false;
  await mine.run(bodies, ({ text, problem }) => {
    if (mine !== crowd) return;
    $("crowd-status").textContent = text;
    $("crowd-problem").hidden = problem === "";
    $("crowd-problem").textContent = problem;
  });
  if (mine !== crowd) return;
  $("crowd-stop").disabled = true;
  $("crowd-told").textContent = `${$("crowd-status").textContent} ${$("crowd-problem").textContent}`;
}

function onSubmit(id, act) {
  $(id).addEventListener("submit", (event) => {
    event.preventDefault();
    act();
  });
}

onSubmit("composer", speak);
onSubmit("crowd-form", startCrowd);
onSubmit("key-form", () => {
  apiKey.set($("key").value.trim());
  open();
});
$("keep-seed").addEventListener("click", () => ($("seed").value = utterance.seed));
$("stop").addEventListener("click", stopAll);
$("crowd-stop").addEventListener("click", stopAll);
$("download").addEventListener("click", download);
$("copy-curl").addEventListener("click", (event) =>
  copied(event.currentTarget, asCurl(address, shown(), facts.needs_key, composer.format.ending)),
);
$("copy-python").addEventListener("click", (event) =>
  copied(event.currentTarget, asPython(address, shown(), facts.needs_key, composer.format.ending, facts.model.id)),
);
$("crowd-size").addEventListener("input", () => {
  $("crowd-shown").textContent = $("crowd-size").value;
  $("crowd-start").textContent = `Start ${$("crowd-size").value}`;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("voice-dialog").open) stopAll();
});
open();
