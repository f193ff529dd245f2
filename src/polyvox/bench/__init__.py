# SPDX-License-Identifier: Apache-2.0
"""Benchmark of speech servers and of the engine. The metrics are defined in docs/benchmark.md."""
