# SPDX-License-Identifier: Apache-2.0
"""The programs in examples/ run. Those that need client packages run in `make conformance`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from polyvox.audio import read_audio

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"
SAMPLE_RATE = 24_000


def run(name: str, *arguments: Path) -> str:
    done = subprocess.run([sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_speech_starts_before_the_last_token(tmp_path: Path) -> None:
    report = run("llm_to_speech.py", tmp_path / "answer.wav")
    first_audio, last_token = map(float, re.findall(r"after ([\d.]+) s", report))
    assert first_audio < last_token
    assert len(read_audio(tmp_path / "answer.wav", SAMPLE_RATE)) > 2 * SAMPLE_RATE


def test_an_audiobook_has_every_chapter_and_resumes(tmp_path: Path) -> None:
    chapters, book = tmp_path / "chapters", tmp_path / "book"
    chapters.mkdir()
    book.mkdir()
    (chapters / "1.md").write_text("# One\n\nIt was late.")
    (chapters / "2.txt").write_text("The end.")
    (book / "1.opus").touch()  # finished in an earlier run
    assert "1.opus: exists, skipped" in run("audiobook.py", chapters, book)
    assert len(read_audio(book / "2.opus", SAMPLE_RATE)) > SAMPLE_RATE // 4
    assert "The end." in (book / "2.srt").read_text()
    assert not list(book.glob("*.part"))


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        assert path.name == "README.md" or f"]({path.name}" in listed, path.name
