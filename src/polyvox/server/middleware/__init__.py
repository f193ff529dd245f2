# SPDX-License-Identifier: Apache-2.0
"""Authentication, concurrency limits, HEAD requests and connection timeouts."""
