# SPDX-License-Identifier: Apache-2.0
"""`polyvox serve` with random weights at the published sizes, for load tests without a checkpoint.

    python benchmarks/random_server.py --size 1.7B --frames 56 --tokens 30

Every utterance has exactly --frames frames. The settings are the defaults of `polyvox serve`, unless an option or a
POLYVOX_ environment variable sets another value. It is ready when /readyz returns 200.
"""

import argparse
import socket
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # all processes of the server import this module
    from polyvox.engine.interface import InProcessEngine
    from polyvox.server.settings import Settings


def build(settings: "Settings", size: str, frames: int, tokens: int) -> "InProcessEngine":
    """Runs in the engine's process."""
    from polyvox import progress
    from polyvox.server.engine_builder import set_up_engine_process

    set_up_engine_process(settings)
    from polyvox.engine.engine import LocalEngine
    from polyvox.models.registry import random_model
    from polyvox.tts import load_options

    progress.report("load", 0, 1)
    options = load_options(
        settings.device, settings.dtype, settings.vocoder_device, settings.kv_dtype, settings.weight_dtype
    )
    model = random_model(size, options, tokens, frames)
    return LocalEngine(model, settings.engine_config())


def main() -> None:
    from polyvox.cli.serve import serve_with_engine_processes
    from polyvox.server.logs import set_up_logs
    from polyvox.server.settings import BACKLOG
    from polyvox.server.settings_sources import load_settings

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1.7B", choices=["0.6B", "1.7B"])
    parser.add_argument("--frames", type=int, default=56, help="per utterance")
    parser.add_argument("--tokens", type=int, default=30, help="per text")
    parser.add_argument("--max-streams", type=int)
    parser.add_argument("--context", type=int)
    parser.add_argument("--workers")
    parser.add_argument("--port", type=int)
    given = parser.parse_args()
    flags = {name: getattr(given, name) for name in ("port", "workers", "max_streams", "context")}
    settings = load_settings({name: value for name, value in flags.items() if value is not None})
    set_up_logs(settings)
    make = partial(build, settings, given.size, given.frames, given.tokens)
    with socket.create_server((settings.host, settings.port), backlog=BACKLOG) as listener:
        serve_with_engine_processes(settings, listener, [make])


if __name__ == "__main__":
    main()
