#!/usr/bin/env python3
"""Qwen3 (dense) in numpy: qwen3.py -m FILE --tokens 1,2,3 [--all]. qwen3.md tells it in words."""
import numpy as np

from parts import Rope, attention, dense, main, rms_norm


def forward(m, tokens, feed_forward=dense):
    heads, kv_heads = m.per_layer("attention.head_count"), m.per_layer("attention.head_count_kv")
    eps = m.key("attention.layer_norm_rms_epsilon")
    dim = m.key("attention.key_length", m.key("embedding_length") // heads[0])
    dim_v = m.key("attention.value_length", m.key("embedding_length") // heads[0])
    rope = Rope(m.file, m.arch, dim, m.key("rope.freq_base", 10000.0))
    n = len(tokens)

    x = m.weight("token_embd.weight")[tokens]
    for i in range(m.key("block_count")):
        b = f"blk.{i}."
        h = rms_norm(x, m.weight(b + "attn_norm.weight"), eps)
        q = m.linear(h, b + "attn_q").reshape(n, heads[i], dim)
        k = m.linear(h, b + "attn_k").reshape(n, kv_heads[i], dim)
        v = m.linear(h, b + "attn_v").reshape(n, kv_heads[i], dim_v)
        q = rope(rms_norm(q, m.weight(b + "attn_q_norm.weight"), eps), "neox")
        k = rope(rms_norm(k, m.weight(b + "attn_k_norm.weight"), eps), "neox")
        a = attention(q, m.cached(k), m.cached(v), 1 / np.sqrt(dim))
        x = x + m.linear(a, b + "attn_output")

        h = rms_norm(x, m.weight(b + "ffn_norm.weight"), eps)
        x = x + feed_forward(m, b, h)

    return m.logits(rms_norm(x, m.weight("output_norm.weight"), eps))


if __name__ == "__main__":
    main(forward, __doc__)
