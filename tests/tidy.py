#!/usr/bin/env python3
"""The rules of docs/style.md that a machine can check, as one test.

Include directions between rooms, sizes of files and functions, banned calls, self-contained headers,
names of symbols in the built archives, cycles of calls between the files of a room, room READMEs,
trailing blanks. Prints the size of each room, then every finding as file:line: what; exits 1 if there
is one. Usage: tidy.py SOURCE_DIR [BUILD_DIR]
"""
import os
import re
import subprocess
import sys

ROOT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
BUILD = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else None
SRC = os.path.join(ROOT, "src")

# A room may include only the rooms named behind it and what those may include (docs/architecture.md).
ROOMS = {
    "base": [],
    "quant": ["base"],
    "gguf": ["base", "quant"],
    "text": ["base", "gguf"],
    "sample": ["base", "gguf", "text"],
    "ops": ["base", "quant"],
    "cpu": ["base", "quant", "ops"],
    "device": ["base", "quant", "ops", "cpu"],
    "kv": ["base", "device"],
    "model": ["base", "gguf", "quant", "device", "kv"],
    "engine": ["base", "gguf", "quant", "text", "sample", "cpu", "device", "kv", "model"],
    "wire": ["base"],
    "link": ["base", "wire"],
    "cost": ["base"],
    "route": ["base", "cost"],
    "transfer": ["base", "kv", "wire"],
    "doctor": ["link"],
    "handoff": ["engine", "doctor", "route", "transfer"],
    "worker": ["handoff", "engine", "doctor", "route", "transfer"],
    "serve": ["engine", "handoff", "worker"],
    "cli": ["serve"],
}

LINE_MAX, FILE_MAX, HEADER_MAX, FUNCTION_MAX = 100, 500, 250, 70
ROOM_LINES_MAX = 6000
ROOM_MAX = {"handoff": (14, 5500)}     # room: (files, lines)
# Tables, most of them generated: no one reads them from top to bottom.
TABLES = {"text/unicode_table.c", "text/split_lists.c"}
# Rooms whose files may call each other in a circle; their READMEs say why.
CIRCLES = set()
# Longer functions that are one thing and read from top to bottom, with the reason; at most 120 lines.
LONG_FUNCTIONS = {}
LONG_HEADERS = {"src/engine/engine.h": "the engine's two doors stand together"}
# Not doors but code: bodies of kernels that each ISA's file includes with its own vector type.
KERNEL_BODY = re.compile(r"src/cpu/(body|simd|dot)_\w+\.h$")

BANNED = {
    r"\bsprintf\s*\(": "snprintf",
    r"\bstrcpy\s*\(": "memcpy with a known size",
    r"\bstrcat\s*\(": "bt_buf",
    r"\bstrtok\s*\(": "strcspn and strspn",
    r"\bato[ilf]\s*\(": "strtol with checks",
    r"\balloca\s*\(": "a buffer of the owner",
    r"\bassert\s*\(": "BT_ASSERT",
}
BANNED_OUTSIDE = {   # call: (rooms that may, what to use instead)
    r"\b(malloc|calloc|realloc|free)\s*\(": ({"base"}, "base/memory.h"),
    r"\b_?exit\s*\(": ({"cli"}, "a bt_status"),
    r"\babort\s*\(": ({"base"}, "a bt_status, or BT_ASSERT for our own bugs"),
    r"\bgetenv\s*\(": ({"cli"}, "an option struct"),
    r"(?<![fns])\bprintf\s*\(": ({"cli"}, "bt_log or an error sentence"),
}

findings = []


def find(path, line, what):
    findings.append(f"{os.path.relpath(path, ROOT)}:{line}: {what}")


def allowed(room, seen=None):
    seen = seen if seen is not None else set()
    for other in ROOMS[room]:
        if other not in seen:
            seen.add(other)
            allowed(other, seen)
    return seen | {room}


def sources(folder, endings):
    for base, _, names in os.walk(os.path.join(ROOT, folder)):
        for name in sorted(names):
            if name.endswith(endings):
                yield os.path.join(base, name)


def without_comments(text):
    """Comments and literals blanked, line structure kept."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text,
                  flags=re.S)


def check_lines(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LINE_MAX:
            find(path, number, f"{len(line)} columns, at most {LINE_MAX}")
        if line != line.rstrip():
            find(path, number, "trailing blanks")
        if "\t" in line:
            find(path, number, "a tab")
        if re.search(r"\b(FIXME|XXX|TODO)\b", line):
            find(path, number, "unfinished business left in the code")
    if not text.endswith("\n") or text.endswith("\n\n"):
        find(path, text.count("\n") + 1, "a file ends with exactly one newline")


def check_calls(path, room, code):
    for number, line in enumerate(code.split("\n"), 1):
        if line.lstrip().startswith("#"):
            continue
        for pattern, instead in BANNED.items():
            if re.search(pattern, line):
                find(path, number, f"'{line.strip()[:50]}': use {instead}")
        for pattern, (rooms, instead) in BANNED_OUTSIDE.items():
            if room not in rooms and re.search(pattern, line):
                find(path, number, f"'{line.strip()[:50]}': use {instead}")


def check_includes(path, room, text):
    may = allowed(room)
    own = 0
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r'\s*#include "([a-z]+)/', line)
        if match and match.group(1) in ROOMS:
            own += 1
            if match.group(1) not in may:
                find(path, number, f"{room}/ may not include {match.group(1)}/")
    if own > 14:
        find(path, 1, f"includes {own} own headers, at most 14")


def check_functions(path, code):
    """A function is a line in column 0 that is '{', up to the '}' in column 0."""
    start = None
    lines = code.split("\n")
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line.startswith("}") and start:
            length = number - start + 1
            head = " ".join(lines[max(0, start - 4):start - 1])
            names = re.findall(r"(\w+)\s*\(", head)
            name = names[-1] if names else "?"
            key = f"{os.path.relpath(path, ROOT)}:{name}"
            if length > FUNCTION_MAX and not (key in LONG_FUNCTIONS and length <= 120):
                find(path, start, f"{name}() has {length} lines, at most {FUNCTION_MAX}")
            start = None


def check_headers():
    for path in sources("src", ".h"):
        source = f'#include "{os.path.relpath(path, SRC)}"\n'
        result = subprocess.run(
            [os.environ.get("CC", "cc"), "-std=c17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror",
             "-fsyntax-only", "-I", SRC, "-x", "c", "-"],
            input=source, text=True, capture_output=True)
        if result.returncode != 0 and not private_header(path):
            find(path, 1, "does not compile alone: " + result.stderr.split("\n")[0])


def private_header(path):
    """Templates of kernels that are included several times say so in their first line."""
    with open(path, encoding="utf-8") as file:
        return "included several times" in file.readline()


def symbols_of(archive):
    """{object file: (names it defines, names it needs)}"""
    out = subprocess.run(["nm", "-g", "-A", archive], text=True, capture_output=True).stdout
    members = {}
    for line in out.split("\n"):
        match = re.match(r".*:([^:/]+\.o):\s*[0-9a-f]*\s+([A-Za-z]) (\S+)$", line)
        if match:
            defines, needs = members.setdefault(match.group(1), (set(), set()))
            (needs if match.group(2) in "Uw" else defines).add(match.group(3).removeprefix("_"))
    return members


def circles(edges):
    """The strongly connected components of more than one node (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    for node in edges:
        if node not in index:
            visit(node)
    return found


def check_names(room, archive, members):
    for defines, _ in members.values():
        for name in sorted(defines):
            if re.match(r"(bt_|_?asan|__|\.)", name) is None:
                find(archive, 1, f"global symbol without the prefix bt_: {name}")
            elif room != "base" and name.startswith("bt_") and not name.startswith(f"bt_{room}_"):
                find(archive, 1, f"{name} is public in {room}/: it should begin with bt_{room}_")


def check_circles(room, archive, members):
    owner = {name: member for member, (defines, _) in members.items() for name in defines}
    edges = {member: {owner[n] for n in needs if n in owner} - {member}
             for member, (_, needs) in members.items()}
    for names in circles(edges):
        if room not in CIRCLES:
            find(archive, 1, "files that call each other in a circle: " + ", ".join(names))


def check_symbols():
    for room in ROOMS:
        archive = os.path.join(BUILD, "src", f"libbt_{room}.a")
        if os.path.exists(archive):
            members = symbols_of(archive)
            check_names(room, archive, members)
            check_circles(room, archive, members)


def room_sizes():
    """{room: (files, lines, longest file, its lines)}; generated tables do not count."""
    sizes = {}
    for room in ROOMS:
        files = [(sum(1 for _ in open(path, encoding="utf-8")), os.path.relpath(path, SRC))
                 for path in sources(f"src/{room}", (".c", ".h"))]
        files = [f for f in files if f[1] not in TABLES]
        if files:
            sizes[room] = (len(files), sum(n for n, _ in files), *max(files)[::-1])
    return sizes


def check_sizes():
    total = 0
    for room, (n_files, n_lines, longest, n_longest) in room_sizes().items():
        print(f"{room + '/':<10} {n_files:3} files {n_lines:6} lines, longest {longest} {n_longest}")
        total += n_lines
        path = os.path.join(SRC, room)
        files_max, lines_max = ROOM_MAX.get(room, (None, ROOM_LINES_MAX))
        if n_lines > lines_max:
            find(path, 1, f"the room has {n_lines} lines, at most {lines_max}")
        if files_max and n_files > files_max:
            find(path, 1, f"the room has {n_files} files, at most {files_max}")
    print(f"{'all':<10} {total:16} lines")


def main():
    for path in list(sources("src", (".c", ".h"))) + list(sources("tests", (".c", ".h"))):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        relative = os.path.relpath(path, ROOT)
        check_lines(path, text)
        n_lines = text.count("\n")
        if (n_lines > FILE_MAX and "vectors" not in relative and
                relative.removeprefix("src/") not in TABLES):
            find(path, n_lines, f"{n_lines} lines, at most {FILE_MAX}")
        code = without_comments(text)
        check_functions(path, code)
        if relative.startswith("src/"):
            room = relative.split("/")[1]
            check_includes(path, room, text)
            check_calls(path, room, code)
            if (path.endswith(".h") and n_lines > HEADER_MAX and relative not in LONG_HEADERS
                    and not KERNEL_BODY.match(relative)):
                find(path, n_lines, f"a header of {n_lines} lines, at most {HEADER_MAX}")
    for room in ROOMS:
        readme = os.path.join(SRC, room, "README.md")
        if not os.path.exists(readme):
            find(readme, 1, "every room has a README.md")
        elif sum(1 for _ in open(readme, encoding="utf-8")) > 30:
            find(readme, 30, "a room's README has at most 30 lines")
    check_headers()
    check_sizes()
    if BUILD:
        check_symbols()
    print("\n".join(findings) or "tidy: nothing found")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
