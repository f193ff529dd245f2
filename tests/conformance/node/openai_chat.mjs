// SPDX-License-Identifier: Apache-2.0
// Chat completions with OpenAI's package for Node: prints what it received as JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Hi!" }];
const request = { model: "any", modalities: ["text", "audio"], messages };

const whole = await client.chat.completions.create({ ...request, audio: { voice: "alloy", format: "wav" } });
const { audio, content } = whole.choices[0].message;

const streamed = { transcript: "", numBytes: 0, finishReason: null, usage: null };
const audioOptions = { voice: "alloy", format: "pcm16" };
const options = { stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create({ ...request, audio: audioOptions, ...options })) {
  streamed.usage = chunk.usage ?? streamed.usage;
  for (const choice of chunk.choices) {
    streamed.transcript += choice.delta.audio?.transcript ?? "";
    streamed.numBytes += Buffer.from(choice.delta.audio?.data ?? "", "base64").length;
    streamed.finishReason = choice.finish_reason ?? streamed.finishReason;
  }
}

let error = null;
try {
  await client.chat.completions.create({ ...request, audio: { voice: "nobody", format: "wav" } });
} catch (caught) {
  error = { status: caught.status, param: caught.param };
}
console.log(JSON.stringify({ content, numBytes: Buffer.from(audio.data, "base64").length, streamed, error }));
