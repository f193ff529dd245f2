# SPDX-License-Identifier: Apache-2.0
"""The batched teacher gives the same durations and audio as for a single text."""

from pathlib import Path

import pytest
import torch

from toy_teacher import FULL_STOP, LETTERS, write_teacher
from training.corpus import STYLES
from training.operators import OPERATORS
from training.teacher import Node, Teacher, needed, norms_in_one
from training.units import TEACHER_UNIT


@pytest.fixture
def teacher(tmp_path: Path) -> Teacher:
    write_teacher(tmp_path / "teacher")
    return Teacher(tmp_path / "teacher", torch.device("cpu"))


def test_a_text_in_a_batch_equals_the_text_alone(teacher: Teacher) -> None:
    texts = torch.tensor([[LETTERS, LETTERS + 5, FULL_STOP], [LETTERS + 1, LETTERS + 4, FULL_STOP]])
    styles = torch.tensor([1.0, 0.5])[:, None].expand(-1, STYLES)
    both = teacher.time(texts, styles)
    assert both.durations.tolist() == [[8, 4, 5, 1, 8], [8, 5, 4, 1, 8]]
    rows = [tuple(part[row] for part in both.known) for row in range(2)]
    starts, voices = torch.tensor([3, 3]), torch.tensor([0, 1])
    sound, advance = teacher.sound(list(both.durations), rows, styles, starts, voices)
    assert sound.shape == (2, 26 * TEACHER_UNIT)
    for row in range(2):
        alone = teacher.time(texts[row : row + 1], styles[row : row + 1])
        assert torch.equal(alone.durations[0], both.durations[row])
        known = [tuple(part[0] for part in alone.known)]
        one = slice(row, row + 1)
        again, steps = teacher.sound([alone.durations[0]], known, styles[one], starts[one], voices[one])
        assert torch.equal(again[0], sound[row])
        assert torch.equal(steps[0], advance[row])
    assert not sound[0, : 8 * TEACHER_UNIT].any()
    loudest = sound.abs().amax(1)
    assert loudest[1] == pytest.approx(float(loudest[0]) / 2, rel=0.01)


def test_durations_need_only_the_first_weights_file(tmp_path: Path) -> None:
    write_teacher(tmp_path / "teacher")
    (tmp_path / "teacher/weights-1.npz").unlink()
    teacher = Teacher(tmp_path / "teacher", torch.device("cpu"), sound=False)
    made = teacher.time(torch.tensor([[LETTERS, FULL_STOP]]), torch.ones(1, STYLES))
    assert made.durations.tolist() == [[8, 4, 1, 8]]
    assert made.known == ()


def test_given_values_are_not_computed_again() -> None:
    chain = [Node("Exp", ["a"], ["b"], {}), Node("Exp", ["b"], ["c"], {}), Node("Exp", ["c"], ["d"], {})]
    assert needed(chain, ["d"]) == chain
    assert needed(chain, ["d"], ["b"]) == chain[1:]
    assert needed(chain, ["b"]) == chain[:1]


def test_an_instance_norm_is_fused_into_one_node() -> None:
    """The graph computes (x - mean) / sqrt(variance + epsilon)."""
    nodes = [
        Node("ReduceMean", ["x", "last"], ["mean"], {}),
        Node("Sub", ["x", "mean"], ["centred"], {}),
        Node("Mul", ["centred", "centred"], ["squares"], {}),
        Node("ReduceMean", ["squares", "last"], ["variance"], {}),
        Node("Add", ["variance", "least"], ["wide"], {}),
        Node("Sqrt", ["wide"], ["deviation"], {}),
        Node("Div", ["centred", "deviation"], ["out"], {}),
        Node("Div", ["out", "mean"], ["other"], {}),
    ]
    *_, norm, other = norms_in_one(nodes)
    assert norm == Node("Normed", ["x", "least"], ["out"], {})
    assert other == nodes[-1]
    x = torch.randn(2, 3, 50)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(OPERATORS["Normed"]({}, x, torch.tensor(1e-5)), expected, atol=1e-5, rtol=1e-5)
