# SPDX-License-Identifier: Apache-2.0
"""The benchmark client alone: its delay per packet from a scripted server, at the loads of a large GPU.

    python benchmarks/client.py [--concurrency 1,16,64,128,256] [--rate 10,20,40,60] [--seconds 10]

The server, in its own process, sends each request 4 s of audio, 80 ms every 80 ms, and writes the send time into each
packet. Both processes share a clock. The delay is from the server's write to the client's timestamp, minus that of the
fastest packet of the run: what the client and the kernel below it add to the measurements of a server.
"""

import argparse
import asyncio
import multiprocessing
import os
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from multiprocessing.connection import Connection

from polyvox.bench.clients import ServerTarget
from polyvox.bench.load import Load
from polyvox.bench.load_generator import run_on_server
from polyvox.bench.metrics import RequestTrace
from polyvox.bench.prompts import prompts
from polyvox.bench.summary import distribution, summarise

FRAME, FRAMES, RATE = 0.08, 50, 24_000
SAMPLES = round(FRAME * RATE)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: audio/pcm;rate=24000\r\ntransfer-encoding: chunked\r\n\r\n"
TONE = struct.pack("<2h", 8000, -8000) * (SAMPLES // 2 - 2)  # the rest of a packet after the 8-byte send time


async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serves the requests of one connection in sequence."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
            started = time.monotonic()
            writer.write(HEAD)
            for number in range(1, FRAMES + 1):
                await asyncio.sleep(started + number * FRAME - time.monotonic())
                audio = struct.pack("<q", time.monotonic_ns()) + TONE
                writer.write(b"%x\r\n%b\r\n" % (len(audio), audio))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the client has disconnected
    finally:
        writer.close()


def serve(pipe: Connection) -> None:
    async def forever() -> None:
        server = await asyncio.start_server(respond, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(forever())


@contextmanager
def scripted_server() -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    parent, child = context.Pipe()
    process = context.Process(target=serve, args=(child,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{parent.recv()}"
    finally:
        process.terminate()
        process.join()


def delays(traces: list[RequestTrace]) -> list[float]:
    """Delay of each packet in seconds, from its send time to its timestamp, minus the shortest of all."""
    found = []
    for trace in traces:
        received, arrival = list(accumulate(count for _, count in trace.arrivals)), 0
        for number in range(trace.samples // SAMPLES):
            while received[arrival] < (number + 1) * SAMPLES:
                arrival += 1
            (sent,) = struct.unpack_from("<q", trace.pcm or b"", number * SAMPLES * 2)
            found.append(trace.arrivals[arrival][0] - sent / 1e9)
    shortest = min(found)
    return [value - shortest for value in found]


def row(address: str, load: Load, cores: int) -> str:
    traces, lag = run_on_server(ServerTarget(address), load, prompts(), load.num_processes(cores))
    summary, delay = summarise(traces), distribution(delays([trace for trace in traces if trace.pcm]))
    if delay is None or lag.loop is None or summary.late is None:
        raise SystemExit(f"{load.label}: no packet was measured: {summary.errors}")
    shown = [load.label, str(lag.processes), str(summary.peak), str(summary.succeeded), str(delay.count)]
    shown.append(" / ".join(f"{value * 1e3:.1f}" for value in (delay.p50, delay.p99, delay.max)))
    shown.append(" / ".join(f"{value * 1e3:.1f}" for value in (lag.loop.p50, lag.loop.p99)))
    shown += [f"{summary.late.p99 * 1e3:.1f}", f"{lag.cpu:.0%}", str(summary.failed + summary.dropped)]
    return f"| {' | '.join(shown)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", default="1,16,64,128,256")
    parser.add_argument("--rate", default="10,20,40,60")
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    warmup, cores = FRAMES * FRAME, os.cpu_count() or 1
    write = sys.stdout.write
    write("| load | processes | peak in flight | requests | packets | packet delay p50 / p99 / max, ms |")
    write(
        " event loop lag p50 / p99, ms | request start delay p99, ms | CPU of a core | failed |\n" + "|---" * 10 + "|\n"
    )
    with scripted_server() as address:
        for mode, levels in (("closed", arguments.concurrency), ("open", arguments.rate)):
            for level in (float(part) for part in levels.split(",") if part):
                ramp = warmup if mode == "closed" else 0.0
                load = Load(mode, level, arguments.seconds, warmup, ramp=ramp, record=1 << 30)  # type: ignore[arg-type]
                write(row(address, load, cores) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
