# SPDX-License-Identifier: Apache-2.0
"""Model families behind one protocol; each family has its own package."""
