"""The codec's kernels on a GPU: are they right, how long do they take, which tiles are best.

    python benchmarks/codec_kernels.py                  errors in dB, calls by batch and frames, layers one by one
    python benchmarks/codec_kernels.py --parts tune     the tiles of kernels/tiles.py, from 64 streams on;
        --batches 512 --only conv1                      at one size, of layers with this in their names: some 3 s a tile

Random weights at the published size, CUDA graph replays, medians in milliseconds. A part that fails says so in a line,
and the others go on.
"""

import argparse
import copy
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch
from rich.console import Console
from torch import Tensor

from polyvox import kernels
from polyvox.kernels import conv, tiles
from polyvox.models.qwen3_tts.codec import CodecDecoder, Stateful
from polyvox.models.qwen3_tts.synthetic import published_files, random_model

DEVICE = torch.device("cuda")
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
CHUNK = 4  # frames a call that layers and tiles are timed at
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
    parser.add_argument("--only", default="", help="of tune")
    parser.add_argument("--dtype", default="float16", choices=HALVES)
    options = parser.parse_args()
    batches, frames = ([int(n) for n in text.split(",")] for text in (options.batches, options.frames))
    torch.backends.cudnn.allow_tf32 = True
    with torch.inference_mode():
        codec = random_model(published_files("0.6B", "custom_voice"), DEVICE, torch.float32).codec
        half = narrowed(codec, HALVES[options.dtype])
        parts: dict[str, Callable[[], None]] = {
            "errors": lambda: show_errors(codec),
            "calls": lambda: show_calls(codec, half, batches, frames),
            "layers": lambda: show_layers(half),
            "tune": lambda: tune(half, [batch for batch in batches if batch >= 64], options.only),
        }
        for name in options.parts.split(","):
            console.rule(f"{name} · {torch.cuda.get_device_name()} · {options.dtype}")
            attempt(name, parts[name])


def attempt(name: str, part: Callable[[], object]) -> None:
    try:
        part()
    except Exception as error:  # whatever a compiler or driver says, the next part may still work
        console.print(f"{name} failed: {type(error).__name__}: {str(error).strip().splitlines()[-1:]}", markup=False)


def narrowed(codec: CodecDecoder, dtype: torch.dtype) -> CodecDecoder:
    other = copy.deepcopy(codec)
    other.narrow(dtype)
    return other


def replay_ms(call: Callable[[], object], repeats: int = 11) -> float:
    """The median time of a call recorded as a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[1:])


def random_codes(codec: CodecDecoder, batch: int, frames: int) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(3)
    shape = (batch, frames, codec.config.quantizers)
    return torch.randint(codec.config.codebook_size, shape, generator=generator, device=DEVICE)


def show_errors(codec: CodecDecoder) -> None:
    """Each way to decode against plain float32 without TF32, over chunks; and whether company changes a bit."""
    codes, sizes = random_codes(codec, 3, 13), [4, 1, 8]

    def decoded(one: CodecDecoder) -> Tensor:
        state, slots = one.initial_state(5), torch.tensor([4, 0, 2], device=DEVICE)
        return torch.cat([one(part, state, slots)[0] for part in codes.split(sizes, dim=1)], dim=1)

    torch.backends.cudnn.allow_tf32 = False
    try:
        with kernels.disabled():
            truth = decoded(codec)
        ways = {"float32": codec} | {name: narrowed(codec, dtype) for name, dtype in HALVES.items()}
        for name, one in ways.items():
            for way in ("kernels", "plain"):

                def part(way: str = way, name: str = name, one: CodecDecoder = one) -> None:
                    if way == "kernels":
                        found = decoded(one)
                    else:
                        with kernels.disabled():
                            found = decoded(one)
                    error = (found - truth).square().mean() / truth.square().mean()
                    console.print(f"{name:9} {way:8} {10 * error.log10().item():7.1f} dB")

                attempt(f"{name} {way}", part)
    finally:
        torch.backends.cudnn.allow_tf32 = True
    half, many = narrowed(codec, torch.float16), random_codes(codec, 64, CHUNK)
    slots = torch.arange(64, device=DEVICE)
    once, _ = half(many, half.initial_state(64), slots)
    order = slots.flip(0)
    other, _ = half(many[order], half.initial_state(64), slots)
    console.print(f"in another row the same bits: {torch.equal(once[order], other)}")


def show_calls(codec: CodecDecoder, half: CodecDecoder, batches: list[int], frames: list[int]) -> None:
    console.print("ms a call, ms a frame; plain: at the same type, then float32 with TF32 as it was")
    for count in frames:
        for batch in batches:

            def part(batch: int = batch, count: int = count) -> None:
                fast = replay_ms(calling(half, batch, count))
                line = f"{batch:4} streams × {count:2} frames  {fast:8.3f}  {fast / count:7.3f} a frame"
                if count == CHUNK and batch in (batches[0], 64, batches[-1]):
                    with kernels.disabled():
                        plain = [replay_ms(calling(one, batch, count), 4) for one in (half, codec)]
                    line += f"   plain {plain[0]:8.3f} {plain[1]:8.3f}"
                console.print(line)

            attempt(f"{batch} × {count}", part)
            torch.cuda.empty_cache()


def calling(codec: CodecDecoder, batch: int, frames: int) -> Callable[[], object]:
    codes, state = random_codes(codec, batch, frames), codec.initial_state(batch)
    slots = torch.arange(batch, device=DEVICE)
    return lambda: codec(codes, state, slots)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of the convolution kernel inside a call."""

    name: str
    taps: conv.PackedConv
    state: Tensor | None
    columns: int  # a frame
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
    """What one call launches, as the codec itself asks for it."""
    state, seen = codec.initial_state(1), []
    names = {id(layer.taps().weight): name for name, layer in codec.named_modules() if dense(layer)}

    def record(x: Tensor, taps: conv.PackedConv, past: Tensor | None, *rest: object) -> tuple[Tensor, Tensor]:
        add, snake, keep = rest[1], rest[2], rest[3]
        launch = Launch(names[id(taps.weight)], taps, past, x.shape[2], add is not None, snake is not None, bool(keep))
        seen.append(launch)
        return conv.causal_conv(x, taps, past, *rest)  # type: ignore[arg-type]

    with patch("polyvox.models.qwen3_tts.codec.causal_conv", record):
        codec(random_codes(codec, 1, 1), state, torch.zeros(1, dtype=torch.int64, device=DEVICE))
    yield from seen


def dense(layer: torch.nn.Module) -> bool:
    """Whether the layer is a convolution over all channels."""
    return isinstance(layer, Stateful) and not getattr(layer.conv, "groups", 1) > 1


def show_layers(half: CodecDecoder) -> None:
    console.print(
        "each convolution with what it remembers, chunks of 4: ms and TFLOP/s at 64, then 512 streams; its tile"
    )
    total = {64: 0.0, 512: 0.0}
    for launch in launches(half):
        line = f"{launch.name:36} {launch.taps.weight.shape[0]:6} × {launch.taps.weight.shape[1]:5}"
        for batch in total:
            try:
                ms = replay_ms(launch.call(batch, CHUNK), 6)
            except Exception as error:  # as in attempt
                line += f"  failed: {type(error).__name__}"
                continue
            total[batch] += ms
            rows = batch * CHUNK * launch.columns
            tile = tiles.choose_tile(rows, launch.taps.weight.shape[1], launch.taps.inputs, launch.taps.weight.dtype)
            line += f"  {ms:7.3f} {launch.flops(batch, CHUNK) / ms / 1e9:5.0f}  {tile.rows}×{tile.columns}×{tile.depth}"
        console.print(line, markup=False)
        torch.cuda.empty_cache()
    for batch, ms in total.items():
        rest = replay_ms(calling(half, batch, CHUNK)) - ms
        console.print(f"{batch} streams: convolutions {ms:.3f} ms, all else {rest:.3f} ms")


def tune(half: CodecDecoder, batches: list[int], only: str) -> None:
    """Each kind of product with each tile: the best three, and the one that is chosen."""
    done = set()
    for launch in launches(half):
        weight = launch.taps.weight
        kind = (weight.shape, launch.add, launch.keep)
        if kind in done or only not in launch.name:
            continue
        done.add(kind)
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
                        times[fitted] = replay_ms(launch.call(batch, CHUNK), 4)
                    except Exception as error:  # as in attempt
                        console.print(f"{fitted}: {type(error).__name__}", markup=False)
            best = sorted(times, key=times.__getitem__)[:3]
            shown = "   ".join(f"{_short(tile)} {times[tile]:.3f}" for tile in best)
            ours = f"{_short(chosen)} {times.get(chosen, float('nan')):.3f}"
            console.print(f"{launch.name[-28:]:28} {batch:3} × {rows // batch:5} {shown}   chosen {ours}", markup=False)
            torch.cuda.empty_cache()


def _short(tile: tiles.Tile) -> str:
    return f"{tile.rows}×{tile.block}+{tile.extra}×{tile.depth} w{tile.warps} s{tile.stages}"


if __name__ == "__main__":
    main()
