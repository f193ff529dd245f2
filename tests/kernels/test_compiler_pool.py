# SPDX-License-Identifier: Apache-2.0
"""The pool of compiler processes; its workers here are small programs. test_compiling.py runs the real ones."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from polyvox.kernels.compiler_pool import CompilerPool
from polyvox.kernels.launches import Launch

LAUNCHES = [Launch("module:kernel", str(number), 90) for number in range(5)]
GENEROUS = 60.0  # seconds
# Launch number n is answered as the program's argument says: "0,1,…"
WORKER = """
import json, sys, time
failing, dying, hanging = (set(part.split(",")) for part in sys.argv[1:])
for line in sys.stdin:
    number = json.loads(line)["specialization"]
    if number in dying:
        sys.exit(1)
    if number in hanging:
        time.sleep(600)
    print(json.dumps({"error": "SyntaxError: " + number} if number in failing else {}), flush=True)
"""


@contextmanager
def pool(
    num_workers: int, failing: str = "", dying: str = "", hanging: str = "", timeout: float = GENEROUS
) -> Iterator[CompilerPool]:
    made = CompilerPool(num_workers, [sys.executable, "-c", WORKER, failing, dying, hanging], timeout)
    try:
        yield made
    finally:
        made.close()


def test_every_launch_is_compiled_once_and_counted() -> None:
    done: list[int] = []
    with pool(2) as compilers:
        assert compilers.compile(LAUNCHES, done.append) == []
        assert compilers.compile(LAUNCHES[:1], done.append) == []
    assert done == [1, 2, 3, 4, 5, 1]


def test_a_failed_compilation_is_an_error_and_the_others_go_on() -> None:
    done: list[int] = []
    with pool(2, failing="1,3") as compilers:
        errors = compilers.compile(LAUNCHES, done.append)
    assert sorted(errors) == ["SyntaxError: 1", "SyntaxError: 3"]
    assert done[-1] == len(LAUNCHES)


def test_the_other_workers_compile_what_is_left_when_one_ends() -> None:
    done: list[int] = []
    with pool(2, dying="0") as compilers:
        assert compilers.compile(LAUNCHES, done.append) == ["a compiler process ended"]
    assert done[-1] == len(LAUNCHES)


def test_launches_without_a_worker_are_an_error() -> None:
    with pool(2, dying="0,1") as compilers:
        errors = compilers.compile(LAUNCHES, lambda _: None)
    assert errors == ["a compiler process ended", "a compiler process ended", "3 kernels were not compiled"]


def test_a_worker_that_does_not_answer_is_not_awaited_forever() -> None:
    with pool(1, hanging="0", timeout=0.1) as compilers:
        errors = compilers.compile(LAUNCHES, lambda _: None)
    assert errors == ["no kernel was compiled within 0.1 s", "5 kernels were not compiled"]


def test_workers_end_when_the_pool_is_closed() -> None:
    with pool(3, hanging="0") as compilers:
        workers = compilers._workers
        assert workers[0].stdin is not None
        workers[0].stdin.write(json.dumps({"specialization": "0"}).encode() + b"\n")
        workers[0].stdin.flush()
    assert all(worker.returncode is not None for worker in workers)


def test_a_worker_ends_with_its_input_so_also_when_its_parent_is_killed() -> None:
    with pool(1) as compilers:
        [worker] = compilers._workers
        assert worker.stdin is not None
        worker.stdin.close()
        assert worker.wait(GENEROUS) == 0
