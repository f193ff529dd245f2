# SPDX-License-Identifier: Apache-2.0
"""The simulated server with the step times of a GPU that runs some 200 streams in real time.

python -m soak.simulated_gpu_server serve --model CHECKPOINT
"""

from polyvox.cli.main import main as run_command
from polyvox.engine.interface import InProcessEngine
from polyvox.server import engine_builder
from polyvox.server.settings import Settings
from soak import simulated_server

STEP, STEP_STREAM = 0.004, 0.0003  # seconds of a frame step, and of each stream in it
CODEC, CODEC_FRAME = 0.001, 0.00005


def build_engine(settings: Settings, replica: int | None = None, gpu: str | None = None) -> InProcessEngine:
    """Replaces `engine_builder.build_engine`; runs in the engine's process."""
    from soak import simulated_model

    simulated_model.STEP, simulated_model.STEP_STREAM = STEP, STEP_STREAM
    simulated_model.CODEC, simulated_model.CODEC_FRAME = CODEC, CODEC_FRAME
    return simulated_server.build_engine(settings, replica, gpu)


def main() -> None:
    from soak import simulated_gpu_server

    engine_builder.build_engine = simulated_gpu_server.build_engine  # pickled by its name, which __main__ would not be
    run_command()


if __name__ == "__main__":
    main()
