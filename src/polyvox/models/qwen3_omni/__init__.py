# SPDX-License-Identifier: Apache-2.0
"""The speech side of Qwen3-Omni: talker, code predictor and code2wav."""
