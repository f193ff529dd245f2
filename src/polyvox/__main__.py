# SPDX-License-Identifier: Apache-2.0
"""python -m polyvox"""

from polyvox.cli.main import main

main()
