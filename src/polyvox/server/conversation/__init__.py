# SPDX-License-Identifier: Apache-2.0
"""Chat completions whose answers are spoken while the LLM writes them."""
