# SPDX-License-Identifier: Apache-2.0
"""python -m polyvox"""

import sys

INTERRUPTED = 130  # exit status after Ctrl-C, as of a shell


def main() -> None:
    """The `polyvox` command. The processes of a server import this module too, but not the command."""
    try:
        from polyvox.cli.main import main as run

        run()
    except KeyboardInterrupt:  # while the command is imported
        sys.stderr.write("Interrupted.\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
