# SPDX-License-Identifier: Apache-2.0
"""Turn a folder of chapters (.txt, .md) into Opus files with subtitles: audiobook.py CHAPTERS OUTPUT

Chapters that exist in OUTPUT are skipped, so an interrupted run continues with the next chapter.
"""

import argparse
from pathlib import Path

import numpy as np

import polyvox
from polyvox.audio import Encoder
from polyvox.subtitles import Cue, format_subtitles


def synthesize(tts: polyvox.TTS, chapter: Path, output: Path, voice: str | None) -> float:
    """Write one chapter and its subtitles; returns the seconds of speech."""
    cues: list[Cue] = []
    written = 0
    partial = output.with_suffix(".part")
    with Encoder("opus", tts.sample_rate) as encoder, partial.open("wb") as file:
        for sentence in tts.read(chapter.read_text(encoding="utf-8"), voice=voice, seed=7):
            cues.append((sentence.start, sentence.end, sentence.text))
            file.write(encoder.push(sentence.samples))
            file.write(encoder.push(np.zeros(sentence.pause, np.float32)))
            written = sentence.end + sentence.pause
        file.write(encoder.finish())
    output.with_suffix(".srt").write_text(format_subtitles(cues, tts.sample_rate, "srt"), encoding="utf-8")
    partial.rename(output)  # a chapter exists once it is complete
    return written / tts.sample_rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chapters", type=Path, help="folder of text files, read in the order of their names")
    parser.add_argument("output", type=Path, help="folder for the audio files")
    parser.add_argument("--voice", help="a voice of the model")
    parser.add_argument("--model", help="checkpoint folder or hub id (default: the embedded voice)")
    arguments = parser.parse_args()

    arguments.output.mkdir(parents=True, exist_ok=True)
    chapters = sorted(path for path in arguments.chapters.iterdir() if path.suffix in (".txt", ".md"))
    with polyvox.load(arguments.model) as tts:
        for chapter in chapters:
            output = arguments.output / f"{chapter.stem}.opus"
            if output.exists():
                print(f"{output}: exists, skipped")
                continue
            print(f"{output}: {synthesize(tts, chapter, output, arguments.voice):.1f} s")


if __name__ == "__main__":
    main()
