# SPDX-License-Identifier: Apache-2.0
"""The genders of the built-in voices of published checkpoints and of the embedded voice, which checkpoints lack."""

from polyvox.models.info import Gender

VOICE_GENDERS: dict[str, Gender] = {
    # the embedded voice
    "heart": "female",
    "michael": "male",
    # Qwen3-TTS CustomVoice
    "vivian": "female",
    "serena": "female",
    "ono_anna": "female",
    "sohee": "female",
    "uncle_fu": "male",
    "dylan": "male",
    "eric": "male",
    "ryan": "male",
    "aiden": "male",
}
