# SPDX-License-Identifier: Apache-2.0
"""A package, so that its conftest is not taken for that of all tests, which others import by name."""
