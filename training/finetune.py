# SPDX-License-Identifier: Apache-2.0
"""Train the whole decoder on codes, after the vocoder's training.

    python -m training.finetune --work DIR --codec DIR --minutes 8 [--run-minutes 7]

Half of each batch has features of codes, half those of the teacher's audio, which keep the convolutional layers a
vocoder. Codes do not determine the audio, and a spectral distance rewards the mean of all audio that they may stand
for, which is blurred. So segments from codes have a smaller share of the spectral gradient than the others. The codes
are the encoder's; those of the talker cost little (docs/notes/2026-11-voice.md).

--codec holds codes.npz, the decoder, which is replaced, and the state of the vocoder, whose discriminators continue; it
receives finetune.jsonl and finetune-state-*.safetensors, from which a later run resumes.
"""

import argparse

import torch
from torch import nn

from polyvox import kernels
from training.codec import trained_parameters
from training.features import COLUMNS
from training.files import load_parts
from training.vocoder import SKIPPED, START_ROWS, STATE, VocoderTraining, add_arguments, set_up

PEAK_RATE = 2e-4
FEATURES = 5.0  # weight of the distance of features from codes
CODED_SPECTRAL_FACTOR = 0.3  # of the spectral gradient of segments from codes


class DecoderFinetuning(VocoderTraining):
    """The vocoder's training, on features of codes as well; the layers that make these features are trained, too."""

    name, state_name = "finetune", "finetune-state"
    adversarial_rate = PEAK_RATE
    first_part = 1.0
    seen = ("start", "features")

    def trained(self) -> list[nn.Parameter]:
        return trained_parameters(self.decoder)

    def step(self, adversarial: bool = True) -> None:
        starts = self.segments.draw(self.batch, START_ROWS)
        # Every second row, so that starts of utterances are from codes and from features.
        coded, true = self.coded_features(starts[::2]), self.true_features(starts)
        distance = self.acoustic.loss(coded[..., SKIPPED * COLUMNS :], true[::2, :, SKIPPED * COLUMNS :])
        x = self.flatten(true)
        x[::2] = coded
        factors = torch.ones(self.batch, device=self.device)
        factors[::2] = CODED_SPECTRAL_FACTOR
        self.update(starts, x, adversarial, [FEATURES * distance], factors)
        self.distances["features"].copy_(distance.detach())

    def start(self) -> None:
        """Continue from the saved state, or with the discriminators of the vocoder's training, if there are any."""
        super().start()
        vocoder = load_parts(self.arguments.codec, STATE)
        if not self.seconds and vocoder:
            self.resume(vocoder, ("critic",))
            self.seconds = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, minutes=8.0)
    parser.set_defaults(spectral_steps=0)
    arguments = parser.parse_args()
    device = set_up()
    with kernels.disabled():
        training = DecoderFinetuning(arguments, device)
        training.start()
        training.train(arguments.minutes, arguments.run_minutes)


if __name__ == "__main__":
    main()
