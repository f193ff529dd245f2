# SPDX-License-Identifier: Apache-2.0
"""The training pipeline at toy size: all stages run, and the result is a checkpoint that loads and synthesises."""

import json
import subprocess
import sys
from pathlib import Path

from polyvox import load
from polyvox.tts import EMBEDDED_VOICE
from toy_teacher import write_corpus, write_teacher
from training.corpus import read_timings
from training.layout import NUM_CODEBOOKS
from training.pipeline import STAGES
from training.pool import Pool

TEXTS, SPOKEN = 90, 66
ROOT = Path(__file__).parents[2]
SMALL = (
    "durations=--workers=2", "speech=--workers=2", f"speech=--limit={SPOKEN}", "codec=--batch=2",
    "codec=--start-batches=1", "vocoder=--batch=2", "vocoder=--spectral-steps=3",
    "talker=--rows=512", "talker=--validation=2", "finetune=--batch=2",
)  # fmt: skip
MINUTES = "durations=1,speech=1,codec=0.1,vocoder=0.1,talker=0.05,finetune=0.02"


def run(module: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-m", f"training.{module}", *map(str, arguments)], check=True, cwd=ROOT)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_all_training_stages_run_and_give_a_voice(tmp_path: Path) -> None:
    work, out, teacher = tmp_path / "work", tmp_path / "out", tmp_path / "teacher"
    write_teacher(teacher)
    write_corpus(work / "corpus", TEXTS)
    (work / "tokens").symlink_to(EMBEDDED_VOICE)
    given: list[object] = ["--work", work, "--teacher", teacher, "--out", out, "--minutes", MINUTES]
    given += [part for one in SMALL for part in ("--extra", one)]

    run("pipeline", *given, "--only", "durations,speech,codec")
    assert sorted(read_timings(work / "corpus", "durations").texts) == list(range(TEXTS))
    assert sorted(read_timings(work / "corpus", "speech").texts) == list(range(SPOKEN))
    assert {path.name for path in out.iterdir()} == {
        "decoder-0.safetensors", "decoder-1.safetensors", "encoder-0.safetensors", "codec.jsonl", "codes.npz",
        "stages.jsonl",
    }  # fmt: skip
    before = (out / "decoder-0.safetensors").read_bytes()

    run("pipeline", *given)  # resumes
    assert [row["stage"] for row in lines(out / "stages.jsonl")] == list(STAGES)
    assert len(list(out.iterdir())) == 10
    assert (out / "decoder-0.safetensors").read_bytes() != before
    pool = Pool.load(work / "pool.npz")
    assert set(pool.text.tolist()) == {-1, *range(TEXTS)}
    assert pool.codes.shape[1] == NUM_CODEBOOKS

    done = lines(out / "talker.jsonl")[-1]
    assert done["phase"] == "done"
    first, *_, last = lines(out / "finetune.jsonl")
    assert {"valid_true", "valid_coded"} <= first.keys() & last.keys()
    assert last["phase"] == "done"

    voice = tmp_path / "voice"
    run("export", "--codec", out, "--talker", out, "--tokenizer", work / "tokens", "--out", voice)
    with load(voice, "cpu") as tts:
        assert tts.sample_rate == 24_000
