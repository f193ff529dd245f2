# SPDX-License-Identifier: Apache-2.0
"""Checks and measures the GPU of this machine: kernels, parity with the reference, an engine, and model calls.

    python benchmarks/gpu_report.py build/gpu [--only doctor,kernels,…] [--seconds 600]

Needs the package (`pip install -e .`, or PYTHONPATH=src). Writes FOLDER/report.md and the output of each step,
FOLDER/STEP.log. Ends with status 1 if a step failed, and before the first one if a package is missing. First starts
compile kernels, which takes a minute or more. Steps:

doctor: what this GPU runs on a plain path, and how many streams its memory holds.
kernels: tests of the kernels in CUDA C++ (needs pytest and hypothesis).
parity: the reference's tokens and samples in float32 (needs pytest and hypothesis).
errors: the kernels of talker and code predictor against their reference implementations, with times.
prompts: the same for attention of prompts of several blocks, in one pass and divided.
prompts-256: one prompt of 256 rows, whose time is published.
checks: batches, determinism and memory of an engine (benchmarks/gpu_checks.py).
0.6B, 1.7B: prefill, frame step and codec against the roofline, with a KV cache in int8 and in the model's type.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
TAIL = 60  # lines of a step's output in the report
INTERRUPT_TIMEOUT = 10.0  # seconds in which a step that was interrupted prints what it has measured
GIGABYTE = 1e9
QUERY = "name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.sm,temperature.gpu"
QUERY_TIMEOUT = 10.0  # seconds for nvidia-smi
# Batch sizes by the memory of the GPU in GB, with a context of 256 positions. 1,024 streams of 1.7B with a KV cache in
# bfloat16 take 52 GB without graphs and workspaces. A size that does not fit ends its step after the smaller ones.
BATCHES = ((60, "1,8,16,64,512,1024"), (20, "1,8,16,64,256"), (0, "1,8,16,64"))
MIN_GB_OF_1_7B = 11
# Packages that steps import, besides PyTorch: all of them, those of polyvox's command line, and those of pytest.
PACKAGES = ("num2words", "numpy", "safetensors", "soxr", "tokenizers")
PACKAGES_OF_MODULES = {"polyvox": ("pydantic", "rich", "typer"), "pytest": ("hypothesis", "pytest")}
# Another version of PyTorch may warn of what it will remove, which is an error in the tests otherwise.
PYTEST = ("-m", "pytest", "-q", "-o", "filterwarnings=default")


@dataclass(frozen=True, slots=True)
class Step:
    """One run of Python with these arguments."""

    name: str
    arguments: tuple[str, ...]

    @property
    def command(self) -> str:
        return " ".join(("python", *self.arguments))

    @property
    def missing(self) -> list[str]:
        """The packages that it imports and this Python does not find."""
        module = self.arguments[1] if self.arguments[:1] == ("-m",) else ""
        return [name for name in (*PACKAGES, *PACKAGES_OF_MODULES.get(module, ())) if find_spec(name) is None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """status: of the process, or None if it was ended after its limit."""

    step: Step
    status: int | None
    seconds: float
    tail: str

    @property
    def result(self) -> str:
        return "timed out" if self.status is None else "ok" if self.status == 0 else f"failed ({self.status})"


def steps(memory_gb: float) -> list[Step]:
    """All steps for a GPU with this memory."""
    tested = sorted((ROOT / "tests/kernels").glob("test_*.py"))
    files = [str(path.relative_to(ROOT)) for path in tested if "needs_gpu" in path.read_text()]
    parity = [f"tests/models/test_{name}.py" for name in ("parity", "codec", "model")]
    batches = next(sizes for least, sizes in BATCHES if memory_gb >= least)
    made = [
        Step("doctor", ("-m", "polyvox", "doctor")),
        Step("kernels", (*PYTEST, *files)),
        Step("parity", (*PYTEST, *parity, "-k", "float32")),
        Step("errors", ("benchmarks/kernels.py", "--batch", "1,8,64")),
        Step("prompts", ("benchmarks/kernels.py", "--only", "prompts", "--prompt", "200", "--batch", "1,8")),
        Step("prompts-256", ("benchmarks/kernels.py", "--only", "prompts", "--prompt", "256", "--batch", "1")),
        Step("checks", ("benchmarks/gpu_checks.py", "--size", "0.6B")),
    ]
    for model, least in (("0.6B", 0), ("1.7B", MIN_GB_OF_1_7B)):
        for kv_dtype in ("int8", "model") if memory_gb >= least else ():
            options = ("--kv-dtype", kv_dtype, "--batch", batches, "--context", "256", "--repeats", "15")
            made.append(Step(f"{model}-{kv_dtype}", ("-m", "polyvox", "bench", "engine", "--model", model, *options)))
    return made


def run(step: Step, folder: Path, seconds: float, interrupt_timeout: float = INTERRUPT_TIMEOUT) -> Outcome:
    """Runs a step. At its limit it is interrupted; then all that it has started is ended."""
    began = time.monotonic()
    log = folder / f"{step.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *step.arguments], cwd=ROOT, env=os.environ | {"POLYVOX_TEST_DEVICE": "cuda"},
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        status: int | None = None
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(interrupt_timeout)
        finally:
            with suppress(ProcessLookupError):  # no process of the group is left
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # a driver that hangs keeps its process
                process.wait(interrupt_timeout)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-TAIL:])
    return Outcome(step, status, time.monotonic() - began, tail)


def machine() -> list[str]:
    """The GPU, its clocks as found, and the versions of what computes."""
    found = [f"torch {torch.__version__}, CUDA {torch.version.cuda}, Python {sys.version.split()[0]}"]
    query = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv"]
    try:
        made = subprocess.run(query, capture_output=True, text=True, timeout=QUERY_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [*found, f"nvidia-smi: {error}"]
    return [*found, *(made.stdout or f"nvidia-smi: status {made.returncode}: {made.stderr}").splitlines()]


def report(about: Sequence[str], outcomes: Sequence[Outcome]) -> str:
    """The report in Markdown."""
    lines = ["# GPU report", "", *(f"- {line}" for line in about), "", "| step | result | seconds | command |"]
    lines += ["|---|---|---|---|"]
    lines += [f"| {one.step.name} | {one.result} | {one.seconds:.0f} | `{one.step.command}` |" for one in outcomes]
    for one in outcomes:
        lines += ["", f"## {one.step.name}", "", "```", one.tail, "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="steps, comma-separated; a model's name for all of its steps")
    parser.add_argument("--seconds", type=float, default=600.0, help="limit of each step")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU: run `polyvox doctor`")
    chosen = steps(torch.cuda.get_device_properties(0).total_memory / GIGABYTE)
    names = [name for name in given.only.split(",") if name]
    if unknown := [name for name in names if not any(step.name.startswith(name) for step in chosen)]:
        sys.exit(f"Invalid value for '--only': {unknown[0]!r} is none of {', '.join(step.name for step in chosen)}")
    chosen = [step for step in chosen if not names or step.name.startswith(tuple(names))]
    if missing := [f"{step.name}: {', '.join(step.missing)}" for step in chosen if step.missing]:
        sys.exit("\n".join(["Packages are missing; install them, or choose other steps with --only.", *missing]))
    given.folder.mkdir(parents=True, exist_ok=True)
    about = machine()
    outcomes: list[Outcome] = []
    for i, step in enumerate(chosen, 1):
        sys.stdout.write(f"[{i}/{len(chosen)}] {step.name}: {step.command} … ")
        sys.stdout.flush()
        outcomes.append(run(step, given.folder, given.seconds))
        sys.stdout.write(f"{outcomes[-1].result}, {outcomes[-1].seconds:.0f} s\n")
        # After each step, so that an interrupted run leaves a report.
        (given.folder / "report.md").write_text(report(about, outcomes))
    sys.stdout.write(f"The report: {given.folder / 'report.md'}\n")
    sys.exit(any(one.status != 0 for one in outcomes))


if __name__ == "__main__":
    main()
