# SPDX-License-Identifier: Apache-2.0
"""polyvox doctor: one line for each thing, and what to fix."""

import importlib.util
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from polyvox.audio import ffmpeg_encoder
from polyvox.cli import doctor
from polyvox.cli.doctor import Finding
from polyvox.cli.main import main
from polyvox.errors import CheckpointError


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["polyvox", "doctor", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


def one(check: str) -> Finding:
    (finding,) = getattr(doctor, check)()
    return finding


def test_this_machine_is_well_enough_to_run_the_tests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--json") == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["ok"] is True
    found = {finding["subject"]: finding for finding in told["findings"]}
    for subject in ("Python", "torch", "CPU", "embedded voice", "sound formats", "model 0.6B", "model 1.7B", "hub"):
        assert found[subject]["state"] in ("ok", "warn"), found[subject]
    assert "× real time" in found["embedded voice"]["told"]
    assert "mp3" in found["sound formats"]["told"]
    assert "streams" in found["model 0.6B"]["told"] or "does not fit" in found["model 0.6B"]["told"]
    assert "Traceback" not in err


def test_each_finding_is_one_line_and_something_essential_is_an_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def well() -> Iterator[Finding]:
        yield Finding("one", "ok", "[x] " + "long " * 60)

    def odd() -> Iterator[Finding]:
        yield Finding("two", "warn", "not so well", "do this")

    def broken() -> Iterator[Finding]:
        yield from ()
        raise CheckpointError("the embedded voice is damaged")

    def crashed() -> Iterator[Finding]:
        yield from ()
        raise ImportError("no such library\nand more")

    monkeypatch.setattr(doctor, "CHECKS", (well, odd))
    assert run(monkeypatch) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["ok one: [x] " + "long " * 60, "!  two: not so well → do this"]
    assert "Polyvox can speak here" in err
    for check, told in (
        (broken, "✗  broken: the embedded voice is damaged"),
        (crashed, "✗  crashed: ImportError: no such"),
    ):
        monkeypatch.setattr(doctor, "CHECKS", (well, check, odd))
        assert run(monkeypatch) == 1
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 3
        assert told in out
        assert "cannot speak here" in err


def test_needs_of_the_published_models_are_those_of_their_files() -> None:
    # bytes of bfloat16 weights, and the codec's decoder in float32
    small, stream = doctor.model_needs("0.6B", torch.bfloat16)
    large, _ = doctor.model_needs("1.7B", torch.bfloat16)
    codec = 114_323_137 * 4
    assert small == pytest.approx(1_811_577_344 + codec, rel=0.01)
    assert large == pytest.approx(3_833_352_704 + codec, rel=0.01)
    cache = 1024 * 2 * 28 * 8 * 128 * 2
    assert cache < stream < cache + 20e6


def test_a_gpu_tells_how_many_streams_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 24_000_000_000
    about = SimpleNamespace(name="A card", major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: about)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 2 * free))
    finding = one("gpus")
    assert finding.state == "warn"
    assert "A card, 24.0 GB of 48.0 GB free, compute capability 7.5" in finding.told
    about.major, about.minor = 9, 0
    assert one("gpus").state == "ok"
    small, large = doctor.models()
    weights, stream = doctor.model_needs("1.7B", torch.bfloat16)
    assert (small.state, large.state) == ("ok", "ok")
    assert f"holds {int((0.9 * free - weights) // stream)} streams" in large.told
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3_000_000_000, free))
    small, large = doctor.models()
    assert (small.state, large.state) == ("ok", "warn")
    assert "does not fit" in large.told
    assert large.fix is not None


def test_a_port_that_is_taken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(doctor, "PORT", taken.getsockname()[1])
        assert one("port").state == "warn"
    assert one("port").state == "ok"


def test_what_is_missing_comes_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    finding = one("player")
    assert finding.state == "warn"
    assert finding.fix is not None
    assert "sounddevice, or install one of paplay" in finding.fix
    assert {finding.state for finding in doctor.packages()} == {"warn"}
    player = tmp_path / "aplay"
    player.write_text("#!/bin/sh\n")
    player.chmod(0o700)
    assert one("player").told == "aplay for --play"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert one("player").told == "sounddevice for --play"
    monkeypatch.setenv("POLYVOX_HOME", str(player))
    assert one("voice_library").state == "warn"


def test_a_format_is_told_by_trying_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert one("sound_formats").told.startswith("wav, flac, mp3, opus, aac, m4a, pcm, ulaw, alaw (PyAV")
    monkeypatch.setitem(ffmpeg_encoder.CODECS, "mp3", replace(ffmpeg_encoder.CODECS["mp3"], encoder="no_such_codec"))
    finding = one("sound_formats")
    assert finding.state == "warn"
    assert "not mp3" in finding.told
