# SPDX-License-Identifier: Apache-2.0
"""An engine in its own process, its supervisor, and its clients in server processes."""
