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
    known = [part.transpose(1, 2).flatten(0, 1) for part in both.known]
    phonemes = torch.arange(10).view(2, 5)
    rows = torch.stack([phonemes[row].repeat_interleave(both.durations[row]) for row in range(2)])
    starts, voices = torch.tensor([3, 3]), torch.tensor([0, 1])
    advance, loudness = teacher.prosody(known, rows, styles, starts, voices)
    assert loudness.shape == (2, 26)
    sound = teacher.sound(known, rows, styles, starts, voices, advance)
    assert sound.shape == (2, 26 * TEACHER_UNIT)
    for row in range(2):
        one = slice(row, row + 1)
        alone = teacher.time(texts[one], styles[one])
        assert torch.equal(alone.durations[0], both.durations[row])
        given = [part[0].t() for part in alone.known], rows[one] - 5 * row, styles[one], starts[one], voices[one]
        steps, levels = teacher.prosody(*given)
        assert torch.equal(steps[0], advance[row])
        assert torch.equal(levels[0], loudness[row])
        assert torch.equal(teacher.sound(*given, steps)[0], sound[row])
    assert not sound[0, : 8 * TEACHER_UNIT].any()
    loudest = sound.abs().amax(1)
    assert loudest[1] == pytest.approx(float(loudest[0]) / 2, rel=0.01)


def test_durations_and_prosody_need_only_the_first_weights_file(teacher: Teacher, tmp_path: Path) -> None:
    (tmp_path / "teacher/weights-1.npz").unlink()
    timing = Teacher(tmp_path / "teacher", torch.device("cpu"), sound=False)
    text, style = torch.tensor([[LETTERS, FULL_STOP]]), torch.ones(1, STYLES)
    made, wanted = timing.time(text, style), teacher.time(text, style)
    assert made.durations.tolist() == [[8, 4, 1, 8]]
    rows = torch.arange(4).repeat_interleave(made.durations[0])[None]
    prosodies = [
        one.prosody([part[0].t() for part in known], rows, style, torch.tensor([3]), torch.tensor([0]))
        for one, known in ((timing, made.known), (teacher, wanted.known))
    ]
    assert all(map(torch.equal, *prosodies))


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
