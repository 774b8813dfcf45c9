#!/usr/bin/env python3
"""Models whose tensors are of all types at once: mixed_types.py BATON FOLDER [--isa A,B]

Published files mix types from tensor to tensor, within an attention layer's q, k and v too, and give
experts, embeddings and recurrent projections types of their own. The models here carry every type
that can be read: block types in turn over the matrices, plain ones over those whose rows are too
short for blocks, f16 and bf16 over the norms. Blocks are random bytes with scales that make the
values as large as a model's.

Without rounded activations (the reference tier, and every tier with --no-repack) the engine must
agree with the twin in double precision within four times what the twin loses in single; with them,
with the twin that rounds as docs/quants.md says, within four times what that one loses.
"""
import argparse
import pathlib
import sys

import numpy as np

import twins
import variants
from parts import Model             # noqa: E402 (variants sets the path)
import gguf_read                     # noqa: E402
import gguf_write as gw              # noqa: E402
import hybrid_twins                  # noqa: E402
import mkmodel                       # noqa: E402

# Per type: where its f16 scale stands, where the f16 that multiplies minima (None: none), and how
# many of the latter make up for one of the former when codes are random.
SCALES = {"Q4_0": (0, None, 0), "Q4_1": (0, 2, -7.5), "Q5_0": (0, None, 0), "Q5_1": (0, 2, -15.5),
          "Q8_0": (0, None, 0), "IQ4_NL": (0, None, 0), "Q2_K": (80, 82, 1.5),
          "Q3_K": (108, None, 0), "Q4_K": (0, 2, 7.5), "Q5_K": (0, 2, 15.5), "Q6_K": (208, None, 0),
          "IQ4_XS": (0, None, 0), "MXFP4": None}
NUMBERS = {name: number for number, (name, _, _) in gguf_read.TYPES.items()}
PLAIN = [gw.F32, gw.F16, variants.BF16]


def generator(name):
    return np.random.Generator(np.random.SFC64(list(name.encode())))


def with_scale(blocks, name, d):
    if SCALES[name] is None:        # an exponent, and one of its neighbours in every second block
        blocks[:, 0] = 128 + round(np.log2(d)) + np.arange(len(blocks)) % 2
        return blocks
    at, at_minimum, share = SCALES[name]
    blocks[:, at:at + 2] = np.array([d], "<f2").view(np.uint8)
    if at_minimum is not None:
        blocks[:, at_minimum:at_minimum + 2] = np.array([share * d], "<f2").view(np.uint8)
    return blocks


def random_tensor(tensor, type_name, shape):
    """Blocks of random bytes whose values have the spread of the tensor's inputs."""
    number = NUMBERS[type_name]
    _, values, size = gguf_read.TYPES[number]
    n = int(np.prod(shape)) // values
    blocks = generator(tensor).integers(0, 256, (n, size), np.uint8)
    unit = gguf_read.decode(number, with_scale(blocks, type_name, 1 / 64)).std() * 64
    with_scale(blocks, type_name, 1 / (unit * np.sqrt(shape[0])))
    return ((number, values, size, type_name.lower()), shape, blocks.tobytes())


def plain_tensor(kind, shape, raw):
    values = np.frombuffer(raw, "<f4")
    if kind is gw.F32:
        return (kind, shape, raw)
    return (kind, shape, values.astype("<f2").tobytes() if kind is gw.F16 else
            variants.bf16(values))


def mix(tensors, keys):
    """Every type in turn: of matrices with whole blocks, and of everything else."""
    types, n_blocks, n_plain = list(SCALES), 0, 0
    for name, (_, shape, raw) in list(tensors.items()):
        if len(shape) > 1 and shape[0] % 256 == 0:
            tensors[name] = random_tensor(name, types[n_blocks % len(types)], shape)
            n_blocks += 1
        else:
            tensors[name] = plain_tensor(PLAIN[n_plain % 3], shape, raw)
            n_plain += 1
    assert n_blocks > len(types)


MODELS = {
    "mixed-llama-experts": (dict(mkmodel.TINIES["tiny-llama"], width=256, layers=3, experts=dict(
        n=4, used=2, ff=256, shared_ff=0)), [mix]),
    "mixed-qwen35": (mkmodel.wider(mkmodel.TINIES["tiny-qwen35-v2k"]), [mix]),
    "mixed-qwen35moe": (mkmodel.wider(mkmodel.TINIES["tiny-qwen35moe"]), [mix]),
    "mixed-qwen35moe-merged": (mkmodel.wider(mkmodel.TINIES["tiny-qwen35moe"]),
                               [hybrid_twins.merge_experts, mix]),
    "mixed-qwen3next": (mkmodel.wider(mkmodel.TINIES["tiny-qwen35moe"]),
                        [hybrid_twins.as_qwen3next, hybrid_twins.one_projection, mix]),
}
PROMPT = 40


def check(baton, folder, name, tiers):
    config, edits = MODELS[name]
    plain, path = folder / f"{name}.plain.gguf", folder / f"{name}.gguf"
    writer = gw.Writer(plain)
    mkmodel.Model(name, config, gw.F32, writer).build()
    writer.finish()
    variants.rewrite(plain, path, variants.both(*edits))
    plain.unlink()
    tokens = generator(name).integers(0, config["vocab"], PROMPT).tolist()
    kinds = {gguf_read.TYPES[kind][0] for _, kind, _ in Model(path).file.tensors.values()}
    assert kinds == {t[0] for t in gguf_read.TYPES.values()}, kinds

    good = True
    for rounding in (None, twins.parts_of_16):
        exact = twins.rounded(path, tokens, np.float64, rounding)
        lost = 4 * twins.differences(twins.rounded(path, tokens, np.float32, rounding), exact)
        for tier in tiers:
            if rounding and tier == "ref":
                continue
            options = ["--isa", tier, "-ctk", "f32", "-ctv", "f32"]
            ours = twins.engine(baton, path, tokens, *options,
                                *([] if rounding else ["--no-repack"]))
            if ours is not None:
                what = "rounded activations" if rounding else "exact"
                good &= twins.judge(f"{name} {tier}, {what}", ours, exact, lost)
    path.unlink()
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("baton")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--isa", default=",".join(twins.TIERS), help="tiers to try")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    done = [check(options.baton, options.folder, name, options.isa.split(",")) for name in MODELS]
    sys.exit(0 if all(done) else 1)


if __name__ == "__main__":
    main()
