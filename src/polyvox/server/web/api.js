// The HTTP API as the page uses it. URLs are relative to the page, so it works below any path prefix.

const KEY = "polyvox-key";

export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key) => sessionStorage.setItem(KEY, key),
};

export class ApiError extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter; // seconds
  }

  get overloaded() {
    return this.status === 503 || this.status === 429;
  }
}

export function errorMessage(error) {
  if (error instanceof ApiError) {
    if (error.status === 401) return "Invalid API key.";
    const retry = error.retryAfter ? ` Retry in ${seconds(error.retryAfter)}.` : "";
    if (error.status === 503) return `The server is at capacity: ${sentence(error.message)}${retry}`;
    if (error.status === 429) return `Too many concurrent requests: ${sentence(error.message)}${retry}`;
    return capitalized(sentence(error.message));
  }
  if (error instanceof TypeError) return "The server is unreachable.";
  return capitalized(sentence(error.message));
}

export const playgroundInfo = async () => (await call("v1/playground")).json();
export const readiness = async () => (await fetch("readyz")).json();
export const speechResult = async (id) => (await call(`v1/audio/speech/${encodeURIComponent(id)}`)).json();

export function createSpeech(body, signal) {
  const headers = { "content-type": "application/json" };
  return call("v1/audio/speech", { method: "POST", headers, body: JSON.stringify(body), signal });
}

export async function addVoice(fields, recording, fileName) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) if (value) form.set(name, value);
  form.set("audio_sample", recording, fileName);
  return (await call("v1/audio/voices", { method: "POST", body: form })).json();
}

async function call(url, options = {}) {
  const headers = new Headers(options.headers);
  if (apiKey.get()) headers.set("authorization", `Bearer ${apiKey.get()}`);
  const response = await fetch(url, { ...options, headers });
  if (!response.ok) throw await errorFrom(response);
  return response;
}

async function errorFrom(response) {
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `HTTP ${response.status} ${response.statusText}`;
  const retryAfter = Number(response.headers.get("retry-after-ms")) / 1000;
  return new ApiError(response.status, message, retryAfter || null);
}

const seconds = (value) => (value < 10 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`);
const sentence = (text) => (/[.!?…]$/.test(text) ? text : `${text}.`);
const capitalized = (text) => text.charAt(0).toUpperCase() + text.slice(1);
