#!/usr/bin/env python3
"""Runs all tests that hold a promise of docs/handoff.md again and again, and counts.

    ten_times.py BUILD [--times 10] [--jobs 2] [--only REGEX] [--out FOLDER]

BUILD is a build folder (build/release). The tests are those that the table of docs/handoff.md
names, and all of unit/handoff, unit/worker, unit/transfer, unit/wire and fuzz/wire: a promise that holds nine times of ten does
not hold. With --jobs several run at once, as in `make test`; those that measure times run alone in
any case. The output of each failure is kept in FOLDER (BUILD/ten_times) as TEST.RUN.log. Exit code
1 if anything failed, 2 if nothing is to run.
"""
import argparse
import collections
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
WHOLE_ROOMS = r"(unit/(handoff|worker|transfer|wire)|fuzz/wire_.*)"


def refuse(text):
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def wanted(build):
    """Names of all these tests, as ctest has them."""
    told = subprocess.run(["ctest", "--test-dir", build, "-N"], capture_output=True, text=True)
    there = re.findall(r"Test +#\d+: (\S+)", told.stdout)
    if not there:
        refuse(f"{build} has no tests: cmake --preset release && cmake --build build/release")
    with open(os.path.join(ROOT, "docs", "handoff.md"), encoding="utf-8") as f:
        table = f.read().split("| promise | test |")[1].split("\n\n")[0]
    named = set(re.findall(r"`((?:net|unit|fuzz)/[\w/]+)`", table))
    if named - set(there):
        refuse(f"docs/handoff.md names what is no test here: {', '.join(named - set(there))}")
    return [t for t in there if t in named or re.match(WHOLE_ROOMS, t)]


def run_once(build, tests, report, jobs):
    """{test: (outcome, seconds, output)} of one run of all."""
    names = "|".join(map(re.escape, tests))
    subprocess.run(["ctest", "--test-dir", build, "-R", f"^({names})$", "--output-junit", report,
                    "-j", str(jobs), "--timeout", "900",
                    "--test-output-size-passed", "4096", "--test-output-size-failed", "4000000"],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    told = {}
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        outcome = {"run": "passed", "fail": "failed"}.get(case.get("status"), "skipped")
        told[case.get("name")] = outcome, float(case.get("time")), case.findtext("system-out", "")
    for test in tests:
        told.setdefault(test, ("failed", 0.0, "ctest says nothing of it\n"))
    return told


def keep(folder, test, run, output):
    path = os.path.join(folder, f"{test.replace('/', '_')}.{run}.log")
    with open(path, "w", encoding="utf-8") as f:
        f.write(output)
    print(f"run {run}: {test} failed: {path}", flush=True)


def show(counts, seconds, times, total):
    width = max(map(len, counts))
    print(f"\n{'test':{width}}  passed  skipped  failed  seconds each")
    for test, count in counts.items():
        print(f"{test:{width}}  {count['passed']:3}/{times:<3} {count['skipped']:7} "
              f"{count['failed']:7} {seconds[test] / times:13.1f}")
    n = sum(count["failed"] for count in counts.values())
    print(f"\n{len(counts)} tests, {times} times: {n} failures, {total / 60:.1f} minutes")
    return n


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="tests at once (1)")
    parser.add_argument("--only", default="", help="a regular expression: of these, those that fit")
    parser.add_argument("--out", help="folder for the output of failures")
    o = parser.parse_args()
    tests = [t for t in wanted(o.build) if re.search(o.only, t)]
    if not tests or o.times < 1 or o.jobs < 1:
        refuse(f"nothing to run: {len(tests)} tests, {o.times} times")
    folder = os.path.abspath(o.out or os.path.join(o.build, "ten_times"))
    os.makedirs(folder, exist_ok=True)
    counts = {t: collections.Counter() for t in tests}
    seconds = collections.Counter()
    begin = time.monotonic()
    for run in range(1, o.times + 1):
        told = run_once(o.build, tests, os.path.join(folder, f"run.{run}.xml"), o.jobs)
        for test, (outcome, took, output) in told.items():
            if test not in counts and outcome != "passed":      # a fixture of theirs
                counts[test] = collections.Counter()
            if test in counts:
                counts[test][outcome] += 1
                seconds[test] += took
            if outcome == "failed":
                keep(folder, test, run, output)
        n, minutes = sum(t[0] == "passed" for t in told.values()), (time.monotonic() - begin) / 60
        print(f"run {run}: {n} of {len(told)} passed, {minutes:.1f} minutes so far", flush=True)
    return 1 if show(counts, seconds, o.times, time.monotonic() - begin) else 0


if __name__ == "__main__":
    sys.exit(main())
