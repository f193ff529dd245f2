# SPDX-License-Identifier: Apache-2.0
"""A chapter of 3,000 words: interrupted, resumed, equally loud to the end, without a click at its seams."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from polyvox.audio import read_audio
from polyvox.audio.loudness import integrated_loudness

WORDS = 3000
RATE = 24_000
WHO = [
    "the old captain",
    "my sister",
    "a young doctor",
    "the gardener",
    "our neighbour",
    "the baker",
    "her uncle",
    "a stranger",
]
DID = [
    "walked down to",
    "looked back at",
    "had never seen",
    "wrote a letter about",
    "dreamt of",
    "spoke softly of",
    "remembered",
]
WHAT = [
    "the harbour",
    "a small green door",
    "the house on the hill",
    "an empty train",
    "the long winter",
    "that summer",
]
WHEN = [
    "in the morning",
    "before the rain came",
    "without a word",
    "for the first time",
    "late at night",
    "as if by chance",
]


def chapter() -> str:
    draw = random.Random(1)
    paragraphs, words = ["# Chapter IV"], 0
    while words < WORDS:
        sentences = []
        for _ in range(draw.randint(3, 7)):
            said = " ".join(draw.choice(part) for part in (WHO, DID, WHAT, WHEN))
            sentences.append(said[0].upper() + said[1:] + draw.choice([".", ".", ".", "!", "?"]))
            words += len(said.split())
        paragraphs.append(" ".join(sentences))
    return "\n\n".join(paragraphs)


def cues(path: Path) -> list[tuple[int, int]]:
    """First and last sample of each sentence."""
    found = []
    for line in path.read_text().splitlines():
        if " --> " in line:
            times = [re.split("[:,]", moment) for moment in line.split(" --> ")]
            found.append(
                tuple(round((int(h) * 3600 + int(m) * 60 + int(s) + int(ms) / 1e3) * RATE) for h, m, s, ms in times)
            )
    return found  # type: ignore[return-value]


def test_a_chapter_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "chapter.md").write_text(chapter())
    command = [
        sys.executable,
        "-m",
        "polyvox",
        "say",
        "--file",
        "chapter.md",
        "-o",
        "chapter.wav",
        "--subtitles",
        "c.srt",
    ]
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": "100"}
    for stop_at in (5, 40):
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as running:
            until = time.monotonic() + 600
            while len(list((tmp_path / "chapter.wav.parts").glob("*.npz"))) < stop_at:
                assert time.monotonic() < until
                assert running.poll() is None
                time.sleep(0.05)
            running.send_signal(signal.SIGINT if stop_at == 5 else signal.SIGKILL)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "sentences are already done" in done.stderr
    assert "Speaking …" in done.stderr
    sound = read_audio(tmp_path / "chapter.wav", RATE, max_seconds=7200, max_bytes=1_000_000_000)
    times = cues(tmp_path / "c.srt")
    assert len(times) > 250
    levels = np.array([integrated_loudness(sound[start:end], RATE) for start, end in times])
    assert levels.max() - levels.min() < 1
    for (_, end), (start, _) in pairwise(times):
        around = sound[end - 48 : start + 48]
        assert np.abs(np.diff(around)).max() < 0.05  # a click is a jump
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.srt", "chapter.md", "chapter.wav"]
