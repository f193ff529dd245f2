// SPDX-License-Identifier: Apache-2.0
// The AI SDK with its OpenAI provider.
import { createOpenAI } from "@ai-sdk/openai";
import * as ai from "ai";
import { Measurement, TEXT } from "./measurement.mjs";

const openai = createOpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none" });
const generateSpeech = ai.generateSpeech ?? ai.experimental_generateSpeech;
const measurement = new Measurement();
const { audio } = await generateSpeech({ model: openai.speech("gpt-4o-mini-tts"), text: TEXT, voice: "alloy", outputFormat: "wav" });
measurement.add(audio.uint8Array);
measurement.report("ai", "`generateSpeech` returns the whole file");
