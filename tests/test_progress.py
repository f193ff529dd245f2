# SPDX-License-Identifier: Apache-2.0
"""Progress of a start: reports, listeners, the bar, the log and the cache folder."""

import io
import logging
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from polyvox import progress
from polyvox.caches import CACHE_DIR, TRITON_CACHE_DIR, cache_folder, preload_triton, set_up_triton_cache
from polyvox.errors import InvalidRequest
from polyvox.progress import LOG_INTERVAL, ProgressBar, ProgressLog, StageTimes, listening, report
from polyvox.tts import load


def test_listeners_receive_reports_while_they_listen() -> None:
    first: list[tuple[str, int, int]] = []
    second: list[tuple[str, int, int]] = []
    report("load", 0, 1)
    with listening(lambda *stage: first.append(stage)):
        report("load", 1, 2)
        with listening(lambda *stage: second.append(stage)):
            report("load", 2, 2)
        report("calibrate", 0, 3)
    report("calibrate", 1, 3)
    assert first == [("load", 1, 2), ("load", 2, 2), ("calibrate", 0, 3)]
    assert second == [("load", 2, 2)]


def test_loading_and_starting_the_embedded_voice_reports_its_stages() -> None:
    stages: list[tuple[str, int, int]] = []
    with listening(lambda *stage: stages.append(stage)), load(device="cpu") as tts:
        assert tts.engine is not None
    names = [stage for stage, _, _ in stages]
    assert list(dict.fromkeys(names)) == ["load", "calibrate"]
    for name in ("load", "calibrate"):
        done = [done for stage, done, _ in stages if stage == name]
        (total,) = {total for stage, _, total in stages if stage == name}
        assert done == sorted(done)
        assert done[-1] == total


def test_a_terminal_shows_a_bar_for_each_stage() -> None:
    written = io.StringIO()
    bar = ProgressBar(Console(file=written, force_terminal=True, width=80))
    bar("load", 1, 2)
    bar("capture", 3, 4)
    bar("capture", 4, 4)
    bar.close()
    assert "Loading weights" in written.getvalue()
    assert "Capturing CUDA graphs" in written.getvalue()


def test_the_log_has_a_line_for_each_stage_and_one_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    shown = ProgressLog(lambda: now[0])
    with caplog.at_level(logging.INFO):
        for done in range(11):
            shown("load", done, 10)
            now[0] += LOG_INTERVAL / 2
        shown("capture", 0, 7)
    lines = [(vars(record)["stage"], vars(record)["progress"]) for record in caplog.records]
    assert lines == [*(("load", share) for share in ("0%", "20%", "40%", "60%", "80%")), ("capture", "0%")]


def test_a_stage_lasts_until_the_next_one_begins() -> None:
    now = [0.0]
    times = StageTimes(lambda: now[0])
    assert times.seconds() == {}
    for stage, moment in (("load", 1.0), ("load", 2.0), ("capture", 4.0), ("calibrate", 9.0)):
        now[0] = moment
        times(stage, 0, 1)  # type: ignore[arg-type]
    now[0] = 10.0
    assert times.seconds() == {"load": 3.0, "capture": 5.0, "calibrate": 1.0}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({CACHE_DIR: "/a"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/polyvox"),
        ({"HOME": "/c"}, "/c/.cache/polyvox"),
    ],
)
def test_the_cache_folder_follows_the_environment(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (CACHE_DIR, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_triton_keeps_its_kernels_in_the_cache_folder_unless_its_own_variable_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "cache"))
    monkeypatch.setenv(TRITON_CACHE_DIR, "/elsewhere")
    set_up_triton_cache()
    assert os.environ[TRITON_CACHE_DIR] == "/elsewhere"
    monkeypatch.delenv(TRITON_CACHE_DIR)
    set_up_triton_cache()
    assert os.environ[TRITON_CACHE_DIR] == str(tmp_path / "cache/triton")
    assert (tmp_path / "cache/triton").is_dir()


def test_a_cache_folder_that_cannot_be_created_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "file"))
    monkeypatch.delenv(TRITON_CACHE_DIR, raising=False)
    with pytest.raises(InvalidRequest, match="'cache_dir': must be a folder that can be written"):
        set_up_triton_cache()


def test_no_listener_is_left_after_an_error() -> None:
    with pytest.raises(ValueError, match="stop"), listening(lambda *_: None):
        raise ValueError("stop")
    assert not progress._listeners


def test_triton_and_the_hash_of_its_library_are_ready_when_the_weights_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = pytest.importorskip("triton.runtime.cache")
    hashed = Mock()
    monkeypatch.setattr(cache, "triton_key", hashed)
    preload_triton().join(60)
    hashed.assert_called_once_with()
