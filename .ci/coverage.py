#!/usr/bin/env python3
"""Lines that the tests ran, by room: coverage.py BUILD-FOLDER (configured with --coverage)."""
import collections
import json
import pathlib
import subprocess
import sys


def lines_of(build):
    """{source: {line: runs}} over all programs; a line in a header counts where it is."""
    found = collections.defaultdict(lambda: collections.defaultdict(int))
    for data in (build / "src").rglob("*.gcda"):
        out = subprocess.run(["gcov", "--json-format", "--stdout", str(data)], check=True,
                             capture_output=True, cwd=build, text=True).stdout
        for document in out.splitlines():
            for file in json.loads(document)["files"]:
                for line in file["lines"]:
                    found[file["file"]][line["line_number"]] += line["count"]
    return found


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    rooms = collections.defaultdict(lambda: [0, 0])
    for source, lines in lines_of(build).items():
        parts = pathlib.PurePath(source).parts
        if "src" not in parts:
            continue
        room = parts[len(parts) - 1 - parts[::-1].index("src") + 1]
        rooms[room][0] += sum(runs > 0 for runs in lines.values())
        rooms[room][1] += len(lines)
    for room, (run, of) in sorted(rooms.items()):
        print(f"{room:10} {run:6} of {of:6} lines  {100 * run / of:5.1f} %")


if __name__ == "__main__":
    main()
