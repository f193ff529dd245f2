// SPDX-License-Identifier: Apache-2.0
// ElevenLabs' package for Node, with its default voice.
import { ElevenLabsClient } from "@elevenlabs/elevenlabs-js";
import { Measurement, TEXT } from "./measurement.mjs";

const client = new ElevenLabsClient({ baseUrl: process.argv[2], apiKey: "none" });
const found = await client.voices.search();
if (!found.voices.length) throw new Error("no voices");
const measurement = new Measurement();
const stream = await client.textToSpeech.stream("21m00Tcm4TlvDq8ikWAM", { text: TEXT, outputFormat: "pcm_24000" });
for await (const chunk of stream) measurement.add(chunk);
measurement.report("@elevenlabs/elevenlabs-js");
