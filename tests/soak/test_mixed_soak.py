# SPDX-License-Identifier: Apache-2.0
"""All kinds of clients at once, at 90 % of the capacity, with kills: ten minutes, or two hours with SOAK=long.

SOAK_MODEL=embedded runs it on the embedded voice, which needs two idle cores. SOAK_OUT is the folder of the recorded
files, by default build/soak-PROFILE.
"""

import os
import sys
from pathlib import Path

from soak.mixed_soak import PROFILES, run
from soak.soak_report import SoakRecord, markdown, run_checks, write_report


def test_a_server_under_mixed_load_and_kills_stays_stable() -> None:
    profile = PROFILES[os.environ.get("SOAK", "short")]
    model = os.environ.get("SOAK_MODEL", "simulated")
    assert model in ("simulated", "embedded")
    folder = Path(os.environ.get("SOAK_OUT", f"build/soak-{profile.name}")).absolute()
    run(folder, profile, model)
    record = SoakRecord.read(folder)
    checks = run_checks(record)
    write_report(record, checks, folder)
    sys.stdout.write(markdown(record, checks))
    assert [check for check in checks if not check.passed] == []
