# SPDX-License-Identifier: Apache-2.0
import asyncio
import gc
import wave
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import polyvox
from conftest import Loaded, LoadedTTS
from engine.synthesis import TIMEOUT
from polyvox import Audio, ClonedVoice, InvalidRequest, Request, Sampling
from polyvox.audio.samples import Samples
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.errors import PolyvoxError
from polyvox.models.talker_generator import TalkerGeneratorState
from polyvox.tts import TTS

pytestmark = pytest.mark.slow

TEXT = "Good morning, how are you?"


def recorded_frames(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """A list to which the codes of every generated frame are added."""
    recorded: list[torch.Tensor] = []
    frame = TalkerGeneratorState.frame

    def record(state: TalkerGeneratorState, slots: torch.Tensor, *rest: Any) -> torch.Tensor:
        at = state.frame_index[slots] % state.codes.shape[1]
        flags = frame(state, slots, *rest)
        recorded.append(state.codes[slots, at].clone())
        return flags

    monkeypatch.setattr(TalkerGeneratorState, "frame", record)
    return recorded


def test_the_embedded_voice_speaks_and_ends(embedded: LoadedTTS) -> None:
    audio = embedded.say(TEXT)
    assert audio.finish_reason == "stop"
    assert audio.sample_rate == 24_000
    assert 0.8 < audio.seconds < 6
    assert audio.samples.dtype == np.float32
    assert 0.05 < np.abs(audio.samples).max() <= 1
    assert np.isfinite(audio.samples).all()


def test_the_embedded_voices_differ(embedded: LoadedTTS) -> None:
    assert embedded.voices == ["heart", "michael"]
    default, heart, michael = (embedded.say(TEXT, voice, seed=5).samples for voice in (None, "Heart", "michael"))
    assert np.array_equal(default, heart)
    assert not np.array_equal(heart[:20_000], michael[:20_000])


def test_a_stream_has_the_samples_of_say_and_a_small_first_chunk(embedded: LoadedTTS) -> None:
    whole = embedded.say(TEXT, seed=1)
    stream = embedded.stream(TEXT, seed=1)
    with pytest.raises(RuntimeError, match="not finished"):
        stream.audio([])
    chunks = list(stream)
    sizes = [len(chunk) // embedded.model.config.codec.samples_per_frame for chunk in chunks]
    assert sizes[0] <= 4
    assert min(sizes) >= 1
    np.testing.assert_allclose(stream.audio(chunks).samples, whole.samples, atol=1e-5)


def test_the_first_chunk_arrives_before_generation_ends(embedded: LoadedTTS, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recorded_frames(monkeypatch)
    stream = embedded.stream(TEXT)
    first = next(iter(stream))
    assert len(first) <= 4 * embedded.model.vocoder.samples_per_frame
    stream.cancel()
    assert made


def test_interleaved_streams_are_independent(embedded: LoadedTTS) -> None:
    alone = [embedded.say(TEXT, voice, seed=5).samples for voice in embedded.voices]
    streams = [embedded.stream(TEXT, voice, seed=5) for voice in embedded.voices]
    chunks: list[list[np.ndarray]] = [[], []]
    running = [iter(stream) for stream in streams]
    while any(running):
        for i, iterator in enumerate(running):
            chunk = next(iterator, None) if iterator else None
            if chunk is None:
                running[i] = None  # type: ignore[call-overload]
            else:
                chunks[i].append(chunk)
    for i in range(2):
        np.testing.assert_allclose(np.concatenate(chunks[i]), alone[i], atol=1e-5)


def engine_of(tts: TTS) -> weakref.ref[LocalEngine]:
    """The engine, started, without a reference that keeps it."""
    return weakref.ref(tts.engine)


def is_open(engine: weakref.ref[LocalEngine]) -> bool:
    gc.collect()  # an engine has reference cycles
    found = engine()
    return found is not None and found._thread.is_alive()


def test_the_engine_of_a_dropped_object_ends_after_its_last_stream_and_reader(loaded: Loaded) -> None:
    tts = TTS(loaded("custom_voice", "float32").model, EngineConfig(max_streams=2))
    engine, thread = engine_of(tts), tts.engine._thread
    stream, reader = tts.stream("hello there", max_frames=6), tts.read("Hello. There.", seed=3)
    del tts
    assert is_open(engine)
    iterator = iter(stream)
    del stream
    assert is_open(engine)
    assert sum(map(len, iterator))
    del iterator
    assert is_open(engine)
    sentences = iter(reader)
    del reader
    next(sentences)
    assert is_open(engine)
    del sentences
    gc.collect()
    thread.join(TIMEOUT)
    assert not is_open(engine)
    assert engine() is None


def test_an_object_that_is_collected_while_a_thread_holds_the_lock_of_its_engine_does_not_block_it(
    loaded: Loaded,
) -> None:
    tts = TTS(loaded("custom_voice", "float32").model, EngineConfig(max_streams=2))
    lock, thread = tts.engine.lock, tts.engine._thread
    with lock:
        del tts
        gc.collect()  # in the thread that holds the lock
        assert thread.is_alive()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_a_detached_engine_outlives_its_object(loaded: Loaded) -> None:
    engine = TTS(loaded("custom_voice", "float32").model, EngineConfig(max_streams=2)).detach_engine()
    gc.collect()
    assert [chunk.final for chunk in engine.submit(Request("hello", seed=3, max_frames=2)).chunks()][-1]
    engine.close()


def test_the_same_seed_gives_the_same_speech_and_is_reported(loaded: Loaded) -> None:
    tts = loaded("custom_voice", "float32")
    first = tts.say("hello", max_frames=20)
    again = tts.say("hello", max_frames=20, seed=first.seed)
    other = tts.say("hello", max_frames=20, seed=first.seed + 1)
    assert np.array_equal(first.samples, again.samples)
    assert not np.array_equal(first.samples[:200], other.samples[:200])


def test_segments_with_one_seed_have_different_random_numbers(loaded: Loaded) -> None:
    engine = loaded("custom_voice", "float32").engine
    audio = [
        np.concatenate(
            [chunk.samples for chunk in engine.submit(Request("hello", seed=3, max_frames=9, segment=s)).chunks()]
        )
        for s in (0, 0, 1)
    ]
    assert np.array_equal(audio[0], audio[1])
    assert not np.array_equal(audio[0], audio[2])


def test_speech_is_cut_at_max_frames(loaded: Loaded) -> None:
    tts = loaded("custom_voice", "float32")
    audio = tts.say("hello", max_frames=5, seed=3)
    assert audio.finish_reason == "length"
    assert len(audio.samples) == 5 * tts.model.config.codec.samples_per_frame


def test_every_option_of_a_request_changes_the_audio(loaded: Loaded) -> None:
    tts = loaded("custom_voice", "float32")
    plain = {"text": "hello", "voice": "serena", "language": "english", "seed": 2, "max_frames": 30}
    changes = (
        {"text": "on the other side"},
        {"voice": "vivian"},
        {"language": "german"},
        {"instructions": "slowly"},
        {"layout": "streaming"},
        {"sampling": Sampling(temperature=0)},
    )
    spoken = [tts.say(**(plain | change)).samples for change in ({}, *changes)]  # type: ignore[arg-type]
    for i, change in enumerate(changes, start=1):
        assert not np.array_equal(spoken[0], spoken[i]), change


def test_a_designed_voice_follows_its_description(loaded: Loaded) -> None:
    tts = loaded("voice_design", "float32")
    assert tts.voices == []
    descriptions = ("an old man", "a young woman, out of breath")
    old, young = (tts.say("hello", instructions=text, seed=1, max_frames=30) for text in descriptions)
    assert not np.array_equal(young.samples, old.samples)


def cloned(tts: LoadedTTS, frames: int) -> ClonedVoice:
    generator = torch.Generator().manual_seed(2)
    vector = torch.randn(tts.model.generator.hidden_size, generator=generator).numpy()
    codes = torch.randint(0, 64, (frames, tts.model.config.talker.code_groups), generator=generator).numpy()
    return ClonedVoice(vector, codes, "hello there") if frames else ClonedVoice(vector)


def test_a_cloned_voice_speaks_with_and_without_its_recording(loaded: Loaded) -> None:
    tts = loaded("base", "float32")
    vector_only, in_context = (tts.say("hello", cloned(tts, n), seed=1, max_frames=9) for n in (0, 12))
    assert not np.array_equal(vector_only.samples, in_context.samples)


def test_the_codec_state_after_a_recording_is_exact(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding recording and speech together gives the same speech after the last sample of the recording."""
    tts = loaded("base", "float64")
    voice = cloned(tts, 12)
    assert voice.codes is not None
    assert tts.engine.stats()["streams"] == 0  # started, so that its own measurements are not recorded
    spoken = recorded_frames(monkeypatch)
    audio = tts.say("hello", voice, seed=1, max_frames=9)
    frames = len(audio.samples) // tts.model.config.codec.samples_per_frame
    codes = torch.cat([torch.from_numpy(voice.codes), *spoken[:frames]])[None]
    together, _ = tts.model.model.codec(codes, tts.model.model.codec.initial_state(1))
    tail = together[0, 12 * tts.model.config.codec.samples_per_frame :].numpy()
    np.testing.assert_allclose(audio.samples, tail, atol=1e-7)


@pytest.mark.parametrize(
    ("arguments", "field", "message"),
    [
        ({"voice": "bob"}, "voice", "heart, michael"),
        ({"voice": ClonedVoice(np.zeros(4, np.float32))}, "voice", "Base"),
        ({"language": "klingon"}, "language", "auto, english"),
        ({"text": ""}, "text", "at least one word"),
        ({"text": " \n"}, "text", "at least one word"),
        ({"text": 5}, "text", "a string"),
        ({"text": "long " * 20_000}, "text", "10,000 characters but has 100,000"),
        ({"text": "a\udfff"}, "text", "Unicode"),
        ({"instructions": "slowly"}, "instructions", "VoiceDesign"),
        ({"seed": -1}, "seed", "between 0 and"),
        ({"seed": 2**64}, "seed", "between 0 and"),
        ({"seed": 1.5}, "seed", "between 0 and"),
        ({"seed": True}, "seed", "between 0 and"),
        ({"voice": ""}, "voice", "heart, michael"),
        ({"voice": 5}, "voice", "heart, michael"),
        ({"language": None}, "language", "auto, english"),
        ({"max_frames": "5"}, "max_frames", "between 1 and 32768"),
        ({"live": "yes"}, "live", "True or False"),
        ({"trim_silence": None}, "trim_silence", "True or False"),
        ({"max_frames": True}, "max_frames", "between 1 and 32768"),
        ({"sampling": {"top_k": 1}}, "sampling", "a Sampling"),
        ({"sampling": Sampling(top_k=0.5)}, "top_k", "an integer"),  # type: ignore[arg-type]
        ({"sampling": Sampling(temperature=1e-40)}, "temperature", "between 0 and 10"),
        ({"text": "😀"}, "text", "at least one word in Latin letters"),
        ({"text": "strengths " * 900}, "text", "at most 2047 tokens"),
        ({"layout": "sideways"}, "layout", "whole, streaming"),
        ({"max_frames": 0}, "max_frames", "between 1 and 32768"),
        ({"max_frames": 50_000}, "max_frames", "between 1 and 32768"),
        ({"sampling": Sampling(top_p=2)}, "top_p", "and 1"),
    ],
)
def test_invalid_arguments_are_rejected_at_once(
    arguments: dict[str, object], field: str, message: str, embedded: LoadedTTS
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        embedded.stream(**({"text": TEXT} | arguments))  # type: ignore[arg-type]
    assert caught.value.field == field
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("speed", ["x", None, True, 5, float("nan")])
def test_an_invalid_speed_is_rejected(speed: float, embedded: LoadedTTS) -> None:
    with pytest.raises(InvalidRequest, match=r"'speed': must be between 0.25 and 4"):
        embedded.read(TEXT, speed=speed)


@pytest.mark.parametrize("text", [5, 0, None, b"bytes"])
def test_text_that_is_no_string_is_rejected_and_leaves_the_stream_open(text: str, embedded: LoadedTTS) -> None:
    stream = embedded.stream("one ", live=True, max_frames=4)
    with pytest.raises(InvalidRequest, match="'text': must be a string"):
        stream.append(text)
    stream.append("two")
    stream.finish_text()
    assert stream.audio(list(stream)).finish_reason == "length"


@pytest.mark.parametrize("language", ["en", "en-GB", "English", "en_us"])
def test_a_language_may_be_given_by_its_code(language: str, embedded: LoadedTTS) -> None:
    expected = embedded.say("Hello.", language="english", seed=5, max_frames=4).samples
    found = embedded.say("Hello.", language=language, seed=5, max_frames=4).samples
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert embedded.stream("Hello.", language=language)._stream.request.language == "english"
    assert embedded.read("Hello.", language=language).request.language == "english"


def test_max_frames_may_exceed_the_default_of_the_checkpoint(embedded: LoadedTTS) -> None:
    config = embedded.model.config
    request = Request("Hello.", max_frames=config.max_frames + 100, guard=False)
    assert embedded.model.prepare(request).max_frames == config.max_frames + 100
    request = Request("Hello.", max_frames=config.talker.max_positions, guard=False)
    assert embedded.model.prepare(request).max_frames < config.talker.max_positions


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vector": np.zeros(3, np.float32)}, "48 finite"),
        ({"codes": None}, "require each other"),
        ({"transcript": None}, "require each other"),
        ({"codes": np.zeros((4, 3), np.int64)}, "frames, 6"),
        ({"codes": np.zeros((0, 6), np.int64)}, "frames, 6"),
        ({"codes": np.full((4, 6), 64)}, "0 to 63"),
        ({"codes": np.zeros((4, 6))}, "integers"),
        ({"transcript": " "}, "at least one word"),
        ({"transcript": 5}, "a string"),
        ({"vector": [0.0] * 48}, "an array"),
        ({"vector": np.full(48, np.nan, np.float32)}, "finite"),
        ({"codes": [[0] * 6]}, "an array"),
    ],
)
def test_an_invalid_voice_is_rejected(change: dict[str, object], message: str, loaded: Loaded) -> None:
    tts = loaded("base", "float32")
    with pytest.raises(InvalidRequest, match=message) as caught:
        tts.stream("hello", replace(cloned(tts, 4), **change))  # type: ignore[arg-type]
    assert caught.value.field.startswith("voice")


def test_models_reject_voices_they_do_not_support(loaded: Loaded) -> None:
    with pytest.raises(InvalidRequest, match="instructions"):
        loaded("voice_design", "float32").stream("hello", "serena")
    with pytest.raises(InvalidRequest, match="ClonedVoice"):
        loaded("base", "float32").stream("hello", "serena")


def test_a_text_beyond_the_context_is_rejected(loaded: Loaded) -> None:
    tts = loaded("custom_voice", "float32")
    with pytest.raises(InvalidRequest, match="4096"):
        tts.stream("hello", instructions="x " * 4_500)
    # Just enough context for a few frames: speech ends with the positions, not beyond them.
    short = 4096 - len(tts.model.prepare(Request("hello", instructions="x", seed=1)).rows)
    prepared = tts.model.prepare(Request("hello", instructions="x" * (short - 3), seed=1, guard=False))
    assert 1 <= prepared.max_frames < 10
    assert len(prepared.rows) + prepared.max_frames < 4096


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"device": "tpu"}, "device"),
        ({"device": "meta"}, "device"),
        ({"device": "cpu:7"}, "device"),
        ({"device": None}, "device"),
        ({"dtype": []}, "dtype"),
        ({"device": "cuda:99"}, "device"),
        ({"dtype": "int8"}, "dtype"),
    ],
)
def test_an_unavailable_device_or_dtype_is_rejected(arguments: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        polyvox.load(**arguments)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_the_embedded_voice_speaks_in_bfloat16(embedded: LoadedTTS) -> None:
    """Another precision may sample other tokens, but speech must still end."""
    audio = polyvox.load(device="cpu", dtype="bfloat16").say(TEXT)
    assert audio.finish_reason == "stop"
    assert abs(audio.seconds - embedded.say(TEXT).seconds) < 1


def test_a_clip_may_be_spoken_faster_or_slower(embedded: LoadedTTS) -> None:
    normal, fast = (embedded.say(TEXT, seed=1, speed=speed) for speed in (1.0, 2.0))
    assert fast.seconds == pytest.approx(normal.seconds / 2, abs=0.001)
    assert fast.seed == normal.seed
    assert np.array_equal(normal.samples, embedded.say(TEXT, seed=1).samples)
    with pytest.raises(InvalidRequest, match=r"'speed': must be between 0\.25 and 4"):
        embedded.say(TEXT, speed=9)


def test_objects_are_shown_with_what_a_user_needs(embedded: LoadedTTS) -> None:
    assert repr(embedded) == "TTS('embedded', cpu, float32, voices=['heart', 'michael'])"
    assert repr(Audio(np.zeros(36_000, np.float32), 24_000, 7, "stop")) == "Audio(1.50 s, 24000 Hz, seed 7)"


def test_all_public_names_are_listed_and_a_checkpoint_is_loaded_by_name(checkpoints: Path) -> None:
    assert set(polyvox.__all__) <= set(dir(polyvox))
    with polyvox.load(model=checkpoints / "custom_voice", device="cpu") as tts:
        assert repr(tts).startswith("TTS('custom_voice', cpu, float32, voices=[")


def test_a_saved_file_has_the_samples(tmp_path: Path) -> None:
    samples = np.array([0.0, 0.5, -0.5, 1.0, -1.0], np.float32)
    path = tmp_path / "a.wav"
    Audio(samples, 24_000, 1, "stop").save(path)
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        assert np.frombuffer(file.readframes(99), "<i2").tolist() == [0, 16384, -16384, 32767, -32767]
    assert list(tmp_path.iterdir()) == [path]


def test_an_unwritable_path_is_rejected_and_leaves_no_file(tmp_path: Path) -> None:
    audio = Audio(np.zeros(4, np.float32), 24_000, 1, "stop")
    (tmp_path / "file").touch()
    for path in ("a.doc", "nowhere/a.wav", "file/a.wav", "n" * 300 + ".wav", "a\0b.wav"):
        with pytest.raises(InvalidRequest, match="path"):
            audio.save(tmp_path / path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    audio.save(tmp_path / ("n" * 245 + ".wav"))


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"old")
    audio = Audio(np.zeros(4, np.float32), 24_000, 1, "stop")
    monkeypatch.setattr(Path, "replace", lambda *_: pytest.fail("stopped before the end"))
    with pytest.raises(pytest.fail.Exception):
        audio.save(path)
    assert path.read_bytes() == b"old"


def test_concurrent_saves_to_one_path_are_atomic(tmp_path: Path) -> None:
    audio = Audio(np.zeros(4, np.float32), 24_000, 1, "stop")
    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(audio.save, tmp_path / "a.wav") for _ in range(60)]:
            job.result()
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


def test_the_default_layout_depends_on_the_model(loaded: Loaded) -> None:
    for kind, voice, rows in (("base", cloned(loaded("base", "float32"), 0), 9), ("custom_voice", "serena", 13)):
        prepared = loaded(kind, "float32").model.prepare(Request("hello there", voice, seed=1))
        assert len(prepared.rows) == rows


def test_a_stream_is_an_async_iterator(embedded: LoadedTTS) -> None:
    async def read() -> list[Samples]:
        return [samples async for samples in embedded.stream("Hello.", seed=5)]

    expected = embedded.say("Hello.", seed=5).samples
    np.testing.assert_allclose(np.concatenate(asyncio.run(read())), expected, atol=1e-4)


def test_a_loop_over_a_cancelled_stream_ends(embedded: LoadedTTS) -> None:
    stream = embedded.stream(TEXT)
    for _ in stream:
        stream.cancel()
        break
    for _ in stream:
        pass  # chunks that had been decoded
    assert stream.finish_reason == "cancelled"


def test_an_async_loop_over_a_cancelled_stream_ends(embedded: LoadedTTS) -> None:
    async def read() -> None:
        stream = embedded.stream(TEXT)
        async for _ in stream:
            stream.cancel()
            break
        async with asyncio.timeout(60):
            async for _ in stream:
                pass  # chunks that had been decoded
        assert stream.finish_reason == "cancelled"

    asyncio.run(read())


def test_a_failed_engine_is_replaced(loaded: Loaded) -> None:
    with TTS(loaded("custom_voice", "float32").model) as tts:
        broken = tts.engine
        step = mock.patch.object(broken._runner.generator.state, "frame", side_effect=RuntimeError("injected"))
        with step:
            for _ in range(5):
                with pytest.raises(PolyvoxError):
                    tts.say("hello", "serena")
                if broken.broken:
                    break
        broken._thread.join()
        assert broken.broken
        assert tts.engine is not broken
        assert tts.say("hello", "serena", max_frames=4).seconds > 0
