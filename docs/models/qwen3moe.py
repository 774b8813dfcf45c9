#!/usr/bin/env python3
"""Qwen3 with experts, in numpy: qwen3moe.py -m FILE --tokens 1,2,3 [--all]. qwen3moe.md tells it in
words; but for its feed-forward blocks it is qwen3.py."""
import qwen3
from experts import experts
from parts import main


def forward(m, tokens):
    return qwen3.forward(m, tokens, experts)


if __name__ == "__main__":
    main(forward, __doc__)
