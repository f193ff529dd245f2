"""Qwen3-TTS at 12.5 frames a second: CustomVoice, VoiceDesign and Base, of any size."""
