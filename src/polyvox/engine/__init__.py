# SPDX-License-Identifier: Apache-2.0
"""The engine: continuous batching, scheduling and admission control for streams of speech."""
