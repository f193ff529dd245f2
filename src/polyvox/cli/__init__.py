# SPDX-License-Identifier: Apache-2.0
"""The commands that are more than a call of the engine."""
