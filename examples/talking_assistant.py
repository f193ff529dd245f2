# SPDX-License-Identifier: Apache-2.0
"""A talking assistant: type a line, read the answer while the LLM writes it, and hear it while it is spoken.

polyvox serve --llm http://localhost:11434/v1 --llm-model llama3.2
pip install openai sounddevice
python talking_assistant.py [--url http://127.0.0.1:8000] [--output FILE]   # an output file instead of the speakers
"""

import argparse
import base64
import sys
from typing import Any

import openai


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--output", help="write raw 16-bit samples at 24 kHz to this file")
    options = parser.parse_args()
    speaker = open(options.output, "wb") if options.output else open_speaker()  # noqa: SIM115
    client = openai.OpenAI(base_url=f"{options.url}/v1", api_key="none")
    messages: list[Any] = [{"role": "system", "content": "You are heard, not read: answer in short sentences."}]
    for line in sys.stdin:
        messages.append({"role": "user", "content": line.strip()})
        answer = ""
        voice: Any = {"voice": "alloy", "format": "pcm16"}
        for chunk in client.chat.completions.create(
            model="any", messages=messages, modalities=["text", "audio"], audio=voice, stream=True
        ):
            for choice in chunk.choices:
                answer += choice.delta.content or ""
                print(choice.delta.content or "", end="", flush=True)
                if choice.delta.audio is not None and choice.delta.audio.data:
                    speaker.write(base64.b64decode(choice.delta.audio.data))
        print()
        messages.append({"role": "assistant", "content": answer})
    speaker.close()


def open_speaker() -> Any:
    import sounddevice

    stream = sounddevice.RawOutputStream(samplerate=24_000, channels=1, dtype="int16")
    stream.start()
    return stream


if __name__ == "__main__":
    main()
