# SPDX-License-Identifier: Apache-2.0
"""Language models whose answers are spoken, in other processes or in this one."""
