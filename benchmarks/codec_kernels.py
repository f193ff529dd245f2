# SPDX-License-Identifier: Apache-2.0
"""The codec's kernels on a GPU: numerical error, time and the choice of tiles.

    python benchmarks/codec_kernels.py                  errors in dB, calls by batch and frames, each layer
    python benchmarks/codec_kernels.py --parts cuda     each layer with a CUDA kernel (wgmma_conv.py, sample_conv.py)
                                                        against Triton's and the reference implementation
    python benchmarks/codec_kernels.py --parts tune     the tiles of kernels/tiles.py, for 64 streams and more;
        --batches 512 --only conv1                      at one size, layers whose names contain this: about 3 s per tile

Random weights at the published size; median milliseconds of CUDA graph replays. A failed part states its error.
"""

import argparse
import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from rich.console import Console
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cuda_timing import median_replay_ms

from polyvox import kernels
from polyvox.kernels import conv, sample_conv, tiles, wgmma_conv
from polyvox.models.layers.conv_layers import ResidualUnit, SampleConv, SnakeBeta, Stateful
from polyvox.models.layers.decoder_pass import DecoderPass
from polyvox.models.qwen3_tts.codec import CodecDecoder
from polyvox.models.qwen3_tts.family import FAMILY

DEVICE = torch.device("cuda")
HALF_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
CHUNK = 4  # frames per call in the timings of layers and tiles
REPLAYS = 10
OTHER_TILES = (
    tiles.Tile(128, 128, 64, 64, 8, 4, 1.0),
    tiles.Tile(128, 128, 64, 32, 8, 4, 1.0),
    tiles.Tile(256, 64, 32, 32, 8, 4, 1.0),
    tiles.Tile(256, 64, 0, 64, 8, 3, 1.0),
    tiles.Tile(256, 128, 0, 64, 8, 3, 1.0),
    tiles.Tile(128, 64, 32, 32, 8, 4, 1.0),
    tiles.Tile(64, 128, 64, 64, 4, 3, 1.0),
    tiles.Tile(64, 128, 0, 64, 4, 4, 1.0),
    tiles.Tile(64, 64, 32, 32, 4, 4, 1.0),
    tiles.Tile(128, 256, 0, 64, 8, 3, 1.0),
    tiles.Tile(256, 128, 64, 64, 16, 3, 1.0),
    tiles.Tile(256, 64, 32, 64, 8, 3, 1.0),
)
console = Console(width=140, highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="errors,calls,layers")
    parser.add_argument("--batches", default="1,16,64,256,512")
    parser.add_argument("--frames", default="1,2,4,8")
    parser.add_argument("--only", default="", help="tune: part of the layer names")
    parser.add_argument("--dtype", default="float16", choices=HALF_DTYPES)
    options = parser.parse_args()
    batches, frames = ([int(n) for n in text.split(",")] for text in (options.batches, options.frames))
    torch.backends.cudnn.allow_tf32 = True
    with torch.inference_mode():
        codec = FAMILY.random_model("0.6B", DEVICE, torch.float32).model.codec
        half = narrowed(codec, HALF_DTYPES[options.dtype])
        parts: dict[str, Callable[[], None]] = {
            "errors": lambda: show_errors(codec),
            "calls": lambda: show_calls(codec, half, batches, frames),
            "layers": lambda: show_layers(half),
            "cuda": lambda: show_cuda(half, batches),
            "tune": lambda: tune(half, [batch for batch in batches if batch >= 64], options.only),
        }
        for name in options.parts.split(","):
            console.rule(f"{name} · {torch.cuda.get_device_name()} · {options.dtype}")
            attempt(name, parts[name])


def attempt(name: str, part: Callable[[], object]) -> None:
    try:
        part()
    except Exception as error:  # a compiler or driver error does not stop the other parts
        console.print(f"{name} failed: {type(error).__name__}: {str(error).strip().splitlines()[-1:]}", markup=False)


def narrowed(codec: CodecDecoder, dtype: torch.dtype) -> CodecDecoder:
    other = copy.deepcopy(codec)
    other.narrow(dtype)
    return other


def random_codes(codec: CodecDecoder, batch: int, frames: int) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(3)
    shape = (batch, frames, codec.config.quantizers)
    return torch.randint(codec.config.codebook_size, shape, generator=generator, device=DEVICE)


def error_db(found: Tensor, expected: Tensor) -> float:
    error = (found - expected).float().square().mean() / expected.float().square().mean()
    return 10 * error.log10().item()


def show_errors(codec: CodecDecoder) -> None:
    """Errors of each implementation against the float32 reference without TF32, over chunks; bit equality of rows."""
    codes, sizes = random_codes(codec, 3, 13), [4, 1, 8]

    def decoded(one: CodecDecoder) -> Tensor:
        state, slots = one.initial_state(5), torch.tensor([4, 0, 2], device=DEVICE)
        return torch.cat([one(part, state, slots)[0] for part in codes.split(sizes, dim=1)], dim=1)

    torch.backends.cudnn.allow_tf32 = False
    try:
        with kernels.disabled():
            expected = decoded(codec)
        codecs = {"float32": codec} | {name: narrowed(codec, dtype) for name, dtype in HALF_DTYPES.items()}
        for name, one in codecs.items():
            for implementation in ("kernels", "reference"):

                def part(implementation: str = implementation, name: str = name, one: CodecDecoder = one) -> None:
                    if implementation == "kernels":
                        found = decoded(one)
                    else:
                        with kernels.disabled():
                            found = decoded(one)
                    console.print(f"{name:9} {implementation:9} {error_db(found, expected):7.1f} dB")

                attempt(f"{name} {implementation}", part)
    finally:
        torch.backends.cudnn.allow_tf32 = True
    half, many = narrowed(codec, torch.float16), random_codes(codec, 64, CHUNK)
    slots = torch.arange(64, device=DEVICE)
    once, _ = half(many, half.initial_state(64), slots)
    order = slots.flip(0)
    other, _ = half(many[order], half.initial_state(64), slots)
    console.print(f"same bits in another row: {torch.equal(once[order], other)}")


def show_calls(codec: CodecDecoder, half: CodecDecoder, batches: list[int], frames: list[int]) -> None:
    console.print("ms per call, ms per frame; reference: in the same dtype, then in float32 with TF32")
    for count in frames:
        for batch in batches:

            def part(batch: int = batch, count: int = count) -> None:
                fast = median_replay_ms(decode_call(half, batch, count), REPLAYS)
                line = f"{batch:4} streams × {count:2} frames  {fast:8.3f}  {fast / count:7.3f} per frame"
                if count == CHUNK and batch in (batches[0], 64, batches[-1]):
                    with kernels.disabled():
                        slow = [median_replay_ms(decode_call(one, batch, count), 3) for one in (half, codec)]
                    line += f"   reference {slow[0]:8.3f} {slow[1]:8.3f}"
                console.print(line)

            attempt(f"{batch} × {count}", part)
            torch.cuda.empty_cache()


def decode_call(codec: CodecDecoder, batch: int, frames: int) -> Callable[[], object]:
    codes, state = random_codes(codec, batch, frames), codec.initial_state(batch)
    slots = torch.arange(batch, device=DEVICE)
    return lambda: codec(codes, state, slots)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of the convolution kernel inside a call."""

    name: str
    taps: conv.PackedConv
    state: Tensor | None
    columns: int  # per frame
    add: bool
    snake: bool
    keep: bool

    def call(self, batch: int, frames: int) -> Callable[[], object]:
        taps, columns, dtype = self.taps, self.columns * frames, self.taps.weight.dtype
        x = torch.randn(batch, columns, taps.inputs, device=DEVICE, dtype=dtype).transpose(1, 2)
        shape = (batch, columns * taps.rate, taps.outputs)
        add = torch.randn(shape, device=DEVICE, dtype=dtype).transpose(1, 2) if self.add else None
        snake = (taps.bias[: taps.outputs], taps.bias[: taps.outputs]) if self.snake else None
        state = (
            self.state[:1].expand(batch, -1, -1).transpose(1, 2).contiguous().transpose(1, 2)
            if self.state is not None
            else None
        )
        slots = torch.arange(batch, device=DEVICE)
        return lambda: conv.causal_conv(x, taps, state, slots, add, snake, self.keep)

    def flops(self, batch: int, frames: int) -> float:
        return 2.0 * batch * frames * self.columns * self.taps.weight.numel()


def launches(codec: CodecDecoder) -> Iterator[Launch]:
    """The launches of one call, recorded from the codec."""
    state, recorded = codec.initial_state(1), []
    names = {id(layer.packed_weights().weight): name for name, layer in codec.named_modules() if is_dense(layer)}

    def record(x: Tensor, taps: conv.PackedConv, past: Tensor | None, *rest: object) -> tuple[Tensor, Tensor]:
        add, snake, keep = rest[1], rest[2], rest[3]
        launch = Launch(names[id(taps.weight)], taps, past, x.shape[2], add is not None, snake is not None, bool(keep))
        recorded.append(launch)
        return conv.causal_conv(x, taps, past, *rest)  # type: ignore[arg-type]

    with only_triton(), patch("polyvox.models.layers.conv_layers.causal_conv", record):
        codec(random_codes(codec, 1, 1), state, torch.zeros(1, dtype=torch.int64, device=DEVICE))
    yield from recorded


@contextmanager
def only_triton() -> Iterator[None]:
    """All convolutions are Triton kernels."""
    with (
        patch.object(wgmma_conv, "supports_architecture", lambda _: False),
        patch.object(sample_conv, "supports", lambda *_: False),
    ):
        yield


def show_cuda(half: CodecDecoder, batches: list[int]) -> None:
    """Each residual unit and each other convolution that has a CUDA kernel, in chunks of 4."""
    console.print("ms with Triton and CUDA; with CUDA: TFLOP/s, error in dB against the reference in this dtype")
    for batch in batches:
        step = DecoderPass(half.initial_state(batch), torch.arange(batch, device=DEVICE))
        for launch in launches(half):
            layer, flops = half.get_submodule(launch.name), launch.flops(batch, CHUNK)
            shape = batch, launch.columns * CHUNK, launch.taps.inputs
            x = torch.randn(shape, device=DEVICE, dtype=half.dtype).transpose(1, 2)
            snake = SnakeBeta(launch.taps.outputs).to(DEVICE)
            for parameter in snake.parameters():
                parameter.requires_grad_(False).zero_()
            parent = half.get_submodule(launch.name.rpartition(".")[0])
            if not isinstance(layer, Stateful) or not (launch.snake or isinstance(layer, SampleConv)):
                continue
            if isinstance(layer, SampleConv):
                call: Callable[[], Tensor | tuple[Tensor, ...]] = partial(layer.samples, x, step)
            elif isinstance(parent, ResidualUnit) and launch.taps.inputs in wgmma_conv.UNIT_CHANNELS:
                if layer is parent.conv2:
                    continue  # part of the unit
                call = partial(parent, x, x, step, snake, keep=True)
                flops *= 8 / 7
            else:
                call = partial(layer.run, x, step, x if launch.add else None, snake, launch.keep)
            with only_triton():
                before = median_replay_ms(call, 5)
            after = median_replay_ms(call, 5)
            found = last_result(call())  # each of these calls begins with the state after x
            with kernels.disabled():
                error = error_db(found, last_result(call()))
            console.print(
                f"{batch:4} {launch.name:36} {before:7.3f} {after:7.3f} {flops / after / 1e9:5.0f} {error:6.1f}",
                markup=False,
            )
            del found
            torch.cuda.empty_cache()


def last_result(results: Tensor | tuple[Tensor, ...]) -> Tensor:
    return results if isinstance(results, Tensor) else results[-1]


def is_dense(layer: torch.nn.Module) -> bool:
    """Whether the layer is an ungrouped convolution."""
    return isinstance(layer, Stateful) and not getattr(layer.conv, "groups", 1) > 1


def show_layers(half: CodecDecoder) -> None:
    console.print("each convolution with its state, chunks of 4: ms and TFLOP/s at 64, then 512 streams; its tile")
    total = {64: 0.0, 512: 0.0}
    for launch in launches(half):
        line = f"{launch.name:36} {launch.taps.weight.shape[0]:6} × {launch.taps.weight.shape[1]:5}"
        for batch in total:
            try:
                ms = median_replay_ms(launch.call(batch, CHUNK), 5)
            except Exception as error:  # as in `attempt`
                line += f"  failed: {type(error).__name__}"
                continue
            total[batch] += ms
            rows = batch * CHUNK * launch.columns
            tile = tiles.choose_tile(rows, launch.taps.weight.shape[1], launch.taps.inputs, launch.taps.weight.dtype)
            line += f"  {ms:7.3f} {launch.flops(batch, CHUNK) / ms / 1e9:5.0f}  {tile.rows}×{tile.columns}×{tile.depth}"
        console.print(line, markup=False)
        torch.cuda.empty_cache()
    for batch, ms in total.items():
        rest = median_replay_ms(decode_call(half, batch, CHUNK), REPLAYS) - ms
        console.print(f"{batch} streams: convolutions {ms:.3f} ms, other {rest:.3f} ms")


def tune(half: CodecDecoder, batches: list[int], only: str) -> None:
    """Times each distinct launch with each tile; prints the best three and the chosen one."""
    tuned = set()
    for launch in launches(half):
        weight = launch.taps.weight
        kind = (weight.shape, launch.add, launch.keep)
        if kind in tuned or only not in launch.name:
            continue
        tuned.add(kind)
        for batch in batches:
            rows = batch * CHUNK * launch.columns
            chosen = tiles.choose_tile(rows, weight.shape[1], launch.taps.inputs, weight.dtype)
            times: dict[tiles.Tile, float] = {}
            for tile in (*tiles.TILES, *OTHER_TILES):
                if tile.columns >= 2 * max(16, weight.shape[1]) or tile.rows * tile.columns < 64 * 64 <= rows // 64:
                    continue
                fitted = replace(tile, depth=tiles._depth(tile.depth, launch.taps.inputs))
                with patch("polyvox.kernels.conv.choose_tile", lambda *_, fitted=fitted: fitted):
                    try:
                        times[fitted] = median_replay_ms(launch.call(batch, CHUNK), 3)
                    except Exception as error:  # as in `attempt`
                        console.print(f"{fitted}: {type(error).__name__}", markup=False)
            best = sorted(times, key=times.__getitem__)[:3]
            shown = "   ".join(f"{_short(tile)} {times[tile]:.3f}" for tile in best)
            current = f"{_short(chosen)} {times.get(chosen, float('nan')):.3f}"
            console.print(
                f"{launch.name[-28:]:28} {batch:3} × {rows // batch:5} {shown}   chosen {current}", markup=False
            )
            torch.cuda.empty_cache()


def _short(tile: tiles.Tile) -> str:
    return f"{tile.rows}×{tile.block}+{tile.extra}×{tile.depth} w{tile.warps} s{tile.stages}"


if __name__ == "__main__":
    main()
