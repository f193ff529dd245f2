# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Loaded
from polyvox.errors import InvalidRequest
from polyvox.models.qwen3_tts.config import parse_config
from polyvox.models.qwen3_tts.prompt import Reference, build_prompt, languages
from polyvox.models.qwen3_tts.synthetic import tiny_files
from polyvox.models.request import Layout
from polyvox.models.talker_prompt import NO_CODE, Prompt

CUSTOM = parse_config(tiny_files("custom_voice"))
BASE = parse_config(tiny_files("base"))
ROLE = [1, 2, 3]
TEXT = st.lists(st.integers(10, 99), min_size=1, max_size=30)
LAYOUT = st.sampled_from(["whole", "streaming"])


@given(TEXT, LAYOUT, st.booleans(), st.booleans(), TEXT | st.just([]))
def test_the_number_of_rows_follows_from_the_layout(
    text: list[int], layout: Layout, named: bool, auto: bool, instructions: list[int]
) -> None:
    speaker = "serena" if named else None
    prompt = build_prompt(CUSTOM, ROLE, text, layout, "auto" if auto else "english", speaker, instructions=instructions)
    head = 9 - auto - (not named) + len(instructions)
    assert len(prompt) == head + (len(text) + 2 if layout == "whole" else 1)
    assert_nothing_is_lost(prompt, [*instructions, *ROLE, *text])


@given(TEXT, TEXT, st.integers(1, 40), LAYOUT)
def test_the_number_of_rows_of_a_cloned_voice_follows_from_the_layout(
    text: list[int], transcript: list[int], frames: int, layout: Layout
) -> None:
    prompt = build_prompt(BASE, ROLE, text, layout, "english", None, True, Reference(transcript, frames))
    spoken = len(transcript) + len(text) + 1
    assert len(prompt) == 9 + frames + 1 + (spoken if layout == "whole" else 0)
    assert prompt.vector_row == 7
    assert prompt.frames_row == len(prompt) - frames
    assert prompt.codec[prompt.frames_row - 1] == BASE.talker.bos_id
    assert set(prompt.codec[prompt.frames_row :]) == {NO_CODE}
    assert_nothing_is_lost(prompt, [*ROLE, *transcript, *text])


def assert_nothing_is_lost(prompt: Prompt, expected: list[int]) -> None:
    """Every text id is read once and in order, by the prefill or by a frame, and the end of text once."""
    control = {CUSTOM.tts_pad_id, CUSTOM.tts_bos_id}
    read = [token for token in (*prompt.text, *prompt.trailing) if token not in control]
    assert read == [*expected, CUSTOM.tts_eos_id]
    assert len(prompt.text) == len(prompt.codec)


@pytest.mark.parametrize(
    ("field", "arguments", "valid"),
    [
        ("language", {"language": "klingon"}, "auto, english, chinese, german"),
        ("voice", {"speaker": "nobody"}, "serena, eric, vivian"),
        ("language", {"language": "sichuan_dialect"}, "auto, english, chinese, german"),
    ],
)
def test_an_unknown_name_is_rejected_with_the_valid_ones(field: str, arguments: dict[str, str], valid: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build_prompt(CUSTOM, ROLE, [10], "whole", **arguments)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert f"must be one of {valid} (got '" in str(caught.value)


def test_dialects_are_not_listed_as_languages(loaded: Loaded) -> None:
    assert languages(CUSTOM) == ["auto", "english", "chinese", "german"]
    assert loaded("custom_voice", "float32").languages == languages(CUSTOM)
