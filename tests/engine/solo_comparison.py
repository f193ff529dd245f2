# SPDX-License-Identifier: Apache-2.0
"""Compares the output of a stream of `EngineMachine` with a run of the same request alone."""

from collections import Counter
from math import inf

import numpy as np
import pytest

from engine.clients import MAX_FRAMES, Client, cut_short
from engine.stepped_engine import SteppedEngine
from engine.synthesis import SoloRun, request, run_alone
from polyvox.audio.samples import Samples
from polyvox.audio.silence import SILENCE_LEVEL
from polyvox.engine.interface import Result
from polyvox.errors import Overloaded, StreamFailed
from polyvox.models.qwen3_tts.speech_model import Qwen3TTSModel
from polyvox.models.request import Request

# Causes that cut a stream short: its finish reason and the start of its error.
CUTS = {
    "cancel": ("cancelled", None),
    "assign": ("error", "the request could not be prepared: assign"),
    "step": ("error", "a step of the engine failed: step"),
    "write": ("error", "the text could not be read: write"),
    "rows": ("error", "rows"),
    "rejected": ("error", "all streams are taken"),
    "queue": ("error", "no slot was free"),
    "reader": ("error", "nothing was read"),
    "unread": ("error", "the reader is behind real time"),
    "text": ("error", "no text arrived"),
    "closed": ("error", "the engine was closed"),
}


def check_output(engine: SteppedEngine, speech: Qwen3TTSModel, client: Client, counts: Counter[str]) -> None:
    """Compares an ended stream with its solo run, and counts how it ended."""
    stream, wanted = client.stream, client.wanted
    client.take()
    client.take()
    assert client.received[-1].final
    result = stream.result
    assert result is not None
    expected = _solo_run(speech, wanted)
    frames = wanted.max_frames or 0
    codes, codes_alone = engine.codes[stream], expected.codes[:frames]
    counts[result.finish_reason] += 1
    counts["waited for text"] += result.text_waits > 0
    counts["frames"] += len(codes)
    if cut_short(result):
        causes = client.causes | ({"unread"} if stream in engine.unread else set())
        cuts = [cut for cut in causes if CUTS[cut][0] == result.finish_reason]
        matching = [cut for cut in cuts if (CUTS[cut][1] or "") in (result.error or "")]
        assert matching, f"unexplained result: {result}, {client.causes}"
        counts[matching[0]] += 1
        assert codes == codes_alone[: len(codes)]
        if result.finish_reason == "error":
            refused = any(part in (result.error or "") for part in ("no slot was free", "all streams are taken"))
            kind = Overloaded if refused else StreamFailed
            with pytest.raises(kind):
                result.check()
    else:
        assert result.finish_reason == ("length" if len(expected.codes) >= frames else expected.reason)
        assert codes == codes_alone
        assert result.frames == len(codes_alone)
    samples_per_frame = speech.vocoder.samples_per_frame
    _compare(client, expected.samples[: len(codes_alone) * samples_per_frame], result, samples_per_frame)


def _compare(client: Client, whole: Samples, result: Result, samples_per_frame: int) -> None:
    samples, complete = client.samples, not cut_short(result)
    cut = 0
    if client.wanted.trim_silence and len(samples):
        starts = range(0, len(whole), samples_per_frame)
        near = (s for s in starts if np.allclose(whole[s : s + len(samples)], samples[: len(whole) - s], atol=1e-6))
        cut = next(near, inf) if not complete else len(whole) - len(samples)  # type: ignore[assignment]
        assert cut < len(whole), "these samples are not in the solo run"
        assert np.sqrt(np.mean(whole[:cut] ** 2)) < SILENCE_LEVEL if cut else True
    elif client.wanted.trim_silence and complete:
        cut = len(whole)
    assert len(samples) <= len(whole) - cut
    assert len(samples) == len(whole) - cut or not complete
    np.testing.assert_allclose(samples, whole[cut : cut + len(samples)], rtol=0, atol=1e-6)


def _solo_run(speech: Qwen3TTSModel, wanted: Request) -> SoloRun:
    sampling = wanted.sampling
    return run_alone(
        speech,
        request(
            wanted.text,
            str(wanted.voice),
            wanted.seed or 0,
            MAX_FRAMES,
            layout=wanted.layout,
            sampling=sampling,
        ),
    )
