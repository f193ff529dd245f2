"""Polyvox: a streaming speech engine for Qwen3-TTS checkpoints."""

__version__ = "0.1.0"
