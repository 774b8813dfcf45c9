#!/usr/bin/env python3
"""Writes src/text/unicode_table.c: what kind of character every code point is, Unicode 15.1.

The pre-tokenizers are defined over Unicode 15.1; a library of another version would cut some
texts differently, so the table is ours. It is made from the module `unicodedata2`, version 15.1.0
(the standard library's `unicodedata` has that version in Python 3.13).

    python3 tools/mkunicode.py > src/text/unicode_table.c
"""
import sys

try:
    import unicodedata2 as unicode
except ImportError:
    import unicodedata as unicode

WANTED = "15.1.0"

# The property White_Space; it goes before the general category.
SPACES = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
          0x202F, 0x205F, 0x3000}

# The order of bt_unicode_kind in src/text/unicode.h.
KINDS = ["other", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S", "space"]


def kind_of(code):
    if code in SPACES:
        return "space"
    category = unicode.category(chr(code))
    if category[0] == "L":
        return category
    return category[0] if category[0] in "MNPS" else "other"


def main():
    if unicode.unidata_version != WANTED:
        sys.exit(f"this Python knows Unicode {unicode.unidata_version}; {WANTED} is needed")
    runs = []
    last = None
    for code in range(0x110000):
        kind = KINDS.index(kind_of(code))
        if kind != last:
            runs.append(code << 4 | kind)
            last = kind
    print("/* Written by tools/mkunicode.py from the character data of Unicode 15.1; do not edit. */")
    print('#include "text/unicode.h"\n')
    print("/* Each run of equal kinds: first code point << 4 | kind. */")
    print("const uint32_t bt_text_unicode_runs[] = {")
    for at in range(0, len(runs), 9):
        print("    " + ", ".join(f"{run:#08x}" for run in runs[at:at + 9]) + ",")
    print("};")
    print("const size_t bt_text_unicode_run_count = BT_LEN(bt_text_unicode_runs);")


main()
