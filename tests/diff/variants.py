"""Tiny models that the golden files do not cover, for twins.py: make(NAME, FILE) writes one.

Most are tools/mkmodel.py with other options; some of those are then edited tensor by tensor.
"""
import pathlib
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "docs" / "models"), str(ROOT / "tools")]

import gguf_read                     # noqa: E402
import gguf_write as gw              # noqa: E402

BF16 = (30, 1, 2, "bf16")
TYPES = {t[0]: t for t in (gw.F32, gw.F16, gw.Q4_0, gw.Q8_0, BF16)}
TYPE_NAMES = {number: name for name, (number, _) in gw.VALUES.items()}


# --------------------------------------------------------------------------------- edits
# Each takes tensors (name: (type, shape as in the file, bytes)) and keys (name: (type name or
# ("array", type name), value)), and changes them in place.

def fuse_qkv(tensors, keys):
    for name in [n for n in tensors if n.endswith("attn_q.weight")]:
        parts = [tensors.pop(name.replace("attn_q", "attn_" + p)) for p in "qkv"]
        shape = (parts[0][1][0], sum(p[1][1] for p in parts))
        raw = b"".join(p[2] for p in parts)
        tensors[name.replace("attn_q", "attn_qkv")] = (parts[0][0], shape, raw)


def some_values(n):
    values = np.random.Generator(np.random.SFC64(7)).standard_normal(n, dtype=np.float32)
    return (gw.F32, (n,), (values / 5).tobytes())


def biases(*parts):
    """One bias per output of these parts of every layer."""
    def edit(tensors, keys):
        for name in list(tensors):
            if name.split(".")[2:3] and name.split(".")[2] in parts and name.endswith(".weight"):
                tensors[name.replace(".weight", ".bias")] = some_values(tensors[name][1][1])
    return edit


def output_bias(tensors, keys):
    tensors["output.bias"] = some_values(tensors["token_embd.weight"][1][1])


def bf16(values):
    bits = values.astype("<f4").view("<u4")
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def mix_types(tensors, keys):
    """f16 and bf16 in turn, norms and embeddings too."""
    for i, (name, (kind, shape, raw)) in enumerate(tensors.items()):
        if kind is gw.F32 and i % 3 != 2:
            values = np.frombuffer(raw, "<f4")
            tensors[name] = ((gw.F16, shape, values.astype("<f2").tobytes()) if i % 3 == 0
                             else (BF16, shape, bf16(values)))


def pattern_array(*flags):
    def edit(tensors, keys):
        keys["gemma3.attention.sliding_window_pattern"] = (("array", "bool"), list(flags))
    return edit


def longrope(tensors, keys):
    keys["llama.rope.scaling.type"] = ("string", "longrope")
    keys["llama.rope.scaling.original_context_length"] = ("u32", 64)
    keys["llama.rope.scaling.attn_factor"] = ("f32", 1.19)
    for name, most in (("long", 8), ("short", 2)):
        factors = np.linspace(1, most, 16).astype("<f4")
        tensors[f"rope_factors_{name}.weight"] = (gw.F32, (16,), factors.tobytes())


def both(*edits):
    def edit(tensors, keys):
        for e in edits:
            e(tensors, keys)
    return edit


def rewrite(source, target, edit):
    file = gguf_read.File(source)
    keys = {}
    for name, value in file.keys.items():
        kind = file.types[name]
        keys[name] = ((("array", TYPE_NAMES[kind[1]]) if isinstance(kind, tuple)
                       else TYPE_NAMES[kind]), value)
    tensors = {}
    for name in file.tensors:
        kind, shape, raw = file.raw(name)
        tensors[name] = (TYPES[kind], shape, raw.tobytes())
    edit(tensors, keys)
    out = gw.Writer(target)
    for name, (kind, value) in keys.items():
        if isinstance(kind, tuple):
            out.array(name, kind[1], value)
        else:
            out.value(name, kind, value)
    for name, (kind, shape, raw) in tensors.items():
        out.tensor(name, kind, shape, lambda raw=raw: [raw])
    out.finish()


# ------------------------------------------------------------------------------ the models

# name: (configuration, options of mkmodel.py, edit or None, tokens in the prompt)
VARIANTS = {
    "llama-plain": ("tiny-llama", "", None, 100),
    "llama-heads-per-layer": ("tiny-llama", "--heads 4,8,2 --kv-heads 2,4,1 --ff 256,192,320",
                              None, 70),
    "llama-one-key-head": ("tiny-llama", "--heads 6 --kv-heads 1 --head-dim 16", None, 70),
    "llama-odd-sizes": ("tiny-llama", "--width 136 --ff 200 --heads 3 --kv-heads 3 --head-dim 40"
                        " --value-dim 24 --n-rot 40 --vocab 515", None, 70),
    "llama-fused": ("tiny-llama", "", fuse_qkv, 70),
    "llama-biases": ("tiny-llama", "", both(output_bias, biases("attn_q", "attn_k", "attn_v",
                     "attn_output", "ffn_gate", "ffn_up", "ffn_down")), 70),
    "llama-fused-bias": ("tiny-llama", "", both(fuse_qkv, biases("attn_qkv")), 70),
    "llama-mixed-types": ("tiny-llama", "", mix_types, 70),
    "llama-linear": ("tiny-llama", "--rope-scaling linear:4", None, 200),
    "llama-yarn": ("tiny-llama", "--rope-scaling yarn:4:128 --context 512", None, 300),
    "llama-yarn-attn": ("tiny-llama", "--rope-scaling yarn:8:256"
                        " --set llama.rope.scaling.attn_factor=f32:0.9", None, 200),
    "llama-llama3": ("tiny-llama", "--rope-scaling llama3:8:1:4:64 --rope-base 5e5", None, 300),
    "llama-longrope": ("tiny-llama", "", longrope, 200),
    "llama-longrope-at-border": ("tiny-llama", "", longrope, 64),
    "llama-longrope-short": ("tiny-llama", "", longrope, 40),
    "llama-long": ("tiny-llama", "--layers 2", None, 2100),
    "qwen2-bias": ("tiny-qwen2", "", output_bias, 100),
    "qwen2-untied": ("tiny-qwen2", "--untied", output_bias, 100),
    "qwen2-yarn": ("tiny-qwen2", "--rope-scaling yarn:4:64", None, 200),
    "qwen3-wide-heads": ("tiny-qwen3", "--head-dim 96 --heads 5 --kv-heads 1", None, 100),
    "qwen3-yarn": ("tiny-qwen3", "--rope-scaling yarn:4:128", None, 200),
    "gemma3-window": ("tiny-gemma3", "", None, 300),
    "gemma3-softcap": ("tiny-gemma3", "--softcap 2.5 --window 16", None, 100),
    "gemma3-linear": ("tiny-gemma3", "--rope-scaling linear:8 --window 32 --period 3", None, 200),
    "gemma3-yarn-attn": ("tiny-gemma3", "--rope-scaling yarn:4:64 --window 8"
                         " --set gemma3.rope.scaling.attn_factor=f32:1.1", None, 200),
    "gemma3-flags": ("tiny-gemma3", "--window 20", pattern_array(False, True, True, False), 100),
    "gemma3-no-window": ("tiny-gemma3", "--window 0", None, 100),
    "gemma3-62-layers": ("tiny-gemma3", "--layers 62 --width 96 --ff 64 --heads 2 --kv-heads 1"
                         " --head-dim 32 --period 6 --vocab 300", None, 80),
}


def make(name, path):
    config, options, edit, _ = VARIANTS[name]
    plain = path if edit is None else path.with_suffix(".plain")
    subprocess.run([sys.executable, str(ROOT / "tools" / "mkmodel.py"), config, str(plain),
                    "--name", name, *options.split()], check=True, stdout=subprocess.DEVNULL)
    if edit is not None:
        rewrite(plain, path, edit)
        plain.unlink()


def tokens(name, vocab):
    generator = np.random.Generator(np.random.SFC64(len(name)))
    return generator.integers(0, vocab, VARIANTS[name][3]).tolist()
