# SPDX-License-Identifier: Apache-2.0
"""A process that compiles kernels into Triton's cache without a GPU; started by compiler_pool.py.

Reads a launch per line of its input, as JSON, and answers with a line each: an object that is empty or has the error.
It ends when its input ends, so also when the process that started it is killed.
"""

import json
import os
import sys

from polyvox.kernels.launches import Launch, compile_launch

MAX_ERROR = 1000  # characters: a line is written at once


def main() -> None:
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr  # a compiler may print
    for line in sys.stdin:
        answer = {}
        try:
            compile_launch(Launch(**json.loads(line)))
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"[:MAX_ERROR]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
