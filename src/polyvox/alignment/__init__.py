# SPDX-License-Identifier: Apache-2.0
"""Estimates the times of words and characters in synthesised speech."""

from polyvox.alignment.timeline import SegmentTime, SpeechTimeline, TimedText, Times
from polyvox.alignment.words import WordTime

__all__ = ["SegmentTime", "SpeechTimeline", "TimedText", "Times", "WordTime"]
