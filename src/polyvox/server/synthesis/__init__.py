# SPDX-License-Identifier: Apache-2.0
"""From a parsed request to encoded audio: segments, engine streams, output encoding."""
