# SPDX-License-Identifier: Apache-2.0
"""Text rules of each language."""
