# SPDX-License-Identifier: Apache-2.0
"""Checks of the engine that need a GPU; prints a table, and ends with status 1 if a check failed.

    python benchmarks/gpu_checks.py [--size 0.6B] [--only rows,solo,storm,layers,memory,vocoder] [--vocoder-device cpu]

rows: within one call size, the output of a stream is bit-identical in any batch and any slot.
solo: with `deterministic`, streams in a batch of 64 are bit-identical to the same streams alone.
storm: 1,000 streams started and cancelled at random with `poison_freed`; then a stream gives the same samples again.
layers: bfloat16 against float32 by layer, and the codec's samples, in dB; at least MIN_DECIBELS.
memory: 16 concurrent streams of 30 s: the GPU memory in use, by the driver.
vocoder: with the vocoder on another device, the same codes, and samples within the float32 tolerance.
"""

import argparse
import random
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch

from polyvox.bench.model_calls import SyntheticBatch
from polyvox.engine.config import EngineConfig
from polyvox.engine.engine import LocalEngine
from polyvox.engine.pending import PendingAudio
from polyvox.engine.stream_arrays import Ints
from polyvox.kernels.pre_norm import PreNorm
from polyvox.models.layers.transformer import TransformerLayer
from polyvox.models.protocol import SpeechModel
from polyvox.models.qwen3_tts.family import FAMILY
from polyvox.models.qwen3_tts.model import Qwen3TTS
from polyvox.models.registry import LoadOptions, random_model
from polyvox.models.request import Request, Sampling
from polyvox.models.talker_generator import TalkerGeneratorState
from polyvox.tts import TTS, load

DEVICE = torch.device("cuda")
VOCODER_DEVICE = "cpu"  # of the check `vocoder`
SAMPLE_TOLERANCE = 1e-4  # relative, in float32
MIN_DECIBELS = 20.0  # an error of 10 %
WIDTH = 80  # columns of what was checked
MIN_SAME = 4  # streams of 8 with the same first code in bfloat16 and float32
TEXTS = ["Good morning.", "The train leaves at nine.", "Could you say that again, please?", "We ran out of milk."]


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    value: str
    passed: bool = True


@torch.inference_mode()
def rows(size: str) -> list[Row]:
    """Two batches of 64 that share 32 streams, in other slots."""
    same = same_streams(random_model(size, LoadOptions(DEVICE, torch.bfloat16)), 64)
    what = "rows: streams with the same bits in another batch"
    return [Row(what, f"{sum(same)} of {len(same)}", all(same))]


def same_streams(model: SpeechModel, batch_size: int) -> list[bool]:
    """Whether codes, inputs and samples of each stream that two batches share have the same bits."""
    shared, device = batch_size // 2, model.generator.device
    torch.manual_seed(0)
    inputs = torch.randn(batch_size + shared, model.generator.hidden_size, device=device).to(model.generator.dtype)

    def generate(streams: list[int]) -> dict[int, tuple[torch.Tensor, ...]]:
        """16 frames and their samples of each stream; seed and input belong to the stream, not to its slot."""
        batch = SyntheticBatch(model, batch_size, 32, 24, 4)
        share_context(batch)
        state = batch.state
        assert isinstance(state, TalkerGeneratorState)
        state.input.copy_(inputs[streams])
        state.key[:, 0] = torch.tensor(streams, device=device)
        order = torch.randperm(batch_size, device=device)
        batch.slots = batch.vocoder_slots = batch.slots[order]
        chunks = []
        for _ in range(4):
            for _ in range(4):
                batch.frame()
            chunks.append(batch.decode(state.frame_index[batch.slots] - 4))
        samples = torch.cat(chunks, 1)
        inverse = torch.argsort(order)
        return {stream: (state.codes[i, :16], state.input[i], samples[inverse[i]]) for i, stream in enumerate(streams)}

    one = generate(list(range(batch_size)))
    other = generate(list(range(batch_size + shared - 1, shared - 1, -1)))
    pairs = [(one[stream], other[stream]) for stream in range(shared, batch_size)]
    return [all(torch.equal(a, b) for a, b in zip(*pair, strict=True)) for pair in pairs]


def share_context(batch: SyntheticBatch) -> None:
    """Gives every slot the keys and values of slot 0: a stream has another slot in each batch."""
    cache = batch.cache
    for pages in (cache.keys[:, 1:], cache.values[:, 1:]):  # page 0 belongs to no slot
        by_slot = pages.unflatten(1, (batch.batch, -1))
        by_slot.copy_(by_slot[:, :1].clone())
    if cache.scales is not None:
        by_slot = cache.scales[:, :, 1:].unflatten(2, (batch.batch, -1))
        by_slot.copy_(by_slot[:, :, :1].clone())


def _requests(count: int) -> list[Request]:
    voices = ("heart", "michael")
    return [Request(TEXTS[i % 4], voices[i % 2], seed=i) for i in range(count)]


def _synthesise(engine: LocalEngine, requests: list[Request]) -> list[np.ndarray]:
    streams = [engine.submit(request) for request in requests]
    return [np.concatenate([chunk.samples for chunk in stream.chunks()]) for stream in streams]


def solo(_: str) -> list[Row]:
    """A batch of 64 against some of its streams alone."""
    with load(device="cuda", config=EngineConfig(max_streams=64, max_queue=64, deterministic=True)) as tts:
        requests = _requests(64)
        together = _synthesise(tts.engine, requests)
        alone = [_synthesise(tts.engine, [requests[i]])[0] for i in range(0, 64, 4)]
    same = sum(np.array_equal(together[4 * i], one) for i, one in enumerate(alone))
    what = "solo: deterministic streams with the same bits alone and in a batch of 64"
    return [Row(what, f"{same} of {len(alone)}", same == len(alone))]


def storm(_: str) -> list[Row]:
    """Streams started and cancelled at random, in slots that are poisoned when freed."""
    rng = random.Random(0)
    config = EngineConfig(max_streams=64, max_queue=2000, max_queue_seconds=120, poison_freed=True)
    with load(device="cuda", config=config) as tts:
        engine = tts.engine
        before = _synthesise(engine, _requests(4)[:1])[0]
        streams = []
        for i in range(1000):
            streams.append(engine.submit(Request(TEXTS[i % 4], ("heart", "michael")[i % 2], seed=i)))
            time.sleep(rng.random() * 0.004)
            for stream in rng.sample(streams, 1):
                stream.cancel()
        for stream in streams:
            stream.cancel()
        began = time.monotonic()
        while engine.stats()["slots_free"] < 64 and time.monotonic() - began < 10:
            time.sleep(0.001)
        freed, all_free = time.monotonic() - began, engine.stats()["slots_free"] == 64
        after = _synthesise(engine, _requests(4)[:1])[0]
        stats = engine.stats()
    finished = {name: int(count) for name, count in stats.items() if name.startswith("finished_") and count}
    same = np.array_equal(before, after)
    return [
        Row("storm: finish reasons of 1,002 streams", str(finished)),
        Row("storm: all slots free after", f"{freed * 1e3:.0f} ms", all_free),
        Row("storm: samples before and after", "the same" if same else "different", same),
    ]


@torch.inference_mode()
def layers(size: str) -> list[Row]:
    """The same weights in bfloat16 and in float32."""
    narrow = FAMILY.random_model(size, DEVICE, torch.bfloat16)
    wide = FAMILY.random_model(size, DEVICE, torch.float32)
    for one, other in zip(wide.model.parameters(), narrow.model.parameters(), strict=True):
        one.copy_(other)
    found: dict[str, list[torch.Tensor]] = {}

    def record_layers(model: Qwen3TTS, name: str) -> ExitStack:
        """Records the output of each layer until the stack is closed."""
        stacks = {"talker": model.talker.model.layers, "predictor": model.talker.code_predictor.model.layers}
        names = {layer: f"{name} {stack} {i}" for stack, parts in stacks.items() for i, layer in enumerate(parts)}
        forward, forward_fused = TransformerLayer.forward, TransformerLayer.forward_fused

        def record(layer: TransformerLayer, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
            out = forward(layer, *inputs)
            found.setdefault(names[layer], []).append(out[0].float())
            return out

        def record_small_batch(layer: TransformerLayer, *inputs: Any) -> PreNorm:
            out = forward_fused(layer, *inputs)
            found.setdefault(names[layer], []).append(out.rows.float())
            return out

        patches = ExitStack()
        patches.enter_context(mock.patch.object(TransformerLayer, "forward", record))
        patches.enter_context(mock.patch.object(TransformerLayer, "forward_fused", record_small_batch))
        return patches

    torch.manual_seed(1)
    start = torch.randn(8, narrow.generator.hidden_size, device="cuda")
    samples, first = {}, {}
    for name, model in (("narrow", narrow), ("wide", wide)):
        batch = SyntheticBatch(model, 8, 32, 8, 4)
        state = batch.state
        assert isinstance(state, TalkerGeneratorState)
        state.input.copy_(start)
        with record_layers(model.model, name):
            batch.frame()
        first[name] = state.codes[:8, 0, 0].clone()
        torch.manual_seed(2)
        codes = torch.randint(0, 2048, (8, 16, narrow.generator.num_codebooks), device="cuda")
        codec = model.model.codec
        samples[name], _ = codec(codes, codec.initial_state(8))
    same = first["narrow"] == first["wide"]  # another code 0 is another input of the predictor
    table = [Row("layers: streams with the same code 0", f"{int(same.sum())} of 8", int(same.sum()) >= MIN_SAME)]
    for stack, at, streams in (
        ("talker", (0, 6, 13, 20, 27), torch.ones_like(same)), ("predictor", (0, 2, 4), same),
    ):  # fmt: skip
        pairs = [(found[f"wide {stack} {i}"][0], found[f"narrow {stack} {i}"][0]) for i in at]
        by_layer = [_decibels(*(out.reshape(8, -1, out.shape[-1])[streams] for out in pair)) for pair in pairs]
        parts = ", ".join(f"{i}: {db:.0f}" for i, db in zip(at, by_layer, strict=True))
        passed = all(db >= MIN_DECIBELS for db in by_layer)  # NaN is not
        table.append(Row(f"layers: {stack}, signal to difference in dB after layer", parts, passed))
    codec_db = _decibels(samples["wide"], samples["narrow"])
    table.append(Row("layers: codec, the same codes", f"{codec_db:.0f} dB", codec_db >= MIN_DECIBELS))
    return table


def _decibels(expected: torch.Tensor, found: torch.Tensor) -> float:
    return float(10 * torch.log10(expected.square().mean() / (expected - found).square().mean()))


def memory(_: str) -> list[Row]:
    """0.6B, 16 streams of 375 frames."""
    model = random_model("0.6B", LoadOptions(DEVICE, torch.bfloat16), num_tokens=30)
    with TTS(model, EngineConfig(max_streams=16, context=512)) as tts:
        engine, frames = tts.engine, 375
        sampling = Sampling(min_frames=frames)
        streams = [
            engine.submit(Request("hello", seed=i, sampling=sampling, max_frames=frames, guard=False))
            for i in range(16)
        ]
        for stream in streams:
            for _chunk in stream.chunks():
                pass
        free, total = torch.cuda.mem_get_info()
        parts = ", ".join(f"{share.name} {share.size / 1e9:.2f}" for share in engine._runner.memory())
    return [
        Row("memory: 0.6B, 16 streams of 30 s, GB on the GPU in total", f"{(total - free) / 1e9:.2f}"),
        Row("memory: GB of the engine by use", parts),
    ]


def vocoder(_: str) -> list[Row]:
    """The embedded voice in float32 with the vocoder on the GPU and on VOCODER_DEVICE."""
    found: dict[str, tuple[list[list[int]], list[np.ndarray]]] = {}
    torch.backends.cudnn.allow_tf32 = False  # with TF32 the GPU's convolutions differ from the CPU's by 6e-3
    for device in ("auto", VOCODER_DEVICE):
        config = EngineConfig(max_streams=16, max_queue=64)
        with load(device="cuda", dtype="float32", config=config, vocoder_device=device) as tts:
            runner = tts.engine._runner
            ring, decode = runner.generator.state.codes, runner.decode
            codes: list[list[int]] = []

            def record(
                slots: Ints,
                firsts: Ints,
                counts: Ints,
                after_frames: bool = False,
                ring: torch.Tensor = ring,
                decode: Callable[[Ints, Ints, Ints, bool], PendingAudio] = decode,
                codes: list[list[int]] = codes,
            ) -> PendingAudio:
                for slot, first, count in zip(slots.tolist(), firsts.tolist(), counts.tolist(), strict=True):
                    codes += ring[slot, torch.arange(first, first + count) % ring.shape[1]].tolist()
                return decode(slots, firsts, counts, after_frames)

            with mock.patch.object(runner, "decode", record):
                sequential = [_synthesise(tts.engine, [request])[0] for request in _requests(8)]
            concurrent = _synthesise(tts.engine, _requests(64))  # must not hang
            found[device] = codes, sequential
            assert all(len(samples) for samples in concurrent)
    (codes, samples), (other_codes, other_samples) = found.values()
    same = codes == other_codes
    error = max(
        float(np.abs(one - other).max() / np.abs(one).max()) if one.shape == other.shape else np.inf
        for one, other in zip(samples, other_samples, strict=True)
    )
    what = f"vocoder: codes of {len(codes)} frames with the vocoder on {VOCODER_DEVICE}"
    value = f"{error:.1e}, limit {SAMPLE_TOLERANCE:g}"
    return [
        Row(what, "the same" if same else "different", same),
        Row("vocoder: largest relative difference of samples", value, error < SAMPLE_TOLERANCE),
    ]


CHECKS: dict[str, Callable[[str], list[Row]]] = {
    "memory": memory, "rows": rows, "solo": solo, "storm": storm, "layers": layers, "vocoder": vocoder,
}  # fmt: skip


def main() -> int:
    global VOCODER_DEVICE
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="0.6B", choices=["0.6B", "1.7B"])
    parser.add_argument("--only", default=",".join(CHECKS), help="checks, comma-separated")
    parser.add_argument("--vocoder-device", default=VOCODER_DEVICE, help="device of the check vocoder: cpu or cuda:N")
    given = parser.parse_args()
    VOCODER_DEVICE = given.vocoder_device
    passed = True
    for name in given.only.split(","):
        began = time.monotonic()
        try:
            table = CHECKS[name](given.size)
        except Exception as error:
            traceback.print_exc()
            table = [Row(f"{name}: error", repr(error)[:100], passed=False)]
        table.append(Row(f"{name}: took", f"{time.monotonic() - began:.0f} s"))
        # At once: a check may take longer than the time that is left.
        sys.stdout.writelines(f"{row.what:{WIDTH}}  {row.value}{'' if row.passed else '  FAILED'}\n" for row in table)
        sys.stdout.flush()
        passed = passed and all(row.passed for row in table)
        torch.cuda.empty_cache()
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
