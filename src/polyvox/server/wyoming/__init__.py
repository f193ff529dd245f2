# SPDX-License-Identifier: Apache-2.0
"""The Wyoming protocol, with which Home Assistant speaks."""
