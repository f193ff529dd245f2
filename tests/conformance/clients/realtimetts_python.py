# SPDX-License-Identifier: Apache-2.0
"""RealtimeTTS with its OpenAI engine. A module of ours stands for pyaudio, whose package must be compiled."""

import os
import re
import sys
import types

from measurement import Measurement, words

os.environ |= {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{sys.argv[1]}/v1"}
names = ("paInt16", "paInt32", "paFloat32", "paInt8", "paUInt8", "paInt24", "paCustomFormat")
audio = types.ModuleType("pyaudio")
for number, name in enumerate(names):
    setattr(audio, name, number)
audio.PyAudio = type("PyAudio", (), {"terminate": lambda _: None, "get_sample_size": lambda *_: 2})
sys.modules["pyaudio"] = audio
sys.modules["pyaudio._portaudio"] = audio._portaudio = types.SimpleNamespace(paFramesPerBufferUnspecified=0)

from stream2sentence import stream2sentence  # noqa: E402

stream2sentence.nltk_initialized = True  # otherwise it downloads the data of a sentence splitter

from RealtimeTTS import OpenAIEngine, TextToAudioStream  # noqa: E402

engine = OpenAIEngine(model="tts-1", voice="alloy", response_format="pcm")
stream = TextToAudioStream(engine, muted=True)
measurement = Measurement()
stream.feed(words())
stream.play(muted=True, on_audio_chunk=measurement.add, tokenize_sentences=lambda text: re.split(r"(?<=[.!?]) +", text))
measurement.report("realtimetts", "one request per sentence")
