# SPDX-License-Identifier: Apache-2.0
"""python -m polyvox"""


def main() -> None:
    """The `polyvox` command. The processes of a server import this module too, but not the command."""
    from polyvox.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
