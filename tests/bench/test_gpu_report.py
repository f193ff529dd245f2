# SPDX-License-Identifier: Apache-2.0
"""The report about a GPU: its steps, their limits, and what it says of failures."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import gpu_report
from benchmarks.gpu_report import ROOT, Outcome, Step, report, run, steps


def python(name: str, program: str) -> Step:
    return Step(name, ("-c", program))


def test_steps_run_what_exists() -> None:
    for step in steps(140):
        files = [argument for argument in step.arguments if argument.endswith(".py")]
        assert all((ROOT / name).is_file() for name in files)
    (kernels,) = (step for step in steps(140) if step.name == "kernels")
    assert len([name for name in kernels.arguments if name.startswith("tests/kernels/")]) >= 10


@pytest.mark.parametrize(
    ("memory_gb", "models", "batches"),
    [
        (8, {"0.6B"}, "1,8,16,64"),
        (12, {"0.6B", "1.7B"}, "1,8,16,64"),
        (24, {"0.6B", "1.7B"}, "1,8,16,64,256"),
        (140, {"0.6B", "1.7B"}, "1,8,16,64,512,1024"),
    ],
)
def test_models_and_batches_fit_the_memory(memory_gb: float, models: set[str], batches: str) -> None:
    timed = [step for step in steps(memory_gb) if "bench" in step.arguments]
    assert {step.name.rpartition("-")[0] for step in timed} == models
    assert all(batches in step.arguments for step in timed)


def test_a_step_leaves_its_output_and_status(tmp_path: Path) -> None:
    program = "import os, sys; print(os.environ['POLYVOX_TEST_DEVICE']); sys.stderr.write('late\\n'); sys.exit(3)"
    made = run(python("one", program), tmp_path, 60)
    assert (made.status, made.result) == (3, "failed (3)")
    assert sorted(made.tail.splitlines()) == ["cuda", "late"]
    assert (tmp_path / "one.log").read_text().splitlines() == made.tail.splitlines()


def test_a_step_ends_at_its_limit_with_what_it_started(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    child = (
        f"import pathlib, time\nfor i in range(600): pathlib.Path({str(alive)!r}).write_text(str(i)); time.sleep(0.01)"
    )
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    made = run(python("slow", program), tmp_path, 1.0)
    assert (made.status, made.result) == (None, "timed out")
    count = alive.read_text()
    time.sleep(0.1)
    assert alive.read_text() == count


def test_the_report_names_every_step() -> None:
    text = report(["a GPU"], [Outcome(Step("one", ("a.py",)), 0, 1.6, "fine"), Outcome(Step("two", ()), None, 9, "")])
    assert "- a GPU" in text
    assert "| one | ok | 2 | `python a.py` |" in text
    assert "| two | timed out | 9 |" in text
    assert "## one\n\n```\nfine\n```" in text


def test_without_a_gpu_the_report_fails_at_once(tmp_path: Path) -> None:
    command = [sys.executable, gpu_report.__file__, str(tmp_path / "made")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"CUDA_VISIBLE_DEVICES": ""})
    assert made.returncode == 1
    assert made.stderr == "torch finds no GPU: run `polyvox doctor`\n"
    assert not (tmp_path / "made").exists()


def test_all_steps_run_and_a_failure_is_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    some = [python("good", "print('fine')"), python("bad-1", "1 / 0"), python("bad-2", "print('not selected')")]
    monkeypatch.setattr(gpu_report, "steps", lambda _: some)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(total_memory=8e9))
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", str(tmp_path), "--only", "good,bad-1"])
    with pytest.raises(SystemExit) as ended:
        gpu_report.main()
    assert ended.value.code == 1
    text = (tmp_path / "report.md").read_text()
    assert "| good | ok |" in text
    assert "ZeroDivisionError" in text
    assert "bad-2" not in text
    assert f"The report: {tmp_path / 'report.md'}" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", str(tmp_path), "--only", "good,worse"])
    with pytest.raises(SystemExit, match="Invalid value for '--only': 'worse' is none of good, bad-1, bad-2"):
        gpu_report.main()
