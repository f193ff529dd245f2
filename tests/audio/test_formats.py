# SPDX-License-Identifier: Apache-2.0
import gc
import io
import struct
import subprocess
import sys
import tempfile
import tracemalloc
import wave
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

from audio.signals import RAW, chunks, decoded, speech
from polyvox import Audio, InvalidRequest
from polyvox.audio.formats import FORMATS, Encoder, encode, format_for_path
from polyvox.audio.g711 import alaw_bytes, alaw_samples, ulaw_bytes, ulaw_samples
from polyvox.audio.pcm import Pcm, to_pcm
from polyvox.audio.resample import resample
from polyvox.errors import StreamFailed

RATE = 24_000
EXACT = ("wav", "flac", "pcm", "opus", "ulaw", "alaw")  # and mp3 files
# Encoder delay and padding of frame codecs whose streams cannot declare them: the delay (LAME 1105 samples, AAC 1024),
# up to a frame of padding, and for LAME one more frame. An m4a file declares both, but FFmpeg does not cut the end.
SLACK = {"mp3": 1105 + 2 * 1152, "aac": 1024 + 2 * 1024, "m4a": 1024 + 2 * 1024}

LEAD = {"mp3": 1105, "aac": 1024, "m4a": 1024}  # samples of silence at the start of a stream


def streamed(format: str, parts: list[np.ndarray], rate: int = RATE, out: int | None = None) -> bytes:
    encoder = Encoder(format, rate, out)
    return b"".join([*map(encoder.push, parts), encoder.finish()])


def length(format: str, samples: int, rate: int, out: int) -> int:
    """The expected length after decoding, at `out`; Opus always decodes to 48 kHz."""
    at_out = (2 * samples * out + rate) // (2 * rate)
    return at_out * 48_000 // out if format == "opus" else at_out


@pytest.mark.parametrize("rate", [8000, 16_000, 22_050, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("streaming", [True, False])
def test_every_format_decodes_to_its_input_length(format: str, rate: int, streaming: bool) -> None:
    sound = speech(0.7031, rate)
    encoder = Encoder(format, rate, streaming=streaming)
    data = encoder.push(sound) + encoder.finish()
    back, back_rate = decoded(data, format, encoder.sample_rate)
    wanted = length(format, len(sound), rate, encoder.sample_rate)
    assert back_rate == (48_000 if format == "opus" else encoder.sample_rate)
    if format in EXACT or (format == "mp3" and not streaming):
        assert len(back) == wanted
    else:
        assert wanted <= len(back) <= wanted + SLACK[format]


def test_an_m4a_file_has_its_exact_length_and_its_index_first() -> None:
    data = encode(speech(1.01), RATE, "m4a")
    assert data.index(b"moov") < data.index(b"mdat")
    with av.open(io.BytesIO(data), "r") as file:
        assert file.streams.audio[0].duration == round(1.01 * RATE)


@pytest.mark.parametrize("out", [8000, 24_000, 48_000])
@pytest.mark.parametrize("format", ["wav", "flac", "pcm"])
@pytest.mark.parametrize("streaming", [True, False])
def test_lossless_formats_round_trip(format: str, out: int, streaming: bool) -> None:
    sound = speech(0.5) * 2  # partly clipped
    encoder = Encoder(format, RATE, out, streaming)
    data = encoder.push(sound) + encoder.finish()
    back, _ = decoded(data, format, out)
    assert np.array_equal(np.rint(back * 32768).astype(np.int16), to_pcm(resample(sound, RATE, out)))


@pytest.mark.parametrize(
    ("format", "decibels"), [("mp3", 20), ("opus", 12), ("aac", 25), ("m4a", 25), ("ulaw", 30), ("alaw", 30)]
)
def test_lossy_formats_stay_close_to_the_input_and_aligned(format: str, decibels: float) -> None:
    sound = speech(2.0)
    delay = LEAD.get(format, 0)
    back, rate = decoded(streamed(format, [sound]), format, 8000)
    back = resample(back, rate, RATE)[delay : delay + len(sound)]
    reference = resample(resample(sound, RATE, 8000), 8000, RATE) if format in RAW else sound
    noise = back - reference[: len(back)]
    assert 10 * np.log10(np.mean(reference**2) / np.mean(noise**2)) > decibels


def test_files_of_frame_codecs_skip_the_encoder_delay() -> None:
    sound = speech(1.0)
    for format in ("mp3", "m4a"):
        back, _ = decoded(encode(sound, RATE, format), format)
        noise = back[: len(sound)] - sound
        assert 10 * np.log10(np.mean(sound**2) / np.mean(noise**2)) > 20


@pytest.mark.parametrize("format", FORMATS)
def test_after_320_ms_of_input_at_least_200_ms_decode(format: str) -> None:
    sound = speech(2.0)
    encoder = Encoder(format, RATE)
    behind = (
        0.13 if format == "m4a" else 0.12
    )  # three AAC frames: one to fill, one in the encoder, one in the container
    data = b""
    for pushed, part in enumerate(chunks(sound, [round(0.32 * RATE)]), 1):
        data += encoder.push(part)
        back, rate = decoded(data, format, encoder.sample_rate)
        assert len(back) / rate >= min(0.32 * pushed, 2.0) - behind
        if pushed == 1:
            assert len(back) / rate >= 0.2
            assert len(back) / rate - LEAD.get(format, 0) / RATE >= (
                0.17 if format == "m4a" else 0.2
            )  # without silence


class StreamingClient:
    """A client's FFmpeg that reads from a connection; each read pushes the next 80 ms."""

    def __init__(self, format: str) -> None:
        self.encoder = Encoder(format, RATE)
        self.parts = chunks(speech(4.0), [round(0.08 * RATE)])
        self.pending = b""
        self.pushed = self.decoded = 0.0
        self.lag: list[float] = []

    def read(self, size: int) -> bytes:
        while not self.pending:
            if self.decoded:
                self.lag.append(self.pushed - self.decoded)
            part = next(self.parts, None)
            if part is None:
                return b""
            self.pending = self.encoder.push(part)
            self.pushed += len(part) / RATE
        given, self.pending = self.pending[:size], self.pending[size:]
        return given


@pytest.mark.parametrize(
    ("format", "max_lag"), [("opus", 0.03), ("aac", 0.1), ("flac", 0.13), ("m4a", 0.13), ("mp3", 0.14)]
)
def test_a_client_that_decodes_while_it_reads_has_a_small_lag(format: str, max_lag: float) -> None:
    client = StreamingClient(format)
    with av.open(client, "r", options={"probesize": "32", "analyzeduration": "0"}) as file:
        for frame in file.decode(audio=0):
            client.decoded += frame.samples / frame.sample_rate
    assert len(client.lag) > 20
    assert max(client.lag[10:]) < max_lag


@pytest.mark.parametrize("format", ["opus", "flac"])
def test_pages_and_blocks_are_at_most_40_ms_long(format: str) -> None:
    data = streamed(format, [speech(1.0)])
    if format == "opus":
        granules, at = [], 0
        while at < len(data):
            assert data[at : at + 4] == b"OggS"
            granules.append(struct.unpack_from("<q", data, at + 6)[0])
            segments = data[at + 26]
            at += 27 + segments + sum(data[at + 27 : at + 27 + segments])
        steps = np.diff(granules[2:])
    else:
        with av.open(io.BytesIO(data), "r") as file:
            steps = np.array([frame.samples for frame in file.decode(audio=0)]) * 2
        assert data[4 + 4 + 13 : 4 + 4 + 18][0] & 15 == 0  # the total number of samples, here and below, is unknown
        assert data[22:26] == bytes(4)
    assert steps.max() <= 0.04 * 48_000


def test_streamed_mp3_frames_have_one_size_and_no_bit_reservoir() -> None:
    data = streamed("mp3", [speech(1.0)])
    frame = 96_000 // 8 * 576 // RATE
    assert len(data) % frame == 0
    for at in range(0, len(data), frame):
        assert data[at] == 0xFF
        assert data[at + 1] & 0xE0 == 0xE0
        assert data[at + 4] == 0  # main_data_begin of MPEG-2: no data in earlier frames


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("out", [None, 8000])
def test_chunk_sizes_do_not_change_the_bytes(format: str, out: int | None) -> None:
    sound = speech(0.4)
    pieces = list(chunks(sound, [1, 7, 1920, 0, 333]))
    if out is None:
        assert streamed(format, pieces) == streamed(format, [sound])
    else:  # resampling rounds, so the bytes may differ; the length may not
        at = FORMATS[format].rates[0]
        one, many = (decoded(streamed(format, parts, RATE, out), format, at)[0] for parts in ([sound], pieces))
        assert len(one) == len(many)
        assert np.abs(one - many).max() < 0.02


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("samples", [0, 1])
def test_an_almost_empty_clip_is_a_valid_file(format: str, streaming: bool, samples: int) -> None:
    encoder = Encoder(format, RATE, streaming=streaming)
    data = encoder.push(np.zeros(samples, np.float32)) + encoder.finish()
    back, _ = decoded(data, format, encoder.sample_rate)
    if format in EXACT and not (format == "opus" and not samples):
        assert len(back) == length(format, samples, RATE, encoder.sample_rate)
    else:
        assert len(back) < 0.1 * RATE
    assert np.abs(back).max(initial=0) < 1e-3


def test_concurrent_encoders_are_independent() -> None:
    one, two = speech(0.6), speech(0.6)[::-1].copy()
    for format in FORMATS:
        a, b = Encoder(format, RATE), Encoder(format, RATE)
        out_a, out_b = b"", b""
        for part_a, part_b in zip(chunks(one, [960]), chunks(two, [960]), strict=True):
            out_a, out_b = out_a + a.push(part_a), out_b + b.push(part_b)
        assert out_a + a.finish() == streamed(format, [one])
        assert out_b + b.finish() == streamed(format, [two])


def test_a_wav_file_has_its_size_and_a_wav_stream_has_none() -> None:
    sound = speech(0.1)
    assert struct.unpack_from("<I", streamed("wav", [sound]), 4) == (0xFFFFFFFF,)
    assert struct.unpack_from("<I", streamed("wav", [sound]), 40) == (0xFFFFFFFF,)
    whole = encode(sound, RATE, "wav")
    assert whole == Audio(sound, RATE, 1, "stop").wav()
    with wave.open(io.BytesIO(whole)) as file:
        assert file.getparams()[:4] == (1, 2, RATE, len(sound))


@pytest.mark.parametrize(("law", "name"), [(ulaw_bytes, "mulaw"), (alaw_bytes, "alaw")])
def test_telephone_codes_match_g711(law, name: str) -> None:  # type: ignore[no-untyped-def]
    every = np.arange(-32768, 32768, dtype=np.int32).astype(np.int16)
    values = _g711(bytes(range(256)), name)
    ours = values[np.frombuffer(law(every), np.uint8)].astype(int)
    nearest = np.abs(values.astype(int)[None] - every.astype(int)[:, None]).min(axis=1)
    step = np.maximum(np.abs(every.astype(int)) / 16, 16)
    assert (np.abs(ours - every) <= np.maximum(nearest + 1, step)).all()
    codes = np.frombuffer(law(values.astype(np.int16)), np.uint8)
    assert np.array_equal(values[codes], values)  # decoded values encode to their own code


@pytest.mark.parametrize(("decode", "name"), [(ulaw_samples, "mulaw"), (alaw_samples, "alaw")])
def test_telephone_codes_decode_to_the_samples_of_g711(decode: Callable[[bytes], Pcm], name: str) -> None:
    assert np.array_equal(decode(bytes(range(256))), _g711(bytes(range(256)), name))


def _g711(codes: bytes, name: str) -> Pcm:
    with av.open(io.BytesIO(codes), "r", format=name, options={"sample_rate": "8000"}) as file:
        return np.concatenate([frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("doc", RATE), "Invalid value for 'format': must be one of wav, flac"),
        (("opus", RATE, 44_100), "one of 8000, 12000, 16000, 24000, 48000 for opus"),
        (("ulaw", RATE, 16_000), "one of 8000 for ulaw"),
        (("mp3", RATE, 96_000), "48000 for mp3"),
        (("wav", RATE, 0), "48000 for wav"),
        (("opus", RATE, None, True, 320_000), "opus cannot encode"),
        (("wav", RATE, None, True, 64_000), "not supported by wav, only by mp3"),
        (("mp3", RATE, None, True, 1), "between 8000 and 320000"),
        (("wav", 1), "between 4000 and 192000"),
    ],
)
def test_unsupported_options_are_rejected_with_the_allowed_values(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Encoder(*arguments)  # type: ignore[arg-type]


def test_the_bit_rate_is_respected() -> None:
    small, large = (len(encode(speech(2.0), RATE, "mp3", 44_100, bits)) for bits in (32_000, 128_000))
    assert 3.5 < large / small < 4.5


def test_nan_samples_raise_an_error() -> None:
    for format in FORMATS:
        encoder = Encoder(format, RATE)
        with pytest.raises(StreamFailed):
            encoder.push(np.full(10, np.nan, np.float32))


def test_a_closed_encoder_rejects_calls() -> None:
    part = speech(0.32)
    for format in FORMATS:
        with Encoder(format, RATE) as encoder:
            encoder.push(part)
        encoder.close()
        for call in (lambda encoder=encoder: encoder.push(part), encoder.finish):
            with pytest.raises(ValueError, match="closed"):
                call()


def test_encoders_do_not_leak_memory() -> None:
    part = speech(0.1)

    def rounds(count: int) -> None:
        for _ in range(count):
            for format in ("flac", "mp3", "opus", "aac", "m4a"):
                encoder = Encoder(format, RATE, 48_000)
                encoder.push(part)
                encoder.close()
        gc.collect()

    rounds(5)
    before = _resident()
    tracemalloc.start()
    rounds(40)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 300_000
    assert _resident() - before < 30_000_000


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_uncompressed_formats_do_not_import_ffmpeg() -> None:
    program = (
        "import sys, numpy as np; from polyvox.audio.formats import encode\n"
        "for name in ('pcm', 'wav', 'ulaw', 'alaw'): encode(np.zeros(99, np.float32), 8000, name)\n"
        "assert 'av' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["a.wav", "a.FLAC", "a.mp3", "a.opus", "a.ogg", "a.aac", "a.m4a", "a.pcm", "a.ulaw"])
def test_a_clip_is_saved_in_the_format_of_its_extension(tmp_path: Path, name: str) -> None:
    audio = Audio(speech(0.5), RATE, 1, "stop")
    audio.save(tmp_path / name, sample_rate=8000)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    format = format_for_path(name).name
    data = (tmp_path / name).read_bytes()
    assert data == audio.to(format, 8000)
    back, rate = decoded(data, format, 8000)
    assert 0.5 <= len(back) / rate < 0.9


def test_content_types() -> None:
    types = {name: Encoder(name, RATE).content_type for name in FORMATS}
    assert types["mp3"] == "audio/mpeg"
    assert types["opus"] == "audio/ogg"
    assert types["pcm"] == "audio/pcm;rate=24000;channels=1"
    assert {types[name] for name in ("aac", "flac", "wav")} == {"audio/aac", "audio/flac", "audio/wav"}


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_on_disk_has_the_bytes_of_one_in_memory(name: str) -> None:
    samples = np.sin(np.arange(36_000) / 9).astype(np.float32)
    with tempfile.TemporaryFile() as file, Encoder(name, 24_000, streaming=False, file=file) as encoder:
        returned = b"".join([encoder.push(samples[:20_000]), encoder.push(samples[20_000:]), encoder.finish()])
        file.seek(0)
        assert returned == b""
        with Encoder(name, 24_000, streaming=False) as other:
            expected = other.push(samples[:20_000]) + other.push(samples[20_000:]) + other.finish()
        assert file.read() == expected
