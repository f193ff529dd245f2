# SPDX-License-Identifier: Apache-2.0
"""Continuity of Qwen3-Omni's speech side with a scripted thinker, at several numbers of streams; prints one table.

    python benchmarks/conversations.py --streams 1,4,10,32,64,128,256       # random weights at the published size, GPU
    python benchmarks/conversations.py --model tiny --streams 1,2 --frames 30 --tokens 20   # any machine

Every stream has a prompt of --prompt tokens and an answer of --tokens tokens, of which --rate arrive in a second, and
--frames frames of speech. Streams start at random times within --spread seconds. The engine runs in its own process.

    first audio  from the first token of the answer to the first samples at the client
    RTF          from the first token to the last samples, divided by the duration of the speech
    gaps         of a player that starts with the first samples and that no missing token explains
"""

import argparse
import asyncio
import random
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from typer import echo

from polyvox.bench.summary import percentile
from polyvox.engine.config import MIN_CONTEXT, EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.interface import AsyncEngine, AsyncStream
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.supervisor import EngineProcess
from polyvox.models.qwen3_omni.synthetic import published_config, tiny_config, write_tiny
from polyvox.models.registry import LoadOptions, load_model, random_model
from polyvox.models.request import Request, Sampling, ThinkerPrompt
from polyvox.tts import placement

TIMEOUT = 300.0  # seconds for one stream
MAX_PLAIN_ID = 400  # ordinary text in both vocabularies, above the tiny one's special tokens
MIN_PLAIN_ID = 100
CONTROL_ROWS = 64  # more than the roles and controls of a prompt


@dataclass(frozen=True, slots=True)
class Options:
    model: str
    device: str
    tokens: int
    rate: float
    frames: int
    prompt: int
    spread: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client saw of one stream, in seconds."""

    first_audio: float
    speech: float
    elapsed: float
    gaps: int
    underruns: int  # as the engine counts them
    text_waits: int


def build(options: Options, max_streams: int) -> LocalEngine:
    """Runs in the engine's process."""
    device, dtype = placement(options.device, "auto")
    context = max(MIN_CONTEXT, options.prompt + options.frames + CONTROL_ROWS)
    config = EngineConfig(max_streams, context, max_queue=max_streams, max_queue_seconds=60.0)
    if options.model == "omni":
        return LocalEngine(random_model("omni", LoadOptions(device, dtype)), config)
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_model(write_tiny(Path(folder), "plain"), LoadOptions(device, dtype))
    return LocalEngine(loaded, config)


def prompt_ids(options: Options, seed: int) -> ThinkerPrompt:
    """A user turn of random words."""
    config = published_config() if options.model == "omni" else tiny_config("plain")
    start, end, user, assistant = (config[f"{name}_token_id"] for name in ("im_start", "im_end", "user", "assistant"))
    words = random.Random(seed).choices(range(MIN_PLAIN_ID, MAX_PLAIN_ID), k=options.prompt)
    line = MIN_PLAIN_ID
    return ThinkerPrompt((start, user, line, *words, end, line, start, assistant, line))


async def think(stream: AsyncStream, options: Options, seed: int) -> float:
    """Appends the answer's tokens at their rate; returns when the first one was sent."""
    words = random.Random(seed).choices(range(MIN_PLAIN_ID, MAX_PLAIN_ID), k=options.tokens)
    start = time.perf_counter()
    for count, token in enumerate(words):
        delay = start + count / options.rate - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        stream.append_tokens([token])
    stream.finish_text()
    return start


async def converse(engine: AsyncEngine, options: Options, seed: int) -> Answer:
    await asyncio.sleep(random.Random(seed).uniform(0, options.spread))
    sampling = Sampling(predictor_temperature=1.0, predictor_top_p=0.8, min_frames=options.frames)
    request = Request(
        "", seed=seed, sampling=sampling, max_frames=options.frames, live=True, guard=False,
        thinker_prompt=prompt_ids(options, seed),
    )  # fmt: skip
    stream = await engine.submit(request)
    thinker = asyncio.create_task(think(stream, options, seed))
    rate, played_until, gaps, first, samples = engine.sample_rate, 0.0, 0, 0.0, 0
    async for chunk in stream:
        now = time.perf_counter()
        if not len(chunk.samples):
            continue
        first = first or now
        if samples and now > played_until:
            gaps += 1
        played_until = max(played_until, now) + len(chunk.samples) / rate
        samples += len(chunk.samples)
        last = now
    start = await thinker
    assert stream.result is not None
    return Answer(first - start, samples / rate, last - start, gaps, stream.result.underruns, stream.result.text_waits)


async def measure(engine: AsyncEngine, options: Options, streams: int) -> list[Answer]:
    async with asyncio.timeout(TIMEOUT):
        return await asyncio.gather(*(converse(engine, options, seed) for seed in range(streams)))


def row(answers: list[Answer]) -> str:
    first = sorted(answer.first_audio * 1e3 for answer in answers)
    rtf = sorted(answer.elapsed / answer.speech for answer in answers)
    seconds = sum(answer.speech for answer in answers)
    with_gaps = sum(answer.gaps > answer.text_waits for answer in answers)
    return (
        f"| {len(answers)} | {percentile(first, 50):.0f} / {percentile(first, 95):.0f} | {percentile(rtf, 50):.3f} / "
        f"{percentile(rtf, 99):.3f} | {seconds / max(answer.elapsed for answer in answers):.1f} | "
        f"{with_gaps} | {sum(answer.underruns for answer in answers)} | "
        f"{sum(answer.text_waits for answer in answers) / len(answers):.1f} |"
    )


HEADING = """| streams | first audio p50 / p95, ms | RTF p50 / p99 | speech per second, s | streams with gaps | \
underruns | waits for text per stream |
|---|---|---|---|---|---|---|"""


async def run(process: EngineProcess, options: Options, levels: list[int]) -> None:
    engine = AsyncRemoteEngine(process.endpoint)
    try:
        await measure(engine, options, 1)  # warm-up
        echo(HEADING)
        for streams in levels:
            echo(row(await measure(engine, options, streams)))
        stats = await engine.stats()
        echo(f"{stats['frames']:.0f} frames in {stats['steps']:.0f} steps")
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("omni", "tiny"), default="omni")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--streams", default="1,4,10,32,64,128,256")
    parser.add_argument("--tokens", type=int, default=300, help="of an answer")
    parser.add_argument("--rate", type=float, default=75.0, help="tokens of an answer per second")
    parser.add_argument("--frames", type=int, default=750, help="of speech, 80 ms each")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the user's turn")
    parser.add_argument("--spread", type=float, default=1.0, help="seconds within which all streams start")
    given = vars(parser.parse_args())
    levels = [int(level) for level in given.pop("streams").split(",")]
    options = Options(**given)
    with EngineProcess(partial(build, options, max(levels))) as process:
        asyncio.run(run(process, options, levels))
    if torch.cuda.is_available():
        echo(torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
