# SPDX-License-Identifier: Apache-2.0
"""The teacher-forced talker reads the frames before the predicted one, and nothing after."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from polyvox.tts import EMBEDDED_VOICE
from toy_talker import random_talker
from training.layout import NUM_CODEBOOKS
from training.reconstruction import TeacherForcedTalker

FRAMES, CHANGED = 20, 8
TEXT = "We ran out of milk."


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> TeacherForcedTalker:
    folder: Path = tmp_path_factory.mktemp("talker")
    talker = random_talker()
    save_file(
        {name: value.contiguous() for name, value in talker.state_dict().items()}, folder / "talker-0.safetensors"
    )
    return TeacherForcedTalker(folder, EMBEDDED_VOICE)


@torch.no_grad()
@pytest.mark.parametrize("books", [slice(1), slice(1, None)], ids=["code 0", "the others"])
def test_a_predicted_frame_depends_only_on_the_frames_before_it(prompted: TeacherForcedTalker, books: slice) -> None:
    codes = torch.randint(512, (FRAMES, NUM_CODEBOOKS), generator=torch.Generator().manual_seed(1))
    other = codes.clone()
    other[CHANGED, books] = (codes[CHANGED, books] + 1) % 512
    made, changed = prompted(TEXT, 0, codes), prompted(TEXT, 0, other)
    assert torch.equal(made["code 2 by talker"][:, :2], codes[:, :2])
    assert not torch.equal(made["code 2 by talker"][:, 2], codes[:, 2])
    for name, by_talker in made.items():
        assert by_talker.shape == codes.shape
        assert torch.equal(by_talker[:CHANGED], changed[name][:CHANGED])
    # The talker does not read the predicted frame itself, only the frames before it.
    mine, others = made["all by talker"], changed["all by talker"]
    assert torch.equal(mine[CHANGED], others[CHANGED])
    assert not torch.equal(mine[CHANGED + 1 :], others[CHANGED + 1 :])
