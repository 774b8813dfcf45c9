#!/usr/bin/env python3
"""Where rounded activations send tokens to other experts: routing.py RESULT.json [BATON]

For a quantised model with experts (the model lies beside the result, whose prompt is used): which
choices differ between exact arithmetic and the two ways of rounding activations of twins.py, how
close the scores were there, how far the logits are from exact ones, and how far they would be with
the choices of exact arithmetic. With BATON, also how far its logits are on the best tier. Run by
hand; docs/quants.md has what it found.
"""
import importlib
import json
import pathlib
import sys

import numpy as np

import twins
from parts import Model             # noqa: E402 (twins sets the path)
import experts                       # noqa: E402

ROUNDINGS = {"parts of 16, Baton's": twins.parts_of_16, "blocks of 32, common": twins.blocks_of_32}


class Recorder:
    """Takes the place of experts.route: notes choices and scores, or imposes those given."""

    def __init__(self, imposed=None):
        self.chosen, self.scores, self.imposed = {}, {}, imposed
        self.route = experts.route

    def __call__(self, m, b, h):
        chosen, share = self.route(m, b, h)
        score = h @ m.weight(b + "ffn_gate_inp.weight").T
        if self.imposed:
            chosen = self.imposed[b]
            share = np.exp(np.take_along_axis(score - score.max(axis=1, keepdims=True), chosen, 1))
            share = share / share.sum(axis=1, keepdims=True)
        self.chosen[b], self.scores[b] = chosen, score
        return chosen, share


def run(model, tokens, recorder):
    plain, experts.route = experts.route, recorder
    try:
        return importlib.import_module(model.arch).forward(model, tokens)
    finally:
        experts.route = plain


def distance(ours, exact):
    found = twins.differences(ours, exact) ** 2
    return f"mean {found.mean():.2e}, last row {found[-1]:.2e}"


def others(exact, rounded):
    """(block, token, gap of the scores, largest move of a score) where the choices differ."""
    for b, chosen in exact.chosen.items():
        for t, (ours, theirs) in enumerate(zip(chosen, rounded.chosen[b])):
            if set(ours) != set(theirs):
                score = exact.scores[b][t]
                order = np.sort(score)[::-1]
                yield (b, t, order[len(ours) - 1] - order[len(ours)],
                       np.abs(rounded.scores[b][t] - score).max())


def main():
    result = pathlib.Path(sys.argv[1])
    path, tokens = result.with_suffix(".gguf"), json.loads(result.read_text())["tokens"]
    record = Recorder()
    exact = run(Model(path), tokens, record)
    n = sum(len(c) for c in record.chosen.values())
    for name, rounding in ROUNDINGS.items():
        rounded = Recorder()
        logits = run(twins.RoundedModel(path, rounding), tokens, rounded)
        same = run(twins.RoundedModel(path, rounding), tokens, Recorder(record.chosen))
        differ = list(others(record, rounded))
        print(f"{name}: {distance(logits, exact)}; {len(differ)} of {n} choices differ; with "
              f"exact choices {distance(same, exact)}")
        for b, t, gap, move in differ:
            print(f"  {b} token {t}: gap {gap:.4f}, scores moved by up to {move:.4f}")
    if len(sys.argv) > 2:
        ours = twins.engine(sys.argv[2], path, tokens, "-ctk", "f32", "-ctv", "f32")
        print(f"baton: {distance(ours, exact)}")


if __name__ == "__main__":
    main()
