# SPDX-License-Identifier: Apache-2.0
"""Plots for docs/voice.md: losses over time, and spectrograms of teacher and student.

python -m training.plots losses OUT.png vocoder.jsonl finetune.jsonl
python -m training.plots spectrograms OUT.png TITLE=samples.npy TITLE=samples.npy …
"""

import argparse
import json
from pathlib import Path

import numpy as np

from training.units import SAMPLE_RATE

# title and curves of a log, by its name
DISTANCES = (("valid_true", "from the teacher's features"), ("valid_coded", "from codes"))
CURVES = {
    "vocoder": ("vocoder: spectral distance, held out", DISTANCES),
    "finetune": ("finetune: spectral distance, held out", DISTANCES),
    "talker": (
        "talker: cross-entropy, held out, whole text",
        (("whole_first", "code 0"), ("whole_1", "code 1"), ("whole_2", "code 2")),
    ),
}


def losses(out: Path, logs: list[Path]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(logs), figsize=(5.5 * len(logs), 3.6), layout="constrained", squeeze=False)
    for axis, path in zip(axes.flat, logs, strict=True):
        title, curves = CURVES[path.stem]
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [row for row in rows if row["phase"] == path.stem]
        for name, label in curves:
            axis.plot([row["seconds"] for row in rows], [row[name] for row in rows], label=label)
        axis.set(title=title, xlabel="seconds on one H200", ylim=(0, None))
        axis.legend(fontsize=8)
    figure.savefig(out, dpi=90)


def spectrograms(out: Path, sounds: list[tuple[str, np.ndarray]]) -> None:
    import matplotlib.pyplot as plt

    rows = (len(sounds) + 1) // 2
    figure, axes = plt.subplots(rows, 2, figsize=(11, 2.4 * rows), layout="constrained", squeeze=False)
    for axis, (title, samples) in zip(axes.flat, sounds, strict=False):
        axis.specgram(samples + 1e-6, NFFT=1024, Fs=SAMPLE_RATE, noverlap=768, vmin=-120, vmax=-30, cmap="magma")
        axis.set(ylim=(0, 8000), title=title)
        axis.title.set_fontsize(9)
    figure.savefig(out, dpi=64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("losses")
    command.add_argument("out", type=Path)
    command.add_argument("logs", type=Path, nargs="+", help=", ".join(f"{name}.jsonl" for name in CURVES))
    command = commands.add_parser("spectrograms")
    command.add_argument("out", type=Path)
    command.add_argument("sounds", nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "losses":
        losses(arguments.out, arguments.logs)
    else:
        pairs = [sound.split("=", 1) for sound in arguments.sounds]
        spectrograms(arguments.out, [(title, np.load(path)) for title, path in pairs])


if __name__ == "__main__":
    main()
