# SPDX-License-Identifier: Apache-2.0
"""polyvox doctor: check this machine, or a running server. Nothing is downloaded."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from polyvox.cli import machine_checks
from polyvox.cli.findings import Finding, show
from polyvox.cli.terminal import Json, console, show_json
from polyvox.errors import PolyvoxError

REINSTALL = "reinstall: make clean, then make serve"
CHECK_URL = "check that the URL is that of a Polyvox server, of the same version"

Check = Callable[[], Iterator[Finding]]

Server = Annotated[
    str | None, typer.Option(help="Check a running server instead, such as https://tts.example.com.", metavar="URL")
]
Key = Annotated[str | None, typer.Option(help="API key of the server.", envvar="POLYVOX_SERVER_KEY", show_envvar=True)]
Voice = Annotated[str | None, typer.Option(help="Voice of the server's test requests.")]


def doctor(server: Server = None, key: Key = None, voice: Voice = None, as_json: Json = False) -> None:
    """Check this machine, or a running server, and print how to fix problems."""
    checks: Iterable[Check] = machine_checks.CHECKS
    if server is not None:
        from polyvox.cli.server_checks import ServerChecks

        checks = ServerChecks(server, key, voice).checks()
    broken = _run_all(checks, REINSTALL if server is None else CHECK_URL, as_json)
    if broken and not as_json:
        subject = "The server has problems" if server else "Polyvox cannot run on this machine"
        again = f"polyvox doctor --server {server}" if server else "polyvox doctor"
        console.print(f"{subject}. Fix those marked ✗, then run: {again}", soft_wrap=True)
    elif not as_json:
        console.print("The server works." if server else 'Polyvox is ready. Try: polyvox say "Hello there."')
    if broken:
        raise typer.Exit(1)


def _run_all(checks: Iterable[Check], fix: str, as_json: bool) -> bool:
    """Prints the findings of all checks, up to one that the others depend on; whether one of them is a problem.

    fix: what to do about a check that fails unexpectedly.
    """
    findings: list[Finding] = []
    out = Console(highlight=False, markup=False)
    for check in checks:
        with console.status(f"Checking {_subject(check)} …"):
            found = list(_run(check, fix))
        findings += found
        for finding in found:
            if not as_json:
                show(out, finding)
        if any(finding.ends_checks for finding in found):
            break
    broken = any(finding.broken for finding in findings)
    if as_json:
        show_json({"ok": not broken, "findings": [asdict(finding) for finding in findings]})
    return broken


def _subject(check: Check) -> str:
    return check.__name__.replace("_", " ")


def _run(check: Check, fix: str) -> Iterator[Finding]:
    """The findings of a check. An exception is a finding, too."""
    try:
        yield from check()
    except PolyvoxError as error:
        yield Finding(_subject(check), "fail", str(error), essential=True)
    except Exception as error:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        yield Finding(_subject(check), "fail", message, fix, essential=True)
