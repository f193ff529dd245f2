# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Realtime API: conversations over a WebSocket, with text or audio in and out."""
