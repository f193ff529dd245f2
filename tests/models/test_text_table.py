# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch

from conftest import DEVICE, Loaded
from polyvox.models.layers.text_table import TextTable
from polyvox.models.protocol import PromptRows


@pytest.mark.parametrize(("checkpoint", "dtype"), [("custom_voice", "float64"), ("omni-plain", "float32")])
def test_a_row_is_the_projection_of_its_embedding(loaded: Loaded, checkpoint: str, dtype: str) -> None:
    talker = loaded(checkpoint, dtype).model.generator.talker
    table, ids = TextTable(talker), np.array([5, 3, 3, 40])
    table.require(ids)
    with torch.inference_mode():
        expected = talker.text_projection(talker.text_table[ids].to(DEVICE))
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    torch.testing.assert_close(table.rows[ids], expected, atol=tolerance, rtol=tolerance)
    assert table.nbytes == talker.text_table.shape[0] * talker.config.hidden_size * table.rows.element_size()


def test_a_row_has_the_same_bits_whichever_rows_are_computed_with_it(loaded: Loaded) -> None:
    talker = loaded("custom_voice", "float32").model.generator.talker
    ids = np.arange(60)
    together, one_by_one, reversed_order = (TextTable(talker) for _ in range(3))
    together.require(ids)
    for id in ids:
        one_by_one.require(np.array([id]))
    for start in range(50, -10, -10):
        reversed_order.require(ids[start : start + 10][::-1])
    assert torch.equal(together.rows[ids], one_by_one.rows[ids])
    assert torch.equal(together.rows[ids], reversed_order.rows[ids])


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU computes all rows at load")
def test_a_row_is_computed_once(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    talker = loaded("custom_voice", "float32").model.generator.talker
    table = TextTable(talker)
    table.require(np.array([7, 8]))
    monkeypatch.setattr(talker, "text_rows", lambda _: pytest.fail("computed again"))
    table.require(np.array([8, 7, 7]))
    with pytest.raises(IndexError):
        table.require(np.array([len(table.rows)]))


def test_a_part_of_a_prompt_has_the_given_rows_of_its_own_rows() -> None:
    ids = np.arange(14).reshape(2, 7)
    prompt = PromptRows(ids, torch.tensor([[1.0], [2.0], [3.0]]), np.array([2, 4, 5]))
    parts = [prompt[0:2], prompt[2:5], prompt[5:][:2]]
    assert [part.ids.tolist() for part in parts] == [ids[:, :2].tolist(), ids[:, 2:5].tolist(), ids[:, 5:].tolist()]
    assert [part.given_at.tolist() for part in parts] == [[], [0, 2], [0]]
    assert [None if part.given is None else part.given[:, 0].tolist() for part in parts] == [None, [1, 2], [3]]
