# SPDX-License-Identifier: Apache-2.0
"""A talker of the embedded voice's size with random weights, for tests of its training."""

import torch

from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.talker import Talker
from training.layout import SAMPLING, initialise, voice_files
from training.talker import scale_for_depth


def random_talker() -> Talker:
    """As a training begins with it; the same at each call."""
    torch.manual_seed(0)
    talker = Talker(parse_config(voice_files(SAMPLING)))
    initialise(talker)
    scale_for_depth(talker)
    return talker
