"""The benchmark: what listeners of a speech server hear, and when. Definitions are in docs/benchmark.md."""
