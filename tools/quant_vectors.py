#!/usr/bin/env python3
"""Writes tests/unit/quant/vectors.h: blocks of random bytes and what they decode to.

An independent decoder is the oracle: the Python package `gguf` (any version that has all types
below). Usage: quant_vectors.py OUTPUT. The numbers depend on the seed only, not on the version.
"""
import struct
import sys

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K",
         "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]
# Where the f16 fields of a block are: random bytes there would make most values infinite or NaN.
F16_FIELDS = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q2_K": [80, 82],
              "Q3_K": [108], "Q6_K": [208], "F16": [], "BF16": [], "MXFP4": []}


def random_blocks(rng, name, n_blocks, block_bytes):
    raw = rng.integers(0, 256, (n_blocks, block_bytes), dtype=numpy.uint8)
    for at in F16_FIELDS.get(name, [0]):
        for block in raw:
            scale = rng.normal(0.0, 0.05)
            block[at:at + 2] = numpy.frombuffer(struct.pack("<e", scale), dtype=numpy.uint8)
    if name == "MXFP4":
        raw[:, 0] = [0, 1, 2, 127][:n_blocks]       # denormal scales too
    return raw


def rows_of(values, form, per_row):
    for start in range(0, len(values), per_row):
        yield "        " + " ".join(form % v + "," for v in values[start:start + per_row])


def main():
    rng = numpy.random.default_rng(20240607)
    out = ["/* Made by tools/quant_vectors.py: stored blocks and their values as f32 bits. */",
           "#ifndef BT_TESTS_QUANT_VECTORS_H", "#define BT_TESTS_QUANT_VECTORS_H", ""]
    table = []
    for name in TYPES:
        type_id = GGMLQuantizationType[name]
        elems, block_bytes = GGML_QUANT_SIZES[type_id]
        n_blocks = 1 if elems == 256 else 4 if elems == 32 else 16
        raw = random_blocks(rng, name, n_blocks, block_bytes)
        values = quants.dequantize(raw, type_id).astype(numpy.float32).ravel()
        bits = values.view(numpy.uint32)
        lower = name.lower()
        out.append(f"static const uint8_t {lower}_bytes[] = {{")
        out += rows_of(raw.ravel().tolist(), "0x%02x", 14)
        out += ["};", f"static const uint32_t {lower}_values[] = {{"]
        out += rows_of(bits.tolist(), "0x%08x", 7)
        out += ["};", ""]
        table.append(f"    {{ BT_TYPE_{name}, {lower}_bytes, sizeof {lower}_bytes, {lower}_values, "
                     f"{len(bits)} }},")
    out += ["static const struct {", "    bt_type         type;", "    const uint8_t  *bytes;",
            "    size_t          n_bytes;", "    const uint32_t *values;", "    size_t          n;",
            "} VECTORS[] = {"] + table + ["};", "", "#endif"]
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
