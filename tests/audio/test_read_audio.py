# SPDX-License-Identifier: Apache-2.0
import ast
import gzip
import io
import json
import logging
import os
import platform
import socket
import struct
import subprocess
import sys
import threading
import time
import wave
import zipfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from unittest import mock

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.signals import speech
from polyvox import InvalidRequest
from polyvox.audio import decode as decoder
from polyvox.audio import read, sandbox
from polyvox.audio.decode import UnreadableAudio, decode
from polyvox.audio.formats import encode
from polyvox.audio.pcm import to_pcm
from polyvox.audio.read import read_audio
from polyvox.audio.samples import Samples

pytestmark = pytest.mark.slow

RATE = 24_000
FILES = ("wav", "flac", "mp3", "opus", "aac", "m4a")


def float_wav(samples: Samples, rate: int = RATE, channels: int = 1) -> bytes:
    data = samples.astype("<f4").tobytes()
    form = struct.pack("<HHIIHH", 3, channels, rate, 4 * rate * channels & 0xFFFFFFFF, 4 * channels & 0xFFFF, 32)
    return wav_of(form, data)


def wav_of(form: bytes, data: bytes, size: int | None = None) -> bytes:
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    body += b"data" + struct.pack("<I", len(data) if size is None else size) + data
    return b"RIFF" + struct.pack("<I", len(body) & 0xFFFFFFFF) + body


def assert_unreadable(data: bytes, message: str = "") -> None:
    with pytest.raises(UnreadableAudio, match=message or None):
        decode(data, 60.0)


@pytest.mark.parametrize("format", FILES)
def test_every_format_is_read_back(format: str) -> None:
    sound = speech(1.5, 48_000)
    back = read_audio(encode(sound, 48_000, format), RATE)
    assert back.dtype == np.float32
    assert 1.5 * RATE <= len(back) <= 1.5 * RATE + (2100 if format in ("aac", "m4a") else 0)  # AAC's padding
    assert np.sqrt(np.mean(back**2)) == pytest.approx(np.sqrt(np.mean(sound**2)), rel=0.1)


def test_a_source_is_a_path_bytes_or_an_open_file(tmp_path: Path) -> None:
    sound = speech(0.5)
    data = encode(sound, RATE, "wav")
    path = tmp_path / "a sound"
    path.write_bytes(data)
    one = read_audio(path, RATE)
    assert np.abs(one - sound).max() < 1e-4
    for source in (str(path), data, io.BytesIO(data)):
        assert np.array_equal(read_audio(source, RATE), one)


def test_modules_in_the_working_directory_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "av.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert len(read_audio(encode(speech(0.5), RATE, "wav"), RATE)) == RATE // 2


def test_the_decoder_gets_no_secrets_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYVOX_API_KEYS", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    with mock.patch.object(subprocess, "run", wraps=subprocess.run) as run:
        read_audio(encode(speech(0.5), RATE, "wav"), RATE)
    assert "secret" not in run.call_args.kwargs["env"].values()


def test_channels_are_mixed_and_widths_scaled() -> None:
    sound = speech(0.5)
    for width in (1, 2, 3, 4):
        whole = np.rint(np.stack([sound, np.zeros_like(sound)], 1) * (2 ** (8 * width - 1) - 1)).astype(np.int64)
        raw = (whole + (128 if width == 1 else 0)).astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()
        file = io.BytesIO()
        with wave.open(file, "wb") as out:
            out.setnchannels(2)
            out.setsampwidth(width)
            out.setframerate(RATE)
            out.writeframes(raw)
        back, rate = decode(file.getvalue(), 60)
        assert rate == RATE
        assert np.abs(back - sound / 2).max() < (0.01 if width == 1 else 1e-4)


def stereo_wav(left: Samples, right: Samples) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(2)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(to_pcm(np.stack([left, right], 1).reshape(-1)).tobytes())
    return file.getvalue()


def test_channels_that_cancel_each_other_are_not_silence() -> None:
    sound = speech(0.5)
    for left, right in ((sound, -sound), (sound, -0.9 * sound)):
        back, _ = decode(stereo_wav(left, right), 60)
        assert np.abs(back - sound).max() < 1e-3
    for left, right in ((sound, 0 * sound), (0 * sound, sound), (0 * sound, 0 * sound)):
        back, _ = decode(stereo_wav(left, right), 60)
        assert np.abs(back - (left + right) / 2).max() < 1e-3


def test_a_damaged_file_of_a_supported_format_is_called_damaged() -> None:
    wav = encode(speech(0.5), RATE, "wav")
    for data in (wav[:12], wav[:8] + b"JUNK" + wav[12:], b"RIFF" + b"\xff" * 200, b"OggS" + b"\0" * 100, b"fLaC\0"):
        with pytest.raises(UnreadableAudio) as caught:
            decode(data, 60)
        assert "supported formats" not in str(caught.value)


def test_the_audio_track_of_a_video_is_read() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as out:
        pictures = out.add_stream("mpeg4", rate=10)
        pictures.width, pictures.height = 64, 64
        track = out.add_stream("flac", rate=RATE, layout="mono", format="s16")
        for turn in range(10):
            picture = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 20 * turn, np.uint8))
            out.mux(pictures.encode(picture))
        frame = av.AudioFrame.from_ndarray(to_pcm(speech(1.0))[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, 0, Fraction(1, RATE)
        out.mux(track.encode(frame))
        out.mux(track.encode(None))
        out.mux(pictures.encode(None))
    assert len(decode(file.getvalue(), 60)[0]) == RATE


def test_samples_beyond_full_scale_are_scaled_down() -> None:
    back = read_audio(float_wav(speech(0.3) * 100), RATE)
    assert np.abs(back).max() == pytest.approx(1)


def test_duration_and_size_are_limited() -> None:
    wav = encode(speech(2.0), RATE, "wav")
    assert len(read_audio(wav, RATE, max_seconds=2.0)) == 2 * RATE
    assert np.array_equal(read_audio(wav, RATE, max_seconds=1.5), read_audio(wav, RATE)[: round(1.5 * RATE)])
    with pytest.raises(InvalidRequest, match=r"at most 0\.09 MB"):
        read_audio(wav, RATE, max_bytes=90_000)
    with pytest.raises(InvalidRequest, match=r"at most 0\.09 MB"):
        read_audio(io.BytesIO(wav), RATE, max_bytes=90_000)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.wav", "No such file"),
        ("http://127.0.0.1/a.wav", "No such file"),
        ("file:///etc/passwd", "No such file"),
        ("concat:/etc/passwd", "No such file"),
        ("a\0b", "null"),
        ("/dev/zero", "a regular file"),
        ("/", "directory"),
        (b"", "empty"),
    ],
)
def test_an_unreadable_source_is_rejected(source: str | bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        read_audio(source, RATE)
    assert caught.value.field == "audio"


def test_a_pipe_without_a_writer_is_rejected_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequest, match="a regular file"):
        read_audio(tmp_path / "pipe", RATE)


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=3000))
def test_random_bytes_are_decoded_or_rejected(data: bytes) -> None:
    try:
        samples, _ = decode(data, 5)
    except UnreadableAudio:
        return
    assert np.isfinite(samples).all()


@settings(deadline=None, max_examples=150)
@given(format=st.sampled_from(FILES), seed=st.integers(0, 10**6), hits=st.integers(1, 30))
def test_damaged_files_are_decoded_in_part_or_rejected(format: str, seed: int, hits: int) -> None:
    data = bytearray(encoded(format))
    random = np.random.default_rng(seed)
    for at in random.integers(0, len(data), hits):
        data[at] = random.integers(0, 256)
    try:
        samples, _ = decode(bytes(data), 5)
    except UnreadableAudio:
        return
    assert np.isfinite(samples).all()
    assert len(samples) <= 5 * 192_000


_encoded: dict[str, bytes] = {}


def encoded(format: str) -> bytes:
    return _encoded.setdefault(format, encode(speech(1.0), RATE, format))


@pytest.mark.parametrize("format", FILES)
def test_the_decodable_part_of_a_truncated_file_is_used(format: str) -> None:
    data = encode(speech(3.0), RATE, format)
    half, _ = decode(data[: len(data) // 2], 60)
    assert len(half) > RATE
    assert_unreadable(data[:20])


def test_other_file_types_are_rejected() -> None:
    page = b"<html><body>404 Not Found</body></html>" * 50
    picture = b"\x89PNG\r\n\x1a\n" + bytes(1000)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.wav", bytes(10_000_000))
    for data in (page, picture, archive.getvalue(), gzip.compress(bytes(10_000_000)), b"\0" * 5000, b"MZ" * 999):
        assert_unreadable(data, "wav, flac")
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as out:
        pictures = out.add_stream("mpeg4", rate=10)
        pictures.width, pictures.height = 64, 64
        out.mux(pictures.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8))))
        out.mux(pictures.encode(None))
    assert_unreadable(file.getvalue(), "no audio track")


def test_nan_and_infinity_are_rejected() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        sound = speech(1.0)
        sound[5000] = bad
        assert_unreadable(float_wav(sound), "NaN or infinite")


@pytest.mark.parametrize(
    ("rate", "channels", "message"),
    [(0, 1, ""), (1, 1, "got 1"), (4_294_967_295, 1, ""), (400_000, 1, "got 400000"), (RATE, 0, ""), (RATE, 200, "")],
)
def test_invalid_headers_are_rejected(rate: int, channels: int, message: str) -> None:
    assert_unreadable(float_wav(speech(0.5), rate, channels), message)


def test_a_data_size_beyond_the_file_is_ignored() -> None:
    sound = to_pcm(speech(1.0)).tobytes()
    form = struct.pack("<HHIIHH", 1, 1, RATE, 2 * RATE, 2, 16)
    for size in (0xFFFFFFFF, 0x7FFFFFFF, 10**9):
        assert len(decode(wav_of(form, sound, size), 60)[0]) == RATE
    assert_unreadable(wav_of(form, b"", 0x7FFFFFFF))


def test_a_decompression_bomb_is_read_up_to_the_limit() -> None:
    bomb = encode(np.zeros(3600 * 8000, np.float32), 8000, "flac")
    assert len(bomb) < 1_000_000
    began = time.process_time()
    assert len(decode(bomb, 60)[0]) == 60 * 8000
    assert time.process_time() - began < 2


def box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I", len(body) + 8) + kind + body


def mp4_that_claims(samples: int) -> bytes:
    """A file of a kilobyte whose index makes FFmpeg allocate 24 bytes per claimed sample."""

    def full(kind: bytes, *numbers: int, rest: bytes = b"") -> bytes:
        return box(kind, struct.pack(f">{1 + len(numbers)}I", 0, *numbers), rest)

    matrix = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    movie = full(
        b"mvhd", 0, 0, 1000, 1000, 0x10000, rest=b"\1\0" + bytes(10) + matrix + bytes(24) + struct.pack(">I", 2)
    )
    head = full(b"tkhd", 0, 0, 1, 0, 1000, rest=bytes(16) + matrix + bytes(8))
    entry = box(b"sowt", bytes(6), b"\0\1", bytes(8), struct.pack(">HHHHI", 1, 16, 0, 0, RATE << 16))
    table = box(
        b"stbl",
        full(b"stsd", 1, rest=entry),
        full(b"stts", 1, samples, 1024),
        full(b"stsc", 1, 1, samples, 1),
        full(b"stsz", 1, samples),
        full(b"stco", 1, 40),
    )
    media = full(b"mdhd", 0, 0, RATE, RATE, rest=b"\x55\xc4\0\0"), full(b"hdlr", 0, rest=b"soun" + bytes(13))
    track = box(b"trak", head, box(b"mdia", *media, box(b"minf", full(b"smhd", 0), table)))
    return box(b"ftyp", b"isom", bytes(4), b"isom") + box(b"mdat", bytes(100)) + box(b"moov", movie, *[track] * 6)


# In a separate process, because this one may have had larger children in other tests.
MEASURED = """
import resource, sys
from pathlib import Path
from polyvox.audio.read import read_audio
from polyvox.errors import InvalidRequest
try:
    read_audio(Path(sys.argv[1]).read_bytes(), int(sys.argv[2]))
except InvalidRequest:
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def test_an_index_of_gigabytes_is_rejected_within_the_memory_limit(tmp_path: Path) -> None:
    file = tmp_path / "claims.mp4"
    file.write_bytes(mp4_that_claims(60_000_000))  # 1.4 GB for each of six tracks
    process = subprocess.run(
        [sys.executable, "-c", MEASURED, file, str(RATE)], capture_output=True, text=True, check=True
    )
    assert 0 < int(process.stdout) < decoder.MAX_MEMORY_BYTES * 1.3


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[tuple[Path, int, list[bytes]]]:
    """A file and a port that must not be accessed, and the requests that the port received."""
    secret = tmp_path / "secret.wav"
    secret.write_bytes(encode(speech(1.0), RATE, "wav"))
    listener = socket.create_server(("127.0.0.1", 0))
    calls: list[bytes] = []

    def serve() -> None:
        try:
            while True:
                with listener.accept()[0] as call:
                    calls.append(call.recv(999))
        except OSError:
            return

    threading.Thread(target=serve, daemon=True).start()
    yield secret, listener.getsockname()[1], calls
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


TRICKS = [
    "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{it}\n#EXT-X-ENDLIST\n",
    "#EXTM3U\n#EXT-X-MEDIA-SEQUENCE:0\n#EXTINF:10.0,\nconcat:{it}|{it}\n#EXT-X-ENDLIST\n",
    "ffconcat version 1.0\nfile '{it}'\n",
    "ffconcat version 1.0\nfile {it}\nduration 1\n",
    '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet '
    'mimeType="audio/mp4"><Representation id="1"><BaseURL>{it}</BaseURL></Representation></AdaptationSet></Period>'
    "</MPD>",
    "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio {port} RTP/AVP 0\n",
    "[playlist]\nFile1={it}\nNumberOfEntries=1\n",
    "amovie={it}",
    "{it}",
]


@pytest.mark.parametrize("trick", TRICKS)
def test_a_playlist_opens_no_file_and_no_connection(trick: str, trap: tuple[Path, int, list[bytes]]) -> None:
    secret, port, calls = trap
    for it in (str(secret), f"file://{secret}", f"http://127.0.0.1:{port}/a.wav", f"tcp://127.0.0.1:{port}"):
        assert_unreadable(trick.format(it=it, port=port).encode(), "wav, flac")
    assert not calls


def test_without_our_options_the_playlist_is_opened(trap: tuple[Path, int, list[bytes]]) -> None:
    """Shows that the test above can fail."""
    secret, _, _ = trap
    trick = TRICKS[2].format(it=secret)
    with av.open(
        io.BytesIO(trick.encode()), "r", options={"safe": "0", "protocol_whitelist": "file,crypto,data"}
    ) as file:
        assert len(list(file.decode(audio=0))) > 0


def test_a_movie_does_not_open_the_file_it_refers_to(
    trap: tuple[Path, int, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """QuickTime's data references: an alias or a URL instead of samples."""
    secret, _, _ = trap
    data = mp4_that_claims(10)
    reference = box(
        b"dinf", box(b"dref", struct.pack(">II", 0, 1), box(b"url ", bytes(4), str(secret).encode() + b"\0"))
    )
    mark = data.index(b"stbl") - 4
    changed = data[:mark] + reference + data[mark:]
    opened: list[object] = []
    monkeypatch.setattr(decoder, "_reject_open", lambda *arguments: opened.append(arguments))
    assert_unreadable(changed)
    assert not opened


ATTEMPTS = """
import ctypes, os, socket, subprocess, sys, threading
from polyvox.audio import decode
results = {}
libc, thread = ctypes.CDLL(None, use_errno=True), threading.get_native_id()

def signal_thread():
    if libc.tgkill(os.getpid(), thread, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def attempt(name, work):
    try:
        work()
        results[name] = "succeeded"
    except OSError as error:
        results[name] = error.strerror

def attack(*_):
    attempt("socket", socket.socket)
    attempt("local socket", lambda: socket.socket(socket.AF_UNIX))
    attempt("read a file", lambda: open("/etc/hostname"))
    attempt("create a file", lambda: open(sys.argv[1] + ".new", "w"))
    attempt("remove a file", lambda: os.unlink(sys.argv[2]))
    attempt("start a process", os.fork)
    attempt("start a program", lambda: os.execv("/bin/true", ["true"]))
    attempt("signal a process", lambda: os.kill(os.getpid(), 0))
    attempt("signal a thread", signal_thread)
    raise decode.UnreadableAudio(repr(results))

decode.decode = attack
decode.main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
def test_a_decoder_cannot_open_sockets_or_files_or_start_processes(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.touch()
    command = [sys.executable, "-c", ATTEMPTS, "60", str(kept)]
    done = subprocess.run(command, input=b"", capture_output=True, check=True, timeout=60, cwd=tmp_path)
    header = json.loads(done.stdout)
    if header["isolation"] != "system call filter":
        pytest.skip(header["isolation"])  # the kernel refuses filters
    results = ast.literal_eval(header["error"])
    assert len(results) == 9
    assert set(results.values()) == {"Operation not permitted"}
    assert [*tmp_path.iterdir()] == [kept]


@pytest.mark.parametrize("machine", sandbox.ARCHITECTURES)
def test_every_jump_of_the_filter_leads_to_its_last_instruction(machine: str) -> None:
    program = [*struct.iter_unpack("HBBI", sandbox.filter_program(machine))]
    assert program[1][3] == sandbox.ARCHITECTURES[machine]
    numbers = {number: index + 1 + jump for index, (code, jump, _, number) in enumerate(program) if code == 0x15}
    assert len(numbers) == len(sandbox.ALLOWED) + 1  # and the architecture
    assert {target for number, target in numbers.items() if number < 0x1000} == {len(program) - 1}
    assert program[-1][3] == sandbox.SECCOMP_RET_ALLOW


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
def test_a_kernel_without_filters_and_namespaces_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(sandbox, "CLONE_NEWUSER", 1)  # an invalid flag
    assert sandbox.isolate().startswith("none (no system call filter: not supported on Linux riscv64")


def test_the_isolation_of_decoders_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    read._log_isolation.cache_clear()
    with caplog.at_level(logging.INFO, "polyvox.audio.read"):
        for _ in range(2):
            read_audio(encode(speech(0.5), RATE, "wav"), RATE)
        read._log_isolation("none (no system call filter: not supported)")
    first, second = caplog.records
    assert "audio decoder started isolation=" in first.getMessage()
    assert second.levelno == logging.WARNING
