# SPDX-License-Identifier: Apache-2.0
"""Train the voice from a corpus of texts in stages; completed stages are skipped.

    python -m training.pipeline --work DIR --teacher DIR --out DIR [--only durations,speech] [--minutes talker=8]
        [--from-checkpoint [FOLDER]] [--run-minutes 9]

--work has corpus/ (from `training.corpus texts`) and tokens/ (from `training.tokens`) and receives the intermediate
files. After each stage, --out has the files that the checkpoint needs: decoder, encoder, talker and losses. Interrupted
stages resume: workers append, vocoder and finetune keep their state, the talker starts from its best weights.

--from-checkpoint continues the training of an exported voice's decoder, by default of the embedded one, in 20
minutes. It needs only corpus/phonemes.npz and the teacher: training.restore writes the rest from the checkpoint and
training/state. The codec only encodes, because other codes would be of no use to the talker, which is not trained; the
vocoder begins with new discriminators. An interrupted run is continued by the same command. With --run-minutes, vocoder
and finetune end in time, and no stage starts shortly before the end.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from polyvox.tts import EMBEDDED_VOICE
from training.restore import ENCODER, restore
from training.schedule import DONE

# Time budget of a stage in minutes on one H200; other stages run to their end. Loading, compilation and capture are
# hardly counted: about a minute each for vocoder, talker and finetune.
MINUTES = {"durations": 3.0, "speech": 4.0, "codec": 3.0, "vocoder": 15.0, "finetune": 8.0, "talker": 6.0}
CONTINUED_MINUTES = MINUTES | {"durations": 1.0, "speech": 2.0, "codec": 0.0, "vocoder": 9.5, "finetune": 5.0}
STAGES: tuple[str, ...] = ("durations", "speech", "codec", "vocoder", "finetune", "pool", "talker")
CONTINUED_STAGES = STAGES[: STAGES.index("pool")]
# Without a talker to train, texts are needed for speech only: a block of each worker (training.corpus), which has
# enough texts of equal length.
CONTINUED_EXTRA = {
    "durations": ["--limit=30000", "--workers=7"],
    "speech": ["--workers=7"],
    "vocoder": ["--spectral-steps=0"],
}
RESUMED = ("vocoder", "finetune")  # stages that end in time and continue in a later run
MIN_MINUTES = 2.0  # that must be left of a run when such a stage starts: loading and capture take one
RESERVE_MINUTES = 0.5  # for imports, the last validation and copies
# Files copied to --out; the second list only until the talker is trained.
KEPT = (
    "codec/decoder-*.safetensors", "codec/encoder-*.safetensors", "codec/codec.jsonl", "codec/vocoder.jsonl",
    "codec/finetune.jsonl",
    "talker/talker-*.safetensors", "talker/talker.jsonl",
)  # fmt: skip
UNTIL_TALKER = ("codec/codes.npz",)
REPORT = "stages.jsonl"


@dataclass(frozen=True, slots=True)
class Run:
    work: Path
    teacher: Path
    out: Path
    minutes: dict[str, float]
    extra: dict[str, list[str]]  # additional arguments of a stage
    deadline: float = math.inf  # monotonic time at which this run should end

    def command(self, stage: str) -> list[str]:
        corpus, codec, talker, pool = (self.work / name for name in ("corpus", "codec", "talker", "pool.npz"))
        tokens = self.work / "tokens"
        given: dict[str, list[object]] = {
            "durations": ["corpus", "durations", "--work", corpus, "--teacher", self.teacher],
            "speech": ["corpus", "speech", "--work", corpus, "--teacher", self.teacher],
            "codec": ["codec", "--work", corpus, "--out", codec],
            "vocoder": ["vocoder", "--work", corpus, "--codec", codec],
            "pool": ["pool", "--corpus", corpus, "--codes", codec, "--tokenizer", tokens, "--out", pool],
            "talker": ["talker", "--pool", pool, "--out", talker],
            "finetune": ["finetune", "--work", corpus, "--codec", codec],
        }
        module, *rest = given[stage]
        if stage in self.minutes:
            rest += ["--minutes", self.minutes[stage]]
        if stage in RESUMED and self.deadline < math.inf:
            rest += ["--run-minutes", round(self.minutes_left(), 2)]
        return [sys.executable, "-m", f"training.{module}", *map(str, rest), *self.extra.get(stage, [])]

    def stages(self, only: list[str]) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        self.collect()
        for stage in STAGES:
            if stage in only and stage not in self.done():
                if stage in RESUMED and self.minutes_left() < MIN_MINUTES:
                    return
                began = time.monotonic()
                subprocess.run(self.command(stage), check=True)
                if not self.is_complete(stage):
                    self.collect()
                    return
                with (self.work / REPORT).open("a") as file:
                    file.write(json.dumps({"stage": stage, "seconds": round(time.monotonic() - began, 1)}) + "\n")
                self.collect()

    def minutes_left(self) -> float:
        return (self.deadline - time.monotonic()) / 60 - RESERVE_MINUTES

    def is_complete(self, stage: str) -> bool:
        """Whether a stage that has run does not have to continue in a later run."""
        if stage not in RESUMED or self.deadline == math.inf:
            return True
        last = (self.work / f"codec/{stage}.jsonl").read_text().splitlines()[-1]
        return bool(json.loads(last)["phase"] == DONE)

    def done(self) -> list[str]:
        report = self.work / REPORT
        return [json.loads(line)["stage"] for line in report.read_text().splitlines()] if report.exists() else []

    def collect(self) -> None:
        """Copy the results to --out."""
        for name in (*KEPT, *UNTIL_TALKER, REPORT):
            for made in self.work.glob(name):
                kept = self.out / made.name
                if name in UNTIL_TALKER and "talker" in self.done():
                    kept.unlink(missing_ok=True)
                else:
                    shutil.copyfile(made, kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("work", "teacher", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", type=_stages, help="comma-separated stages")
    parser.add_argument("--minutes", type=_minutes, default={}, help="comma-separated stage=minutes")
    parser.add_argument("--run-minutes", type=float, default=math.inf, help="minutes after which this run should end")
    parser.add_argument(
        "--extra", action="append", default=[], help="stage=argument: an additional argument for a stage"
    )
    parser.add_argument(
        "--from-checkpoint", type=Path, nargs="?", const=EMBEDDED_VOICE, help="continue the training of this voice"
    )
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.run_minutes
    extra: dict[str, list[str]] = {}
    minutes, stages = MINUTES, STAGES
    if arguments.from_checkpoint:
        minutes, stages = CONTINUED_MINUTES, CONTINUED_STAGES
        extra = {stage: list(given) for stage, given in CONTINUED_EXTRA.items()}
        if not any(arguments.work.glob("codec/decoder-*.safetensors")):
            restore(arguments.from_checkpoint, ENCODER, arguments.work)
    for one in arguments.extra:
        stage, _, argument = one.partition("=")
        extra.setdefault(stage, []).append(argument)
    minutes = minutes | arguments.minutes
    run = Run(arguments.work, arguments.teacher, arguments.out, minutes, extra, deadline)
    run.stages(arguments.only or list(stages))


def _stages(text: str) -> list[str]:
    stages = text.split(",")
    unknown = [stage for stage in stages if stage not in STAGES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown stage {', '.join(unknown)}; must be one of {', '.join(STAGES)}")
    return stages


def _minutes(text: str) -> dict[str, float]:
    found = {}
    for part in text.split(","):
        stage, _, number = part.partition("=")
        if stage not in MINUTES:
            raise argparse.ArgumentTypeError(f"{part}: stages with a time budget are {', '.join(MINUTES)}")
        found[stage] = float(number)
    return found


if __name__ == "__main__":
    main()
