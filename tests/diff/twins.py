#!/usr/bin/env python3
"""The engine against the numpy twins: twins.py BATON FOLDER VARIANT [--isa A,B]

Makes the variant's model in FOLDER and compares the logits after every token with those of
docs/models/FAMILY.py in double precision. How much may differ is not chosen but measured: four
times what the same twin loses in single precision. With keys and values rounded to f16, both sides
round; but a value that lies on the border between two halves may go either way, so what the
rounding itself changes is allowed on top.

Two more variants read the golden models, which FOLDER holds then:
  golden    the twins themselves against the references of tests/golden;
  rounding  quantised files: over all rows of the prompt, the engine must be nearer to exact
            arithmetic than a twin is whose activations are rounded to 8 bits in blocks of 32 with
            an f16 scale, the common way of engines.
"""
import argparse
import importlib
import json
import pathlib
import subprocess
import sys

import numpy as np

import variants
from parts import Model             # noqa: E402 (variants sets the path)

TIERS = ["ref", "avx2", "avx512", "avx512vnni", "neon", "dotprod", "i8mm"]
PLAIN = (0, 1, 30)                   # f32, f16, bf16: what they are multiplied with stays f32
SLOW = 1000                          # tokens from which on only the best tier is tried


def twin(path, tokens, dtype, kv):
    model = Model(path, dtype, kv)
    return importlib.import_module(model.arch).forward(model, tokens).astype(np.float64)


def engine(baton, path, tokens, *options):
    """Logits [positions, vocabulary], or None when the machine does not have the tier."""
    run = subprocess.run([baton, "logits", "-m", str(path), "--all", *options, "--tokens",
                          ",".join(map(str, tokens))], capture_output=True, text=True)
    if run.returncode != 0 and "does not have" in run.stderr:
        return None
    if run.returncode != 0:
        sys.exit(f"baton logits {' '.join(options)}: {run.stderr.strip()}")
    return np.array([row["logits"] for row in json.loads(run.stdout)["rows"]], float)


def differences(a, b):
    """Relative to the size of b's rows: of each row."""
    return np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)


def judge(what, ours, exact, allowed):
    """Every row within the allowance of the worst row, all of them within that of the whole."""
    found = differences(ours, exact)
    whole, most = np.sqrt(np.mean(found ** 2)), np.sqrt(np.mean(allowed ** 2))
    good = whole <= most and found.max() <= allowed.max()
    print(f"{what}: off by {whole:.2e} (worst row {found.max():.2e}), allowed {most:.2e} "
          f"({allowed.max():.2e}): {'agrees' if good else 'DIFFERS'}", flush=True)
    return good


def check_variant(baton, folder, name, tiers):
    path = folder / f"{name}.gguf"
    variants.make(name, path)
    vocab = Model(path).key("vocab_size")
    tokens = variants.tokens(name, vocab)
    exact = twin(path, tokens, np.float64, "f32")
    single = twin(path, tokens, np.float32, "f32")
    allowed = 4 * differences(single, exact)
    half = twin(path, tokens, np.float64, "f16")
    allowed_half = allowed + differences(half, exact)
    good, tried = True, 0
    for tier in tiers if len(tokens) < SLOW else ["best"]:
        isa = [] if tier == "best" else ["--isa", tier]
        ours = engine(baton, path, tokens, *isa, "-ctk", "f32", "-ctv", "f32")
        if ours is None:
            continue
        tried += 1
        good &= judge(f"{name} {tier}, f32 cache", ours, exact, allowed)
        ours = engine(baton, path, tokens, *isa, "-ctk", "f16", "-ctv", "f16")
        good &= judge(f"{name} {tier}, f16 cache", ours, half, allowed_half)
    path.unlink()
    if not tried:
        sys.exit("this machine has none of the tiers " + ",".join(tiers))
    return good


def check_golden(folder):
    """The twins themselves. A quantised file's exact reference is the dequantised one."""
    good = True
    for result in sorted(folder.glob("*.json")):
        reference = json.loads(result.read_text())
        exact = np.array([reference.get("logits_exact", reference["logits_last"])])
        most = np.sqrt(reference["nmse_max"])
        ours = twin(result.with_suffix(".gguf"), reference["tokens"], np.float64, "f32")[-1:]
        good &= judge(result.stem, ours, exact, np.array([most]))
    return good


def blocks_of_32(x):
    """q = round(x / d), d = largest / 127, kept as f16."""
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(axis=1, keepdims=True) / 127
    q = np.round(np.divide(blocks, d, out=np.zeros_like(blocks), where=d > 0))
    return (q * d.astype(np.float16)).reshape(x.shape)


def parts_of_16(x):
    """As docs/quants.md has it: the step largest / c in f32, with the best c of four."""
    parts = x.reshape(-1, 16)
    largest, best, least = np.abs(parts).max(axis=1, keepdims=True), 0.0, np.inf
    for c in (127, 126, 125, 124):
        step = (largest / c).astype(np.float32)
        q = np.rint(np.divide(parts * c, largest, out=np.zeros_like(parts), where=largest > 0))
        off = ((q * step - parts) ** 2).sum(axis=1, keepdims=True)
        best, least = np.where(off < least, q * step, best), np.minimum(off, least)
    return best.reshape(x.shape)


class RoundedModel(Model):
    """What a product with a quantised tensor reads is rounded."""

    def __init__(self, path, rounding, dtype=np.float64):
        super().__init__(path, dtype)
        self.rounding = rounding

    def read(self, x, name):
        plain = self.file.tensors[name][1] in PLAIN
        return x if plain else self.rounding(x).astype(self.dtype)


def rounded(path, tokens, dtype, rounding):
    """The twin, with or without (None) a rounding of activations."""
    model = RoundedModel(path, rounding, dtype) if rounding else Model(path, dtype)
    return importlib.import_module(model.arch).forward(model, tokens).astype(np.float64)


def check_rounding(baton, folder, tiers):
    good = True
    for result in sorted(folder.glob("tinyq-*.json")):
        path, tokens = result.with_suffix(".gguf"), json.loads(result.read_text())["tokens"]
        exact = twin(path, tokens, np.float64, "f32")
        most = np.mean(differences(rounded(path, tokens, np.float64, blocks_of_32), exact) ** 2)
        for tier in tiers:
            ours = engine(baton, path, tokens, "--isa", tier, "-ctk", "f32", "-ctv", "f32")
            if ours is None:
                continue
            found = np.mean(differences(ours, exact) ** 2)
            good &= found <= most
            print(f"{result.stem} {tier}: mean nmse to exact {found:.2e}, of the common rounding "
                  f"{most:.2e}: {'nearer' if found <= most else 'FARTHER'}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("baton")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("variant", choices=["golden", "rounding", *variants.VARIANTS])
    parser.add_argument("--isa", default=",".join(TIERS), help="tiers to try")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    tiers = options.isa.split(",")
    if options.variant == "golden":
        good = check_golden(options.folder)
    elif options.variant == "rounding":
        good = check_rounding(options.baton, options.folder, tiers)
    else:
        good = check_variant(options.baton, options.folder, options.variant, tiers)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
