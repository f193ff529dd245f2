# SPDX-License-Identifier: Apache-2.0
"""`polyvox serve` with a simulated device: everything but the model's calls is real.

    python -m soak.simulated_server serve --model CHECKPOINT --workers 2

Every process of the server imports this module, so it does not import torch.
"""

from polyvox.cli.main import main as run_command
from polyvox.engine.interface import InProcessEngine
from polyvox.server import engine_builder
from polyvox.server.settings import Settings


def build_engine(settings: Settings, replica: int | None = None, gpu: str | None = None) -> InProcessEngine:
    """Replaces `engine_builder.build_engine`; runs in the engine's process."""
    engine_builder.set_up_engine_process(settings, replica, gpu)
    from soak import simulated_model

    return simulated_model.build_engine(settings)


def main() -> None:
    from soak import simulated_server

    engine_builder.build_engine = simulated_server.build_engine  # pickled by its name, which __main__ would not be
    run_command()


if __name__ == "__main__":
    main()
