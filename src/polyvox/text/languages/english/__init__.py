# SPDX-License-Identifier: Apache-2.0
"""English text rules."""
