#!/usr/bin/env python3
"""Gemma 3 (text) in numpy: gemma3.py -m FILE --tokens 1,2,3 [--all]. gemma3.md tells it in words."""
import numpy as np

from parts import Rope, attention, gelu_tanh, main, rms_norm


def sliding_layers(m, window):
    pattern = m.key("attention.sliding_window_pattern", 6)
    layers = range(m.key("block_count"))
    if not window:
        return [False for _ in layers]
    if isinstance(pattern, list):
        return [bool(p) for p in pattern]
    return [pattern == 0 or i % pattern != pattern - 1 for i in layers]


def forward(m, tokens):
    width, n_layers = m.key("embedding_length"), m.key("block_count")
    heads, kv_heads = m.per_layer("attention.head_count"), m.per_layer("attention.head_count_kv")
    eps = m.key("attention.layer_norm_rms_epsilon")
    dim = m.key("attention.key_length", width // heads[0])
    dim_v = m.key("attention.value_length", width // heads[0])
    window = m.key("attention.sliding_window", 0)
    slides = sliding_layers(m, window)
    n_rot = m.key("rope.dimension_count", dim)
    full = Rope(m.file, m.arch, n_rot, m.key("rope.freq_base", 10000.0))
    near = Rope(m.file, m.arch, n_rot, m.key("rope.freq_base_swa", 10000.0), scaled=False)
    scale = 1 / np.sqrt(width / heads[0] if n_layers == 62 else dim)
    n = len(tokens)

    x = m.weight("token_embd.weight")[tokens] * m.dtype(np.sqrt(width))
    for i in range(n_layers):
        b = f"blk.{i}."
        rope = near if slides[i] else full
        h = rms_norm(x, m.weight(b + "attn_norm.weight"), eps)
        q = m.linear(h, b + "attn_q").reshape(n, heads[i], dim)
        k = m.linear(h, b + "attn_k").reshape(n, kv_heads[i], dim)
        v = m.linear(h, b + "attn_v").reshape(n, kv_heads[i], dim_v)
        q = rope(rms_norm(q, m.weight(b + "attn_q_norm.weight"), eps), "neox")
        k = rope(rms_norm(k, m.weight(b + "attn_k_norm.weight"), eps), "neox")
        a = attention(q, m.cached(k), m.cached(v), scale, window if slides[i] else 0)
        o = m.linear(a, b + "attn_output")
        x = x + rms_norm(o, m.weight(b + "post_attention_norm.weight"), eps)

        h = rms_norm(x, m.weight(b + "ffn_norm.weight"), eps)
        g = gelu_tanh(m.linear(h, b + "ffn_gate")) * m.linear(h, b + "ffn_up")
        o = m.linear(g, b + "ffn_down")
        x = x + rms_norm(o, m.weight(b + "post_ffw_norm.weight"), eps)

    logits = m.logits(rms_norm(x, m.weight("output_norm.weight"), eps))
    cap = m.key("final_logit_softcapping", 0)
    return m.dtype(cap) * np.tanh(logits / m.dtype(cap)) if cap else logits


if __name__ == "__main__":
    main(forward, __doc__)
