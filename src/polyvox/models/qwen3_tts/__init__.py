# SPDX-License-Identifier: Apache-2.0
"""Qwen3-TTS at 12.5 frames per second: CustomVoice, VoiceDesign and Base, of any size."""
