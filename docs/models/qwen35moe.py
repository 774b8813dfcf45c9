#!/usr/bin/env python3
"""Qwen3.5 and 3.6 with experts, in numpy: qwen35moe.py -m FILE --tokens 1,2,3 [--all].
qwen35moe.md tells it in words."""
import hybrid
from experts import experts, shared_expert
from parts import main


def feed_forward(m, b, h):
    return experts(m, b, h) + shared_expert(m, b, h)


def forward(m, tokens, chunk=0):
    return hybrid.forward(m, tokens, hybrid.tiled, feed_forward, chunk)


if __name__ == "__main__":
    main(forward, __doc__)
