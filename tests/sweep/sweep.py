#!/usr/bin/env python3
"""Runs a unit program again and again, with another allocation failing each time.

    sweep.py PROGRAM [--seconds S]

A test that finds its allocation failed may fail: it asserts success. What must not happen is a
crash, an assertion of the program itself, or a report of a sanitizer. cmocka is asked to abort at
the first failed assertion (CMOCKA_TEST_ABORT), so that no thread goes on with the stack of a test
that is gone. Allocations 1 to 24 fail in turn, then further apart by a tenth of their number, until
the program ends before the failing one, or the time is up: the bound that keeps this quick enough
for every run of the suite. The last line says how far it came.

A test may also wait for what cannot come any more, with a patience of its own; after 10 s it is
stopped and counted, which is no failure.
"""
import argparse
import os
import re
import resource
import subprocess
import sys
import time

WAIT_S = 10
DENSE = 24
# Of BT_ASSERT, cmocka's handler of signals, and sanitizers.
BAD = re.compile(r"internal error|Test failed with exception|Sanitizer|runtime error")


def run(program, n):
    """What went wrong ("" if nothing), whether the allocation was reached, whether it waited."""
    env = dict(os.environ, BATON_FAIL_ALLOCATION=str(n), CMOCKA_TEST_ABORT="1")
    try:
        done = subprocess.run([program], env=env, stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=WAIT_S, errors="replace",
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
    except subprocess.TimeoutExpired as late:
        said = ((late.stderr or b"") + (late.stdout or b"")).decode(errors="replace")
        return said[-3000:] if BAD.search(said) else "", True, True
    text = done.stdout + done.stderr
    aborted_by_cmocka = done.returncode == -6 and not BAD.search(text)
    if BAD.search(text) or (done.returncode < 0 and not aborted_by_cmocka):
        return f"status {done.returncode}\n{text[-3000:]}", True, False
    return "", "sweep: not reached" not in text, False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--seconds", type=float, default=3)
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    n, runs, waited, reached = 1, 0, 0, True
    while reached and time.monotonic() < end:
        problem, reached, late = run(given.program, n)
        runs += 1
        waited += late
        if problem:
            sys.exit(f"{given.program}: allocation {n} failed: {problem}")
        n += 1 if n < DENSE else max(1, n // 10)
    print(f"{runs} runs, {waited} of them stopped waiting, "
          f"{'up to allocation ' + str(n) if reached else 'to the end'}")


if __name__ == "__main__":
    main()
