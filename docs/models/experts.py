"""Feed-forward blocks made of experts, for the twins. qwen3moe.md tells it in words."""
import numpy as np

from parts import sigmoid, silu

LEAST_SUM = 2.0 ** -14      # of the chosen shares before they are divided by it


def gated(m, x, names, gate, up, down):
    """The block of one expert. `names`: the tensors of gate, up and down."""
    g = silu(m.read(x, names[0]) @ gate.T) * (m.read(x, names[1]) @ up.T)
    return m.read(g, names[2]) @ down.T


def route(m, b, h):
    """For every row the experts it goes to, the likeliest first, and their shares."""
    name = b + "ffn_gate_inp.weight"
    score = m.read(h, name) @ m.weight(name).T
    score = np.exp(score - score.max(axis=1, keepdims=True))
    score = score / score.sum(axis=1, keepdims=True)
    order = np.argsort(-score, axis=1, kind="stable")       # of equals, the lower number first
    chosen = order[:, :m.key("expert_used_count")]
    share = np.take_along_axis(score, chosen, axis=1)
    least = h.dtype.type(LEAST_SUM)
    return chosen, share / np.maximum(share.sum(axis=1, keepdims=True), least)


def expert_weights(m, b):
    """Names of tensors; gate, up, down: [expert, rows, columns]."""
    merged = b + "ffn_gate_up_exps.weight"
    names = [b + f"ffn_{part}_exps.weight" for part in ("gate", "up", "down")]
    if merged in m.file:
        return [merged, merged, names[2]], *np.split(m.weight(merged), 2, axis=1), m.weight(names[2])
    return names, *map(m.weight, names)


def experts(m, b, h):
    chosen, share = route(m, b, h)
    names, gate, up, down = expert_weights(m, b)
    y = np.zeros_like(h)
    for rank in range(chosen.shape[1]):
        for e in np.unique(chosen[:, rank]):
            rows = chosen[:, rank] == e
            y[rows] += share[rows, rank, None] * gated(m, h[rows], names, gate[e], up[e], down[e])
    return y


def shared_expert(m, b, h):
    names = [b + f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down")]
    door = b + "ffn_gate_inp_shexp.weight"
    opened = sigmoid(m.read(h, door) @ m.weight(door).reshape(-1))
    return opened[:, None] * gated(m, h, names, *map(m.weight, names))
