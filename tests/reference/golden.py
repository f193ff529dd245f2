# SPDX-License-Identifier: Apache-2.0
"""Run the reference packages again and compare their results with the committed golden files.

    python tests/reference/golden.py [--write]

Builds their environments in .oracle and .oracle-omni on first use (a few minutes), writes the tiny checkpoints, runs
oracle.py and omni_oracle.py there, and reports every array that differs. With --write the new manifest and the new
files with a difference replace the committed ones.
"""

import argparse
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from polyvox.models.qwen3_omni import synthetic as omni
from polyvox.models.qwen3_tts.config import Kind
from polyvox.models.qwen3_tts.synthetic import write_tiny
from polyvox.tts import EMBEDDED_VOICE

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"
ORACLE, OMNI_ORACLE = HERE.parents[1] / ".oracle", HERE.parents[1] / ".oracle-omni"
SCRIPTS = ("oracle.py", "cases.py", "signals.py", "golden.py", "omni_oracle.py", "omni_cases.py")
PACKAGES = (
    ("torch==2.13.0",),
    ("transformers==4.57.3", "accelerate==1.12.0", "librosa==0.11.0", "soundfile==0.14.0", "einops==0.8.2"),
    # Its other dependencies are for its demo and its other codec.
    ("--no-deps", "qwen-tts==0.1.1", "onnxruntime==1.31.1", "sox==1.5.0"),
)
OMNI_PACKAGES = (("torch==2.13.0",), ("transformers==5.22.2", "numpy==2.4.6"))
# The other codec imports torchaudio, which has no build for this torch; nothing that runs here uses it.
STUBS = {"__init__.py": "__version__ = '0.0'\n", "compliance/__init__.py": "", "compliance/kaldi.py": ""}
NAMED = ("torch==", "transformers==", "qwen-tts==", "tokenizers==", "numpy==")  # in the manifest
# The last bits of the reference differ between machines.
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace the committed files that differ")
    write = parser.parse_args().write
    python, omni_python = environment(ORACLE, PACKAGES, STUBS), environment(OMNI_ORACLE, OMNI_PACKAGES)
    with tempfile.TemporaryDirectory() as scratch:
        checkpoints, results = Path(scratch, "checkpoints"), Path(scratch, "golden")
        results.mkdir()
        for kind in get_args(Kind):
            write_tiny(checkpoints / kind, kind)
        write_omni(checkpoints)
        (checkpoints / "embedded").symlink_to(EMBEDDED_VOICE)
        log(f"Running the references on {checkpoints}")
        subprocess.run([python, HERE / "oracle.py", checkpoints, results], check=True)
        subprocess.run([omni_python, HERE / "omni_oracle.py", checkpoints, results], check=True)
        origin = manifest((python, omni_python), checkpoints)
        (results / "manifest.json").write_text(json.dumps(origin, indent=1) + "\n")
        differences = compare(results)
        if write:
            replace(results, differences)
            log(f"Replaced in {GOLDEN}: {', '.join(sorted(differences)) or 'nothing'}")
        elif differences:
            sys.exit("The results differ from the committed files: see above. --write replaces them.")
        else:
            log("The results equal the committed files.")


def write_omni(checkpoints: Path) -> None:
    """The tiny Qwen3-Omni checkpoints."""
    for shape in get_args(omni.Shape):
        omni.write_tiny(checkpoints / f"omni-{shape}", shape)


def environment(folder: Path, installs: Sequence[Sequence[str]], stubs: Mapping[str, str] | None = None) -> Path:
    """The virtual environment of a reference, built if it is not complete."""
    python, complete = folder / "bin/python", folder / ".complete"
    if not complete.exists() or complete.read_text() != repr(installs):
        log(f"Building the reference's environment in {folder}")
        venv.create(folder, clear=True, with_pip=True)
        for packages in installs:
            log(f"  installing {' '.join(packages)}")
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        site = next((folder / "lib").glob("python*")) / "site-packages"
        for name, text in (stubs or {}).items():
            path = site / "torchaudio" / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
        complete.write_text(repr(installs))
    return python


def manifest(pythons: Sequence[Path], checkpoints: Path) -> dict[str, object]:
    """The origin of the files: scripts, weights and versions."""
    freeze = [
        subprocess.run([python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
        for python in pythons
    ]
    return {
        "scripts": {name: digest(HERE / name) for name in SCRIPTS},
        "checkpoints": checkpoint_digests(checkpoints),
        "packages": sorted({line for lines in freeze for line in lines.splitlines() if line.startswith(NAMED)}),
        "python": platform.python_version(),
    }


def checkpoint_digests(checkpoints: Path) -> dict[str, str]:
    paths = sorted(path for path in checkpoints.glob("*/**/*.safetensors"))
    return {str(path.relative_to(checkpoints)): digest(path) for path in paths}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def replace(results: Path, names: Iterable[str]) -> None:
    """Make these committed files equal to the results: those that the results lack are deleted."""
    GOLDEN.mkdir(exist_ok=True)
    for name in names:
        (GOLDEN / name).unlink(missing_ok=True)
        if (results / name).exists():
            shutil.copy(results / name, GOLDEN / name)


def compare(results: Path) -> set[str]:
    """Print every array, and the manifest, that differ from the committed ones; returns the names of their files."""
    differences = set()
    committed = GOLDEN / "manifest.json"
    if not committed.exists() or committed.read_text() != (results / "manifest.json").read_text():
        log("  manifest.json: different scripts, weights or packages")
        differences.add("manifest.json")
    names = {path.name for folder in (results, GOLDEN) if folder.exists() for path in folder.glob("*.npz")}
    for name in sorted(names):
        if not (results / name).exists() or not (GOLDEN / name).exists():
            log(f"  {name}: only {'new' if (results / name).exists() else 'committed'}")
            differences.add(name)
            continue
        new, old = np.load(results / name), np.load(GOLDEN / name)
        for key in sorted({*new.files, *old.files}):
            problem = difference(key, new, old)
            if problem:
                log(f"  {name} {key}: {problem}")
                differences.add(name)
    return differences


def difference(key: str, new: np.lib.npyio.NpzFile, old: np.lib.npyio.NpzFile) -> str | None:
    if key not in new.files or key not in old.files:
        return "only on one side"
    a, b = new[key], old[key]
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{b.dtype} {b.shape} became {a.dtype} {a.shape}"
    if np.issubdtype(a.dtype, np.integer):
        return None if np.array_equal(a, b) else f"{np.count_nonzero(a != b)} of {a.size} values differ"
    worst = float(np.abs(a - b).max(initial=0) / max(float(np.abs(b).max(initial=0)), 1e-30))
    return None if worst <= TOLERANCE[str(a.dtype)] else f"relative difference {worst:.1e}"


def log(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    main()
