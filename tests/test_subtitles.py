# SPDX-License-Identifier: Apache-2.0
from polyvox.alignment import WordTime
from polyvox.subtitles import format_subtitles, word_cues


def test_cues_have_their_times_in_both_formats() -> None:
    cues = [(0, 24_000, "One."), (36_000, 24_000 * 3661 + 24, "Two.")]
    assert format_subtitles(cues, 24_000, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,000\nOne.\n\n2\n00:00:01,500 --> 01:01:01,001\nTwo.\n"
    )
    assert format_subtitles(cues, 24_000, "vtt").startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nOne.\n")


def test_words_are_cues_in_srt_and_times_within_the_text_in_vtt() -> None:
    words = [WordTime("One,", 0.02, 0.4, 0, 4), WordTime("<two>", 0.5, 0.9, 5, 10)]
    cue = (0, 24_000, "One, <two>")
    assert word_cues(cue, words, 24_000, "srt") == [(480, 9600, "One,"), (12_000, 21_600, "<two>")]
    assert word_cues(cue, words, 24_000, "vtt") == [(0, 24_000, "<00:00:00.020>One, <00:00:00.500>&lt;two&gt;")]
    assert word_cues(cue, [], 24_000, "vtt") == [cue]
