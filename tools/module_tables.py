#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the tables of modules in docs/architecture.md from the modules' docstrings.

    python tools/module_tables.py [--check]

Each table stands between `<!-- modules: PACKAGE -->` and `<!-- end -->`. With --check nothing is written, and the exit
status is 1 if a table is not up to date or a package has no table.
"""

import argparse
import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/architecture.md"
SOURCE = ROOT / "src/polyvox"
TABLE = re.compile(r"(<!-- modules: ([\w.]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def summary(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line, without its final full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split()).rstrip(".").replace("|", "\\|")


def modules(package: str) -> list[Path]:
    folder = SOURCE / Path(*package.split(".")[1:])
    return sorted(path for path in folder.glob("*.py") if path.name not in ("__init__.py", "__main__.py"))


def table(package: str) -> str:
    rows = [f"| `{path.name}` | {summary(path)} |" for path in modules(package)]
    return "\n".join(["| module | contents |", "|---|---|", *rows, ""])


def rendered(page: str) -> str:
    return TABLE.sub(lambda match: match[1] + table(match[2]) + match[3], page)


def missing(page: str) -> list[str]:
    """Packages with modules that have no table."""
    listed = {match[2] for match in TABLE.finditer(page)}
    folders = {SOURCE, *(path.parent for path in SOURCE.rglob("__init__.py"))}
    names = {".".join(("polyvox", *folder.relative_to(SOURCE).parts)) for folder in folders}
    return sorted(name for name in names - listed if modules(name))


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the tables of modules in docs/architecture.md.")
    parser.add_argument("--check", action="store_true", help="only report whether the tables are up to date")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    for package in missing(page):
        print(f"{PAGE.relative_to(ROOT)}: no table for {package}")
    if arguments.check and rendered(page) != page:
        print(f"{PAGE.relative_to(ROOT)}: not up to date; run tools/module_tables.py")
    if not arguments.check:
        PAGE.write_text(rendered(page), encoding="utf-8")
    return 1 if missing(page) or rendered(page) != page else 0


if __name__ == "__main__":
    sys.exit(main())
