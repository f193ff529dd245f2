# SPDX-License-Identifier: Apache-2.0
"""The simulated cluster of benchmarks/cluster.py, at a small size."""

from benchmarks.cluster import run


def test_the_death_of_a_node_cuts_its_streams_only() -> None:
    before, after = run(3, 300, "capacity", num_slow=1, node=1, seconds=2.0, seed=1)
    assert (before.lost, before.rejected, after.rejected) == (0, 0, 0)
    assert 0 < after.lost < 300
    assert before.requests > 10
    assert after.requests > 10
    assert 0 < after.first_audio[0] <= after.first_audio[1] < 1
