# SPDX-License-Identifier: Apache-2.0
"""The report about a GPU: its steps, their limits, and what it says of failures."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import gpu_report
from benchmarks.gpu_report import PACKAGES_OF_MODULES, ROOT, Outcome, Step, report, run, steps


def python(name: str, program: str) -> Step:
    return Step(name, ("-c", program))


def test_steps_run_what_exists() -> None:
    for step in steps(140):
        files = [argument for argument in step.arguments if argument.endswith(".py")]
        assert all((ROOT / name).is_file() for name in files)
    (kernels,) = (step for step in steps(140) if step.name == "kernels")
    assert len([name for name in kernels.arguments if name.startswith("tests/kernels/")]) >= 10


@pytest.mark.slow
def test_the_programs_of_the_steps_have_their_options() -> None:
    programs: dict[tuple[str, ...], set[str]] = {}
    for step in steps(140):
        names = [argument for argument in step.arguments if argument.startswith("--")]
        first = step.arguments.index(names[0]) if names else len(step.arguments)
        if "pytest" not in step.arguments:
            programs.setdefault(step.arguments[:first], set()).update(names)
    assert len(programs) == 4
    for program, options in programs.items():
        environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
        command = [sys.executable, *program, "--help"]
        made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
        assert made.returncode == 0, made.stderr
        assert all(re.search(rf"{name}\b", made.stdout) for name in options), (program, options)


@pytest.mark.slow
def test_the_tests_of_a_gpu_are_collected_without_web_packages() -> None:
    """As on a machine with the packages that the report asks for: none of the server or the command line."""
    files = [name for step in steps(140) for name in step.arguments if name.startswith("tests/")]
    web = ("aiohttp", "fastapi", "httpx", "openai", "uvicorn", "websockets", *PACKAGES_OF_MODULES["polyvox"])
    program = f"""
import sys, pytest
sys.modules.update(dict.fromkeys({web}))
sys.exit(pytest.main(["--collect-only", "--quiet", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""
    command = [sys.executable, "-c", program, *files]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stdout[-2000:]


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


@pytest.mark.parametrize(("last", "result"), [("time.sleep(600)", "timed out"), ("1 / 0", "failed (1)")])
def test_a_step_ends_with_what_it_started(
    last: str, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its limit it is interrupted, so that it can print what it has."""
    pid, log = tmp_path / "pid", tmp_path / "slow.log"
    program = f"""
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # also if the tests run in the background of a shell
ignores = "import os, signal, time; signal.signal(2, lambda *_: 0); print(os.getpid(), flush=True); time.sleep(600)"
try:
    child = subprocess.Popen([sys.executable, "-c", ignores], stdout=subprocess.PIPE, text=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until the file is written
    pathlib.Path({str(pid)!r}).write_text(child.stdout.readline())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    {last}
except KeyboardInterrupt:
    print("measured so far", flush=True)
    time.sleep(600)
"""
    limits: list[float] = []
    awaited = [(pid, "\n"), (log, "measured so far\n")]

    class StepAtItsLimits(subprocess.Popen[bytes]):
        """Its first limit is reached when it has started its child, the second one when it has printed."""

        def wait(self, timeout: float | None = None) -> int:
            assert timeout is not None
            limits.append(timeout)
            if result != "timed out" or not awaited:
                return super().wait(60.0)
            (file, end), deadline = awaited.pop(0), time.monotonic() + 60.0
            while not (file.exists() and file.read_text().endswith(end)):
                assert self.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess, "Popen", StepAtItsLimits)
    made = run(python("slow", program), tmp_path, 5.0, interrupt_timeout=1.0)
    assert made.result == result
    assert limits == ([5.0, 1.0, 1.0] if result == "timed out" else [5.0, 1.0])
    assert ("measured so far" in made.tail) == (result == "timed out")
    started, deadline = int(pid.read_text()), time.monotonic() + 60.0
    while is_running(started):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """False for a process that has ended, also while its new parent has not waited for it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("exit 3", "nvidia-smi: status 3: "),
        ("echo no driver >&2; exit 9", "nvidia-smi: status 9: no driver"),
        ("echo a, b; echo c, d", "c, d"),
        ("exec sleep 60", "timed out after 0.1 seconds"),
    ],
)
def test_the_machine_is_described_whatever_nvidia_smi_does(
    program: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{program}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if "sleep" in program:
        monkeypatch.setattr(gpu_report, "QUERY_TIMEOUT", 0.1)
    described = gpu_report.machine()
    assert described[0].startswith("torch ")
    assert expected in described[-1]


def test_without_nvidia_smi_the_report_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "No such file" in gpu_report.machine()[-1]


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


def test_missing_packages_are_named_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"pytest", "rich", "soxr"}
    monkeypatch.setattr(gpu_report, "find_spec", lambda name: None if name in absent else name)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(total_memory=8e9))
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", str(tmp_path / "made"), "--only", "doctor,parity,errors"])
    with pytest.raises(SystemExit) as ended:
        gpu_report.main()
    assert str(ended.value.code).splitlines()[1:] == ["doctor: soxr, rich", "parity: soxr, pytest", "errors: soxr"]
    assert not (tmp_path / "made").exists()
