# SPDX-License-Identifier: Apache-2.0
"""Writers of a voice library that are killed with SIGKILL, in a process without torch.

In each round two writers change their own voices and a shared one, and report the start and the end of each change.
After the kill every voice must be in the state of the last completed change or of the change in progress.
"""

import json
import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

from polyvox.errors import InvalidRequest, UnknownVoice, VoiceExists
from polyvox.files import PARTIAL
from polyvox.voices import VoiceLibrary
from voices.factories import add, version

WRITERS, NAMES, SHARED = 2, 3, "Shared"
MAX_SECONDS = 0.02  # until a writer is killed


def environment() -> dict[str, str]:
    """The environment of a process that imports these tests."""
    paths = [str(Path(__file__).parents[1]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def run(folder: Path, rounds: int) -> None:
    """Run the rounds in a separate process and check the library."""
    command = [sys.executable, __file__, str(folder), str(rounds), "7"]
    process = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert report["kills"] == WRITERS * rounds
    assert 0 < report["partials"] <= report["kills"]  # a kill leaves at most one temporary file
    for file in folder.glob(f".*{PARTIAL}"):
        os.utime(file, (0, 0))
    library = VoiceLibrary(folder)
    add(library, "last", 1)
    assert not list(folder.glob(f".*{PARTIAL}"))
    assert library.damaged() == ()


def main(folder: Path, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    expected: dict[str, set[int | None]] = {f"{writer}-{i}": {None} for writer in range(WRITERS) for i in range(NAMES)}
    steps = 0
    assert "torch" not in sys.modules
    for turn in range(rounds):
        writers = [_start_writer(folder, writer, turn, rng) for writer in range(WRITERS)]
        for pid, pipe in writers:
            _kill_later(pid, rng)
            text = _read_all(pipe)
            steps += text.count(b"done")
            for line in text.decode().splitlines():
                state, name, number = json.loads(line)
                if name != SHARED:
                    expected[name] = (expected[name] if state == "begin" else set()) | {number}
        _check(VoiceLibrary(folder), expected)
    num_partials = len(list(folder.glob(f".*{PARTIAL}")))
    json.dump({"kills": rounds * WRITERS, "steps": steps, "partials": num_partials}, sys.stdout)


def _start_writer(folder: Path, writer: int, turn: int, rng: random.Random) -> tuple[int, int]:
    """The process id of a writer, and the pipe with its reports."""
    seed = rng.random()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _write(VoiceLibrary(folder), writer, 1_000_000 * writer + 1000 * turn, random.Random(seed), writing)
    os.close(writing)
    return pid, reading


def _write(library: VoiceLibrary, writer: int, first: int, rng: random.Random, pipe: int) -> None:
    def report(*values: object) -> None:
        os.write(pipe, json.dumps(values).encode() + b"\n")

    for number in range(first, first + 900):
        name = SHARED if rng.random() < 0.2 else f"{writer}-{rng.randrange(NAMES)}"
        remove = rng.random() < 0.3
        report("begin", name, None if remove else number)
        try:
            if remove:
                library.remove(name)
            else:
                add(library, name, number, replace=rng.random() < 0.8)
        except VoiceExists:
            number = version(library.get(name)) if name != SHARED else number
        except UnknownVoice:
            pass
        report("done", name, None if remove else number)
    os._exit(1)


def _kill_later(pid: int, rng: random.Random) -> None:
    select.select([], [], [], rng.random() * MAX_SECONDS)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _read_all(pipe: int) -> bytes:
    with open(pipe, "rb") as file:
        return file.read()


def _check(library: VoiceLibrary, expected: dict[str, set[int | None]]) -> None:
    assert library.damaged() == ()
    found = {voice.name: version(voice) for voice in library.list()}
    assert found.keys() <= expected.keys() | {SHARED}, found
    for name, allowed in expected.items():
        assert found.get(name) in allowed, (name, found.get(name), allowed)
        expected[name] = {found.get(name)}
    try:
        version(library.get(SHARED))
    except InvalidRequest:
        assert SHARED not in found


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
