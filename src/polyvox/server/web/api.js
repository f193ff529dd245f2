// The HTTP API as the page uses it. URLs are relative to the page, so it works below any path prefix.

import { StallTimer, TimeoutError } from "./timeouts.js";

const KEY = "polyvox-key";
const INFO_SECONDS = 10; // timeouts: the longest time without a response, or without more of its body
const SPEECH_SECONDS = 60;
const UPLOAD_SECONDS = 120;

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

// What happened and what to do.
export function errorMessage(error) {
  if (error instanceof TimeoutError) return `${sentence(capitalized(error.message))} It may be busy or unreachable.`;
  if (error instanceof ApiError) {
    if (error.status === 401) return "Invalid API key.";
    if (error.status === 503) return `The server is at capacity: ${sentence(error.message)}`;
    if (error.status === 429) return `Too many concurrent requests: ${sentence(error.message)}`;
    return capitalized(sentence(error.message));
  }
  if (error instanceof TypeError) return "The server is unreachable. Check that it is running, and your network.";
  return capitalized(sentence(error.message));
}

export const playgroundInfo = async () => parsed(await call("v1/playground", INFO_SECONDS));
export const readiness = async () => parsed(await request("readyz", INFO_SECONDS));
export const speechResult = async (id) => parsed(await call(`v1/audio/speech/${encodeURIComponent(id)}`, INFO_SECONDS));
export const responseText = async (url) => (await call(url, INFO_SECONDS)).text();
export const deleteVoice = (name) => call(`v1/audio/voices/${encodeURIComponent(name)}`, INFO_SECONDS, { method: "DELETE" });

// A whole file of speech.
export async function createSpeech(body, signal) {
  const headers = { "content-type": "application/json" };
  const options = { method: "POST", headers, body: JSON.stringify({ ...body, stream: false }), signal };
  return (await call("v1/audio/speech", SPEECH_SECONDS, options)).blob();
}

export async function addVoice(fields, recording, fileName) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) if (value) form.set(name, value);
  form.set("audio_sample", recording, fileName);
  return parsed(await call("v1/audio/voices", UPLOAD_SECONDS, { method: "POST", body: form }));
}

// Why a WebSocket could not be opened: browsers do not say, but an HTTP request gets an error with its reason.
export async function connectionError() {
  try {
    await playgroundInfo();
  } catch (error) {
    return error;
  }
  return new Error("the WebSocket connection failed. A proxy may block WebSockets");
}

async function call(url, seconds, options = {}) {
  const headers = new Headers(options.headers);
  if (apiKey.get()) headers.set("authorization", `Bearer ${apiKey.get()}`);
  const response = await request(url, seconds, { ...options, headers });
  if (!response.ok) throw await errorFrom(response);
  return response;
}

// The response with its whole body. Fails if the server sends nothing for some seconds.
async function request(url, seconds, options = {}) {
  const abort = new AbortController();
  options.signal?.addEventListener("abort", () => abort.abort(options.signal.reason));
  const timer = new StallTimer(seconds, () => abort.abort(new TimeoutError(seconds)));
  try {
    const response = await fetch(url, { ...options, signal: abort.signal });
    const parts = [];
    const reader = response.body?.getReader();
    while (reader) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      timer.progress();
    }
    const { status, statusText, headers } = response;
    return new Response(parts.length ? new Blob(parts, { type: headers.get("content-type") ?? "" }) : null, { status, statusText, headers });
  } catch (error) {
    throw abort.signal.aborted ? abort.signal.reason : error;
  } finally {
    timer.clear();
  }
}

const parsed = (response) => response.json();

async function errorFrom(response) {
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `HTTP ${response.status} ${response.statusText}`;
  const { headers } = response;
  const retryAfter = Number(headers.get("retry-after-ms")) / 1000 || Number(headers.get("retry-after"));
  return new ApiError(response.status, message, retryAfter || null);
}

const sentence = (text) => (/[.!?…]$/.test(text) ? text : `${text}.`);
const capitalized = (text) => text.charAt(0).toUpperCase() + text.slice(1);
