# SPDX-License-Identifier: Apache-2.0
"""Layers that model families share."""
