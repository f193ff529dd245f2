# SPDX-License-Identifier: Apache-2.0
"""`polyvox serve` with a simulated device: everything but the model's calls is real.

    python -m soak.simulated_server serve --model CHECKPOINT --workers 2

Every process of the server imports this module, so it does not import torch.
"""

from dataclasses import dataclass

from polyvox.cli.main import main as run_command
from polyvox.engine.interface import InProcessEngine
from polyvox.server import workers
from polyvox.server.settings import Settings


@dataclass(frozen=True, slots=True)
class SimulatedEngineBuilder:
    """Replaces `workers.EngineBuilder`."""

    settings: Settings

    def __call__(self) -> InProcessEngine:
        """Runs in the engine's process."""
        from soak.simulated_model import build_engine

        return build_engine(self.settings)


def main() -> None:
    from soak.simulated_server import SimulatedEngineBuilder as Builder  # pickled by its name, which __main__ is not

    assert hasattr(workers, "EngineBuilder")
    workers.EngineBuilder = Builder  # type: ignore[assignment, misc]
    run_command()


if __name__ == "__main__":
    main()
