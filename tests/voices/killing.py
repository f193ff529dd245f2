"""Processes that change a voice library and are killed while they do; run by tests, in a process without torch.

Two writers a round change voices of their own, and one that both want; each tells what it begins and what it has done.
After the kill every voice must be as it was after what was done last, or after what was begun and not told to be done.
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
from polyvox.voices import VoiceLibrary
from polyvox.voices.library import PARTIAL
from voices.making import add, version

WRITERS, NAMES, SHARED = 2, 3, "Shared"
MAX_SECONDS = 0.02  # from a writer's first step to its end


def environment() -> dict[str, str]:
    """That of a process which finds these tests."""
    paths = [str(Path(__file__).parents[1]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def run(folder: Path, rounds: int) -> None:
    """So many rounds in a process of their own, and what must hold after them."""
    command = [sys.executable, __file__, str(folder), str(rounds), "7"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["kills"] == WRITERS * rounds
    assert 0 < told["left"] <= told["kills"]  # a kill leaves one hidden file, or none
    for file in folder.glob(f".*{PARTIAL}"):
        os.utime(file, (0, 0))
    library = VoiceLibrary(folder)
    add(library, "last", 1)
    assert not list(folder.glob(f".*{PARTIAL}"))
    assert library.damaged() == ()


def main(folder: Path, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    expected: dict[str, set[int | None]] = {f"{writer}-{i}": {None} for writer in range(WRITERS) for i in range(NAMES)}
    steps = 0
    assert "torch" not in sys.modules
    for turn in range(rounds):
        told = [_killed(folder, writer, turn, chance) for writer in range(WRITERS)]
        for pid, pipe in told:
            _kill_later(pid, chance)
            text = _all(pipe)
            steps += text.count(b"done")
            for line in text.decode().splitlines():
                begun, name, number = json.loads(line)
                if name != SHARED:
                    expected[name] = (expected[name] if begun == "begin" else set()) | {number}
        _check(VoiceLibrary(folder), expected)
    left = len(list(folder.glob(f".*{PARTIAL}")))
    json.dump({"kills": rounds * WRITERS, "steps": steps, "left": left}, sys.stdout)


def _killed(folder: Path, writer: int, turn: int, chance: random.Random) -> tuple[int, int]:
    """A writer at work, and what it tells."""
    seed = chance.random()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _write(VoiceLibrary(folder), writer, 1_000_000 * writer + 1000 * turn, random.Random(seed), writing)
    os.close(writing)
    return pid, reading


def _write(library: VoiceLibrary, writer: int, first: int, chance: random.Random, pipe: int) -> None:
    def tell(*words: object) -> None:
        os.write(pipe, json.dumps(words).encode() + b"\n")

    for number in range(first, first + 900):
        name = SHARED if chance.random() < 0.2 else f"{writer}-{chance.randrange(NAMES)}"
        remove = chance.random() < 0.3
        tell("begin", name, None if remove else number)
        try:
            if remove:
                library.remove(name)
            else:
                add(library, name, number, replace=chance.random() < 0.8)
        except VoiceExists:
            number = version(library.get(name)) if name != SHARED else number
        except UnknownVoice:
            pass
        tell("done", name, None if remove else number)
    os._exit(1)


def _kill_later(pid: int, chance: random.Random) -> None:
    select.select([], [], [], chance.random() * MAX_SECONDS)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _all(pipe: int) -> bytes:
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
