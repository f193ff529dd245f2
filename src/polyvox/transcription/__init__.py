# SPDX-License-Identifier: Apache-2.0
"""Speech to text by another server."""
