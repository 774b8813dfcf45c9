"""The mathematics that the twins share, and their command line.

Everything works on whole arrays [positions, ...] in the precision of the weights given to it
(float64, or float32 to see how much rounding alone can change). Angles are always double, and their
frequencies always rounded to float32, as the engine does.
"""
import argparse
import json

import numpy as np

import gguf_read


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps)) * weight


def silu(x):
    with np.errstate(over="ignore"):        # exp(-x) is infinite for very negative x; x / inf is 0
        return x / (1 + np.exp(-x))


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def gelu_tanh(x):
    t = x.dtype.type
    return t(0.5) * x * (1 + np.tanh(t(np.sqrt(2 / np.pi)) * (x + t(0.044715) * x * x * x)))


class Rope:
    """Angles per position. docs/models/rope.md has the formulas."""

    def __init__(self, file, arch, n_rot, base, scaled=True):
        def key(name, fallback):
            return file.get(f"{arch}.rope.{name}", fallback)
        pair = np.arange(n_rot // 2)
        f = float(base) ** (-2.0 * pair / n_rot)
        kind = key("scaling.type", "linear")
        factor = key("scaling.factor", key("scale_linear", 0.0)) or 1.0
        factor = 1.0 if kind == "none" else factor
        context = file[f"{arch}.context_length"]
        original = key("scaling.original_context_length", context)
        divide = "rope_freqs.weight"
        if kind == "longrope":
            divide = "rope_factors_short.weight"
        self.magnitude = key("scaling.attn_factor", 1.0)
        keeps = 0.0
        if scaled and kind == "yarn":
            keeps = self.yarn_keeps(pair, n_rot, base, original)
            self.magnitude *= 1 + 0.1 * np.log(factor)

        def frequencies(divide):
            g = f / file.tensor(divide) if divide in file else f
            g = g / factor * (1 - keeps) + g * keeps if scaled else g
            return g.astype(np.float32).astype(np.float64)
        self.frequencies = self.long_frequencies = frequencies(divide)
        self.long_above = original
        if kind == "longrope" and context > original:
            self.long_frequencies = frequencies("rope_factors_long.weight")

    @staticmethod
    def yarn_keeps(pair, n_rot, base, original):
        """1 where a pair turns often within the original context, 0 where hardly once."""
        def pair_of(turns):
            return n_rot * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base))
        low = max(0.0, np.floor(pair_of(32)))
        high = min(n_rot - 1.0, np.ceil(pair_of(1)))
        return 1 - np.clip((pair - low) / max(0.001, high - low), 0, 1)

    def __call__(self, x, style):
        """x: [positions, heads, width]. "norm" turns neighbours, "neox" the two halves."""
        n = len(self.frequencies)
        frequencies = self.frequencies if len(x) <= self.long_above else self.long_frequencies
        angle = np.arange(len(x))[:, None, None] * frequencies
        cos = (np.cos(angle) * self.magnitude).astype(x.dtype)
        sin = (np.sin(angle) * self.magnitude).astype(x.dtype)
        y = x.copy()
        first, second = ((slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if style == "norm"
                         else (slice(0, n), slice(n, 2 * n)))
        a, b = x[..., first], x[..., second]
        y[..., first] = a * cos - b * sin
        y[..., second] = a * sin + b * cos
        return y


def attention(q, k, v, scale, window=0):
    """q: [positions, heads, width]; k, v: [positions, key heads, width]. Query head h looks at key
    head h // (heads / key heads), at its own position and those before it, `window` in all."""
    n, heads = q.shape[:2]
    each = heads // k.shape[1]
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    hidden = (distance < 0) | ((distance >= window) if window else False)
    y = np.empty((n, heads, v.shape[2]), q.dtype)
    for h in range(heads):
        score = q.dtype.type(scale) * (q[:, h] @ k[:, h // each].T)
        score[hidden] = -np.inf
        score = np.exp(score - score.max(axis=1, keepdims=True))
        y[:, h] = (score / score.sum(axis=1, keepdims=True)) @ v[:, h // each]
    return y.reshape(n, -1)


def dense(m, b, h):
    """The feed-forward block most families have, of block b."""
    return m.linear(silu(m.linear(h, b + "ffn_gate")) * m.linear(h, b + "ffn_up"), b + "ffn_down")


class Model:
    """A file, a precision, and what keys and values are rounded to between layers."""

    def __init__(self, path, dtype=np.float64, kv="f32"):
        self.file = gguf_read.File(path)
        self.arch = self.file["general.architecture"]
        self.dtype = dtype
        self.kv = kv

    def key(self, name, fallback=None):
        return self.file.get(f"{self.arch}.{name}", fallback)

    def per_layer(self, name, fallback=None):
        value = self.key(name, fallback)
        return value if isinstance(value, list) else [value] * self.key("block_count")

    def weight(self, name):
        return self.file.tensor(name, self.dtype)

    def read(self, x, name):
        """x as a product with this tensor reads it: as it is. Tests that study how engines round
        their activations put something else here."""
        return x

    def linear(self, x, name):
        """x W^T, and the bias if the file has one."""
        y = self.read(x, name + ".weight") @ self.weight(name + ".weight").T
        return y + self.weight(name + ".bias") if name + ".bias" in self.file else y

    def cached(self, x):
        """Keys or values as the cache gives them back."""
        return x if self.kv == "f32" else x.astype(np.float16).astype(self.dtype)

    def logits(self, x):
        name = "output" if "output.weight" in self.file else "token_embd"
        y = self.linear(x, name)
        if name == "token_embd" and "output.bias" in self.file:
            y = y + self.weight("output.bias")
        return y


def main(forward, about):
    """Runs `forward(model, tokens)` -> logits [positions, vocabulary] and prints what `baton logits`
    prints."""
    parser = argparse.ArgumentParser(description=about.split("\n\n")[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--tokens", required=True, help="ids, separated by commas")
    parser.add_argument("--all", action="store_true", help="logits after every token")
    parser.add_argument("--float32", action="store_true", help="in single precision")
    parser.add_argument("--kv", choices=["f32", "f16"], default="f32",
                        help="round keys and values to this type")
    options = parser.parse_args()
    model = Model(options.model, np.float32 if options.float32 else np.float64, options.kv)
    tokens = [int(t) for t in options.tokens.split(",")]
    logits = forward(model, tokens)
    first = 0 if options.all else len(tokens) - 1
    print(json.dumps({"n_vocab": logits.shape[1],
                      "rows": [{"position": p, "logits": logits[p].tolist()}
                               for p in range(first, len(tokens))]}))
