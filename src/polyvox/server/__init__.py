# SPDX-License-Identifier: Apache-2.0
"""The HTTP and WebSocket server."""
