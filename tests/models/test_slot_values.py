# SPDX-License-Identifier: Apache-2.0
"""The values that the host writes to slots."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyvox.models.slot_values import TEXT, TEXT_END, SlotValues

RING = 8


@given(start=st.integers(0, 3 * RING), num_ids=st.integers(1, RING))
def test_the_id_of_a_frame_is_in_the_column_of_its_number_in_a_ring(start: int, num_ids: int) -> None:
    values, ids = SlotValues(2, RING), list(range(100, 100 + num_ids))
    values.write_text(1, start, ids)
    (row,), num_new = values.changed()
    expected = np.zeros(RING, np.int64)
    for frame, id in enumerate(ids, start):
        expected[frame % RING] = id
    np.testing.assert_array_equal(row[TEXT:], expected)
    assert row[TEXT_END] == start + num_ids
    assert num_new == 0
