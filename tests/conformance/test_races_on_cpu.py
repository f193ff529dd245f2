# SPDX-License-Identifier: Apache-2.0
"""Tests of CUDA files on a CPU again, with g++'s ThreadSanitizer; no GPU is needed.

It reports where two threads of a program or cluster use the same bytes of shared or global memory, one of them writes,
and no barrier is between them, whatever the values were in this run. Registers that the threads of a warp exchange
order nothing, as on a GPU (races_on_cpu.hpp). A thread beside the programs stands for the previous launch, so that
reads and writes before the wait for it are reported, too, if kernels/launch_hazards.py does not allow them.

Not found: a missing wait for tensor core products, or for the copies of wgmma.cuh in groups, which complete at once
here; a missing wait for a bulk copy if a later one of the same thread is waited for; a missing fence after a barrier is
initialised. Copies of async_copies.cuh complete when they are waited for, so tests of values find a missing wait.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.cuda_on_cpu import COMPILER, FLAGS_VARIABLE, needs_compiler
from polyvox import kernels

HERE = Path(__file__).parent
SECONDS = 1200
REPORTED = 66  # exit status
# Dynamic thread-local storage makes the ThreadSanitizer of g++ 12 fail with an internal error.
FLAGS = "-fsanitize=thread -g -ftls-model=initial-exec"
# Of Python and PyTorch, which were compiled without ThreadSanitizer, nothing is reported.
OPTIONS = f"exitcode={REPORTED} halt_on_error=1 report_signal_unsafe=0 ignore_noninstrumented_modules=1"
# For each test_…_on_cpu.py, tests with few rows that together reach all barriers: pytest's -k, of which each part must
# select a test.
CASES = {
    "attention_output": "equal_their_reference and 15",
    "code_draw": "ties_of_first or embeddings or equal_logits",
    "decode_attention": "equals_its_reference and positions1 or equals_its_reference and 5-128",
    "history": "equal_their_reference",
    "mid_batch_linear": "5-128 or 16-0",
    "prefetch_linear": "True-5 or equal_their_reference",
    "prefetch_vector": "shape0",
    "register_linear": "reference and 4 or reference and 17",
    "sample_conv": "2-250",
    "warp_attention": "equals_its_reference and positions1 or equals_its_reference and 1_1 and positions4"
    " or equals_its_reference and 8_2 and positions3 and dtype0",
    "wgmma": "96-9-2 or 192-3-2 or 64-192-7 or 64-96-2 or 2-320",
    "wgmma_linear": "40 or 300",
}

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def library() -> str:
    """ThreadSanitizer's library, which a process loads first."""
    command = [str(COMPILER), "-print-file-name=libtsan.so"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip("needs g++'s ThreadSanitizer")
    return found


def test_every_cuda_file_is_among_the_cases() -> None:
    tested = "\n".join((HERE / f"test_{name}_on_cpu.py").read_text() for name in CASES)
    files = [each.name for each in Path(kernels.__file__).parent.glob("*.cu")]
    assert len(files) >= 12
    assert all(f'#include "{name}"' in tested for name in files)


@pytest.mark.parametrize("name", CASES)
def test_a_cuda_file_has_no_race(name: str, library: str) -> None:
    added = {"OMP_NUM_THREADS": "1", FLAGS_VARIABLE: FLAGS, "LD_PRELOAD": library, "TSAN_OPTIONS": OPTIONS}
    command = [sys.executable, "-m", "pytest", "-rA", "-qs", "-p", "no:cacheprovider", "-o", "filterwarnings=ignore"]
    made = subprocess.run(
        [*command, str(HERE / f"test_{name}_on_cpu.py"), "-k", f"not compile and ({CASES[name]})"],
        env=os.environ | added, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-6000:]
    passed = [line.partition("::")[2] for line in made.stdout.splitlines() if line.startswith("PASSED")]
    for part in CASES[name].split(" or "):
        assert any(all(word in test for word in part.split(" and ")) for test in passed), (part, passed)
    assert "SKIPPED" not in made.stdout, made.stdout[-2000:]


def run_kernel(kernel: str, folder: Path, flags: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a kernel with one warp, 1,024 bytes of shared memory, and numbers that the previous launch writes."""
    source, program = folder / "program.cpp", folder / "program"
    begin = "float *const values = (float *)memory; const int thread = threadIdx.x;"
    source.write_text(f"""
#include "cluster_on_cpu.hpp"
#include "async_copies_on_cpu.hpp"
static float given[32], constant[32];
static void kernel() {{ {begin} {kernel} }}
int main() {{
  used_before.push_back({{(unsigned char *)given, sizeof given, true}});
  launch(1, 32, 1024, kernel);
}}
""")
    command = [str(COMPILER), "-std=c++20", "-O1", "-pthread", *flags.split(), f"-I{HERE}"]
    subprocess.run([*command, "-o", str(program), str(source)], check=True, timeout=300)
    environment = os.environ | {"TSAN_OPTIONS": OPTIONS}
    return subprocess.run([program], env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("between", "status"), [("sync_warp();", 0), ("sync_program();", 0), ("shuffle_xor(1.f, 1);", REPORTED)]
)
def test_a_missing_barrier_is_found(between: str, status: int, tmp_path: Path) -> None:
    made = run_kernel(f"values[thread] = 1; {between} values[32 + thread] = values[thread ^ 4];", tmp_path, FLAGS)
    assert made.returncode == status, made.stderr[-3000:]
    assert ("data race" in made.stderr) == (status == REPORTED)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("before", "status"), [("wait_for_previous();", 0), ("", REPORTED)])
@pytest.mark.parametrize("use", ["values[thread] = given[thread];", "given[thread] = 1;"])
def test_a_missing_wait_for_the_previous_launch_is_found(use: str, before: str, status: int, tmp_path: Path) -> None:
    made = run_kernel(f"{before} {use}", tmp_path, FLAGS)
    assert made.returncode == status, made.stderr[-3000:]
    assert ("data race" in made.stderr) == (status == REPORTED)


# Each thread copies 16 bytes, or one copies all and a barrier counts them; then threads read what others copied.
COPY = "if (thread < 8) { copy_16_bytes(thread * 16, constant + thread * 4); commit_copies(); wait_for_copies<0>(); }"
BULK_COPY = """
if (thread == 0) init_barrier(512, 1);
sync_warp();
if (thread == 0) arrive_expecting(512, 128), copy(0, constant, 128, 512);
"""


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("copies", "after", "status"),
    [
        (COPY, "sync_warp();", 0),
        (COPY, "", REPORTED),
        (f"values[thread ^ 1] = 1; {COPY}", "sync_warp();", REPORTED),
        (BULK_COPY, "wait_barrier(512, 0);", 0),
        (BULK_COPY, "", REPORTED),
        (f"values[thread] = 1; {BULK_COPY}", "wait_barrier(512, 0);", 0),
        (BULK_COPY.replace("sync_warp();", "values[thread] = 1;"), "wait_barrier(512, 0);", REPORTED),
        (BULK_COPY, "wait_barrier(512, 0); if (thread == 5) copy(0, constant, 128, 512);", REPORTED),
    ],
)
def test_copies_without_a_barrier_are_found(copies: str, after: str, status: int, tmp_path: Path) -> None:
    made = run_kernel(f"{copies} {after} values[64 + thread] = values[thread ^ 4];", tmp_path, FLAGS)
    assert made.returncode == status, made.stderr[-3000:]
    assert ("data race" in made.stderr) == (status == REPORTED)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("before", "status"), [("wait_for_previous();", 0), ("", REPORTED)])
@pytest.mark.parametrize("copies", [COPY, BULK_COPY])
def test_copies_of_what_the_previous_launch_writes_are_found(
    copies: str, before: str, status: int, tmp_path: Path
) -> None:
    copies = copies.replace("constant", "given")
    made = run_kernel(f"{before} {copies}", tmp_path, FLAGS)
    assert made.returncode == status, made.stderr[-3000:]


@pytest.mark.parametrize(
    ("first", "is_outside"), [(0, False), (224, False), (225, True), (-1024, True), (99_999, True)]
)
def test_an_address_outside_of_shared_memory_ends_the_process(first: int, is_outside: bool, tmp_path: Path) -> None:
    made = run_kernel(f"values[{first} + thread] = 1;", tmp_path)
    assert made.returncode == (-signal.SIGSEGV if is_outside else 0), made.stderr[-3000:]
