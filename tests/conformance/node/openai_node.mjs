// SPDX-License-Identifier: Apache-2.0
// OpenAI's package for Node.
import OpenAI from "openai";
import { Measurement, TEXT } from "./measurement.mjs";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none" });
const measurement = new Measurement();
const response = await client.audio.speech.create({ model: "gpt-4o-mini-tts", voice: "alloy", input: TEXT, response_format: "pcm" });
for await (const chunk of response.body) measurement.add(chunk);
measurement.report("openai");
