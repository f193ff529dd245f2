# SPDX-License-Identifier: Apache-2.0
from polyvox.subtitles import format_subtitles


def test_cues_have_their_times_in_both_formats() -> None:
    cues = [(0, 24_000, "One."), (36_000, 24_000 * 3661 + 24, "Two.")]
    assert format_subtitles(cues, 24_000, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,000\nOne.\n\n2\n00:00:01,500 --> 01:01:01,001\nTwo.\n"
    )
    assert format_subtitles(cues, 24_000, "vtt").startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nOne.\n")
