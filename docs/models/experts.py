"""Feed-forward blocks made of experts, for the twins. qwen3moe.md tells it in words."""
import numpy as np

from parts import sigmoid, silu

LEAST_SUM = 2.0 ** -14      # of the chosen shares before they are divided by it


def gated(x, gate, up, down):
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def route(m, b, h):
    """For every row the experts it goes to, the likeliest first, and their shares."""
    score = h @ m.weight(b + "ffn_gate_inp.weight").T
    score = np.exp(score - score.max(axis=1, keepdims=True))
    score = score / score.sum(axis=1, keepdims=True)
    order = np.argsort(-score, axis=1, kind="stable")       # of equals, the lower number first
    chosen = order[:, :m.key("expert_used_count")]
    share = np.take_along_axis(score, chosen, axis=1)
    least = h.dtype.type(LEAST_SUM)
    return chosen, share / np.maximum(share.sum(axis=1, keepdims=True), least)


def expert_weights(m, b):
    """gate, up, down: [expert, rows, columns]."""
    if b + "ffn_gate_up_exps.weight" in m.file:
        gate, up = np.split(m.weight(b + "ffn_gate_up_exps.weight"), 2, axis=1)
    else:
        gate, up = m.weight(b + "ffn_gate_exps.weight"), m.weight(b + "ffn_up_exps.weight")
    return gate, up, m.weight(b + "ffn_down_exps.weight")


def experts(m, b, h):
    chosen, share = route(m, b, h)
    gate, up, down = expert_weights(m, b)
    y = np.zeros_like(h)
    for rank in range(chosen.shape[1]):
        for e in np.unique(chosen[:, rank]):
            rows = chosen[:, rank] == e
            y[rows] += share[rows, rank, None] * gated(h[rows], gate[e], up[e], down[e])
    return y


def shared_expert(m, b, h):
    weights = (m.weight(b + f"ffn_{part}_shexp.weight") for part in ("gate", "up", "down"))
    opened = sigmoid(h @ m.weight(b + "ffn_gate_inp_shexp.weight").reshape(-1))
    return opened[:, None] * gated(h, *weights)
