# SPDX-License-Identifier: Apache-2.0
"""Speak the tokens of a language model while it generates them: llm_to_speech.py OUTPUT.wav

`tokens` stands for a streaming chat completion. One thread appends its tokens to a live stream; the main thread
receives audio from the same stream, which starts before the last token exists.
"""

import argparse
import threading
import time
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import polyvox

ANSWER = "Of course. The next train leaves at nine forty five. It stops at the harbour, and then it goes to the coast."
TOKENS_PER_SECOND = 30


def tokens(text: str) -> Iterator[str]:
    """A scripted language model: words in fragments, at the speed of a real one."""
    for word in text.split(" "):
        for fragment in (word[:3], word[3:] + " "):
            time.sleep(1 / TOKENS_PER_SECOND)
            yield fragment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="WAV file to write")
    output = parser.parse_args().output

    with polyvox.load() as tts:
        stream = tts.stream(live=True, seed=7)
        started = time.monotonic()
        text_done: list[float] = []

        def append_tokens() -> None:
            for token in tokens(ANSWER):
                stream.append(token)
            stream.finish_text()
            text_done.append(time.monotonic() - started)

        writer = threading.Thread(target=append_tokens)
        writer.start()
        first_audio = None
        with wave.open(str(output), "wb") as file:
            file.setparams((1, 2, tts.sample_rate, 0, "NONE", ""))
            for samples in stream:  # play them here
                if first_audio is None:
                    first_audio = time.monotonic() - started
                file.writeframes((samples * 32767).astype(np.int16).tobytes())
        writer.join()
        print(f"first audio after {first_audio:.2f} s, last token after {text_done[0]:.2f} s")


if __name__ == "__main__":
    main()
