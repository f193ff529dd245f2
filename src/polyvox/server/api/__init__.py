# SPDX-License-Identifier: Apache-2.0
"""The endpoints, one module per API."""
