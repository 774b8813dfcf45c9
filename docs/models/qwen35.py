#!/usr/bin/env python3
"""Qwen3.5 and 3.6, dense, in numpy: qwen35.py -m FILE --tokens 1,2,3 [--all]. qwen35.md tells it
in words."""
import hybrid
from parts import dense, main


def forward(m, tokens, chunk=0):
    return hybrid.forward(m, tokens, hybrid.tiled, dense, chunk)


if __name__ == "__main__":
    main(forward, __doc__)
