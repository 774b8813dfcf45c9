#!/usr/bin/env python3
"""Gated delta nets and gated attention, layer by layer: what the twins qwen35, qwen35moe and
qwen3next share. qwen35.md tells it in words.

Run by itself it checks that the three ways to walk the recurrence agree on random input: token by
token, in chunks, and with the sequence cut in two.
"""
import numpy as np

from parts import Rope, attention, rms_norm, sigmoid, silu


def l2_norm(x, eps):
    return x / np.maximum(np.sqrt(np.sum(x * x, axis=-1, keepdims=True)), x.dtype.type(eps))


def softplus(x):
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def tiled(n_k, n_v):
    """The key head of every value head, when value heads go round the key heads."""
    return np.arange(n_v) % n_k


def grouped(n_k, n_v):
    """The same, when the value heads of one key head stand together."""
    return np.arange(n_v) // (n_v // n_k)


# -------------------------------------------------------------------------------- the recurrence
# q, k: [tokens, value heads, s], q already scaled; v: [tokens, value heads, s];
# g, beta: [tokens, value heads]; state: [value heads, s of k, s of v].

def short_conv(u, taps, past):
    """u: [tokens, channels]; taps: [channels, width], the oldest first; past: the last width - 1
    rows before u. Gives the outputs and the past of the next call."""
    rows = np.concatenate([past, u])
    y = np.zeros_like(u)
    for i in range(taps.shape[1]):
        y += taps[:, i] * rows[i:i + len(u)]
    return silu(y), rows[len(u):]


def delta_scan(q, k, v, g, beta, state):
    """Token by token: the order of summation that counts. Gives the outputs and the last state."""
    o = np.empty_like(v)
    for t in range(len(v)):
        state = state * np.exp(g[t])[:, None, None]
        d = beta[t][:, None] * (v[t] - np.einsum("hij,hi->hj", state, k[t]))
        state = state + k[t][:, :, None] * d[:, None, :]
        o[t] = np.einsum("hij,hi->hj", state, q[t])
    return o, state


def delta_chunks(q, k, v, g, beta, state, size):
    """The same up to rounding, `size` tokens at a time, mostly as products of matrices."""
    o = np.empty_like(v)
    for first in range(0, len(v), size):
        part = slice(first, first + size)
        cq, ck, cv = (x[part].swapaxes(0, 1) for x in (q, k, v))        # [heads, tokens, s]
        b, total = beta[part].T[..., None], np.cumsum(g[part], axis=0).T
        later = total[:, :, None] - total[:, None, :]
        later[:, np.triu(np.ones(later.shape[1:], bool), 1)] = -np.inf
        decay = np.exp(later)                                           # 0 above the diagonal
        since = np.exp(total)[..., None]

        # What does not hang on the state: both right sides through (I + A)^-1.
        a = np.tril(b * (ck @ ck.swapaxes(1, 2)) * decay, -1)
        x = np.concatenate([b * cv, b * since * ck], axis=2)
        for i in range(1, x.shape[1]):
            x[:, i] -= np.einsum("hj,hjd->hd", a[:, i, :i], x[:, :i])
        u, w = np.split(x, [cv.shape[2]], axis=2)

        d = u - w @ state
        y = since * (cq @ state) + ((cq @ ck.swapaxes(1, 2)) * decay) @ d
        o[part] = y.swapaxes(0, 1)
        rest = np.exp(total[:, -1:] - total)[..., None]
        state = since[:, -1:] * state + (rest * ck).swapaxes(1, 2) @ d
    return o, state


# ------------------------------------------------------------------------------------- the layers

def projections(m, b, h, n_k, n_v, s):
    """Channels of q, k and v side by side; gates; logits of beta; steps of the decay."""
    n, r = len(h), n_v // n_k
    if b + "ssm_in.weight" in m.file:
        by_head = m.linear(h, b + "ssm_in").reshape(n, n_k, -1)
        parts = np.split(by_head, [s, 2 * s, (2 + r) * s], axis=2)
        q, k, v, z = (part.reshape(n, -1) for part in parts)
        u = np.concatenate([q, k, v], axis=1)
    else:
        u, z = m.linear(h, b + "attn_qkv"), m.linear(h, b + "attn_gate")
    if b + "ssm_ba.weight" in m.file:
        by_head = m.linear(h, b + "ssm_ba").reshape(n, n_k, 2, r)
        beta, alpha = (by_head[:, :, i].reshape(n, n_v) for i in (0, 1))
    else:
        beta, alpha = m.linear(h, b + "ssm_beta"), m.linear(h, b + "ssm_alpha")
    return u, z, beta, alpha


def delta_net(m, b, h, key_heads, chunk):
    n_k, n_v, s = m.key("ssm.group_count"), m.key("ssm.time_step_rank"), m.key("ssm.state_size")
    eps, n = m.key("attention.layer_norm_rms_epsilon"), len(h)
    u, z, beta, alpha = projections(m, b, h, n_k, n_v, s)
    taps = m.weight(b + "ssm_conv1d.weight")
    y, _ = short_conv(u, taps, np.zeros((taps.shape[1] - 1, u.shape[1]), u.dtype))

    q, k, v = np.split(y, [n_k * s, 2 * n_k * s], axis=1)
    of = key_heads(n_k, n_v)
    q = l2_norm(q.reshape(n, n_k, s), eps)[:, of] * h.dtype.type(1 / np.sqrt(s))
    k = l2_norm(k.reshape(n, n_k, s), eps)[:, of]
    v = v.reshape(n, n_v, s)
    g = m.weight(b + "ssm_a") * softplus(alpha + m.weight(b + "ssm_dt.bias"))
    start = np.zeros((n_v, s, s), h.dtype)
    walk = (q, k, v, g, sigmoid(beta), start)
    o, _ = delta_chunks(*walk, chunk) if chunk else delta_scan(*walk)

    o = rms_norm(o, m.weight(b + "ssm_norm.weight"), eps) * silu(z.reshape(n, n_v, s))
    return m.linear(o.reshape(n, -1), b + "ssm_out")


def gated_attention(m, b, h, heads, kv_heads, rope):
    eps, dim, n = m.key("attention.layer_norm_rms_epsilon"), m.key("attention.key_length"), len(h)
    q, gate = np.split(m.linear(h, b + "attn_q").reshape(n, heads, 2 * dim), 2, axis=2)
    k = m.linear(h, b + "attn_k").reshape(n, kv_heads, dim)
    v = m.linear(h, b + "attn_v").reshape(n, kv_heads, dim)
    q = rope(rms_norm(q, m.weight(b + "attn_q_norm.weight"), eps), "neox")
    k = rope(rms_norm(k, m.weight(b + "attn_k_norm.weight"), eps), "neox")
    a = attention(q, m.cached(k), m.cached(v), 1 / np.sqrt(dim))
    return m.linear(a * sigmoid(gate.reshape(n, -1)), b + "attn_output")


def recurrent_layers(m):
    """One flag per layer, without the blocks behind them that predict further tokens."""
    n_layers = m.key("block_count") - m.key("nextn_predict_layers", 0)
    flags, interval = m.key("attention.recurrent_layers"), m.key("full_attention_interval", 4)
    if flags is not None:
        return flags[:n_layers]
    return [(i + 1) % interval != 0 for i in range(n_layers)]


def forward(m, tokens, key_heads, feed_forward, chunk=0):
    """`chunk` tokens of the recurrence at a time; 0: token by token."""
    heads, kv_heads = m.per_layer("attention.head_count"), m.per_layer("attention.head_count_kv")
    eps = m.key("attention.layer_norm_rms_epsilon")
    n_rot = m.key("rope.dimension_count", m.key("attention.key_length"))
    rope = Rope(m.file, m.arch, n_rot, m.key("rope.freq_base", 10000.0))

    x = m.weight("token_embd.weight")[tokens]
    for i, recurrent in enumerate(recurrent_layers(m)):
        b = f"blk.{i}."
        h = rms_norm(x, m.weight(b + "attn_norm.weight"), eps)
        x = x + (delta_net(m, b, h, key_heads, chunk) if recurrent
                 else gated_attention(m, b, h, heads[i], kv_heads[i], rope))
        h = rms_norm(x, m.weight(b + "post_attention_norm.weight"), eps)
        x = x + feed_forward(m, b, h)

    return m.logits(rms_norm(x, m.weight("output_norm.weight"), eps))


# ---------------------------------------------------------------------------------- self-check

def random_walk(n, heads, s, generator):
    """Input as a layer makes it: unit keys, some close to each other, decays of all sizes."""
    q, k, v = generator.standard_normal((3, n, heads, s))
    k[n // 2:] += 2 * k[0]
    step = np.exp(generator.uniform(np.log(1e-3), np.log(2), (n, heads)))
    g = -generator.uniform(0, 16, heads) * step
    beta = sigmoid(2 * generator.standard_normal((n, heads)))
    state = generator.standard_normal((heads, s, s))
    return l2_norm(q, 0) / np.sqrt(s), l2_norm(k, 0), v, g, beta, state


def off(ours, exact):
    """The larger of the relative distances of outputs and state."""
    return max(np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(ours, exact))


SHAPES = ((1, 2, 8), (2, 2, 32), (63, 3, 16), (64, 3, 32), (200, 4, 32), (333, 2, 128))


def self_check():
    """How far the chunked form may be off in double is measured: four times what it is off in
    single, times 2^-29, by which roundings shrink and mistakes do not. Cutting the sequence in two
    changes no sum of the token recurrence, so not one bit."""
    generator, good = np.random.Generator(np.random.SFC64(1)), True
    for n, heads, s in SHAPES:
        walk = random_walk(n, heads, s, generator)
        single = [x.astype(np.float32) for x in walk]
        exact = delta_scan(*walk)
        for size in (16, 64):
            found = off(delta_chunks(*walk, size), exact)
            most = 4 * off(delta_chunks(*single, size), exact) * 2.0 ** -29
            good &= found <= most
            print(f"{n} tokens, {heads} heads of {s}, chunks of {size}: off by {found:.1e}, "
                  f"allowed {most:.1e}: {'agrees' if found <= most else 'DIFFERS'}")
        cut = n // 3
        head, state = delta_scan(*(x[:cut] for x in walk[:5]), walk[5])
        tail, state = delta_scan(*(x[cut:] for x in walk[:5]), state)
        same = np.array_equal(np.concatenate([head, tail]), exact[0])
        same = same and np.array_equal(state, exact[1])
        good &= same
        print(f"{n} tokens, cut behind {cut}: {'equal' if same else 'DIFFERS'}")
    return good


if __name__ == "__main__":
    raise SystemExit(0 if self_check() else 1)
