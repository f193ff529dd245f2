// The server as the page sees it. Addresses are relative to the page, so any path may stand before them.

const KEY = "polyvox-key";

export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key) => sessionStorage.setItem(KEY, key),
};

export class Refusal extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter; // seconds
  }

  get full() {
    return this.status === 503 || this.status === 429;
  }
}

export function inWords(error) {
  if (error instanceof Refusal) {
    if (error.status === 401) return "This server needs an API key, and this is not one of its keys.";
    const again = error.retryAfter ? ` Try again in ${seconds(error.retryAfter)}.` : "";
    if (error.status === 503) return `The server is full just now: ${sentence(error.message)}${again}`;
    if (error.status === 429) return `You have reached your share: ${sentence(error.message)}${again}`;
    return capital(sentence(error.message));
  }
  if (error instanceof TypeError) return "The server cannot be reached.";
  return capital(sentence(error.message));
}

export const facts = async () => (await call("v1/playground")).json();
export const readiness = async () => (await fetch("readyz")).json();
export const outcome = async (id) => (await call(`v1/audio/speech/${encodeURIComponent(id)}`)).json();

export function speech(body, signal) {
  const headers = { "content-type": "application/json" };
  return call("v1/audio/speech", { method: "POST", headers, body: JSON.stringify(body), signal });
}

export async function addVoice(fields, recording, fileName) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) if (value) form.set(name, value);
  form.set("audio_sample", recording, fileName);
  return (await call("v1/audio/voices", { method: "POST", body: form })).json();
}

async function call(address, options = {}) {
  const headers = new Headers(options.headers);
  if (apiKey.get()) headers.set("authorization", `Bearer ${apiKey.get()}`);
  const answer = await fetch(address, { ...options, headers });
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer) {
  const told = await answer.json().catch(() => null);
  const message = told?.error?.message ?? `the server answered ${answer.status} ${answer.statusText}`;
  const wait = Number(answer.headers.get("retry-after-ms")) / 1000;
  return new Refusal(answer.status, message, wait || null);
}

const seconds = (value) => (value < 10 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`);
const sentence = (text) => (/[.!?…]$/.test(text) ? text : `${text}.`);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
