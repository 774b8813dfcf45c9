"""A small GGUF (version 3) writer for tools and tests: the standard library and numpy only.

    writer = Writer("model.gguf")
    writer.string("general.architecture", "llama")
    writer.u32("llama.block_count", 2)
    writer.tensor("output_norm.weight", F32, (64,), lambda: [norm])
    writer.finish()

Keys and tensors appear in the file in the order of the calls. Tensor data is asked for only while
the file is written, one tensor after the other, so a model need not fit the memory. `shape` is in
the order of the file: the contiguous dimension first.

quantise(type, rows) turns rows of float32 into the bytes of a type:
  F32 F16   the values themselves, rounded to nearest even
  Q8_0      blocks of 32: d = max|x| / 127 as f16, q = round(x / d), halves away from zero
  Q4_0      blocks of 32: d = m / -8 as f16, m the value of largest magnitude with its sign;
            q = floor(x / d + 8.5), at most 15; byte j holds values j (low) and j + 16 (high)
"""
import struct

import numpy as np

# Tensor types: (id, values in a block, bytes of a block, name).
F32 = (0, 1, 4, "f32")
F16 = (1, 1, 2, "f16")
Q4_0 = (2, 32, 18, "q4_0")
Q8_0 = (8, 32, 34, "q8_0")
TYPES = {t[3]: t for t in (F32, F16, Q4_0, Q8_0)}
# general.file_type of a file that is mostly of one type.
FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 7}

# Value types of keys: id and struct format.
VALUES = {
    "u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"),
    "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "?"), "string": (8, None), "u64": (10, "Q"),
    "i64": (11, "q"), "f64": (12, "d"),
}
ARRAY = 9


def text_bytes(text):
    raw = text.encode("utf-8") if isinstance(text, str) else bytes(text)
    return struct.pack("<Q", len(raw)) + raw


def tensor_bytes(tensor_type, shape):
    _, block_values, block_bytes, name = tensor_type
    if shape[0] % block_values != 0:
        raise ValueError(f"rows of {shape[0]} values do not fit {name} blocks of {block_values}")
    size = shape[0] // block_values * block_bytes
    for n in shape[1:]:
        size *= n
    return size


class Writer:
    def __init__(self, path, alignment=32, version=3):
        self.path = path
        self.alignment = alignment
        self.version = version
        self.pairs = []
        self.tensors = []
        if alignment != 32:
            self.u32("general.alignment", alignment)

    def value(self, key, type_name, value):
        type_id, layout = VALUES[type_name]
        body = text_bytes(value) if layout is None else struct.pack("<" + layout, value)
        self.pairs.append(text_bytes(key) + struct.pack("<I", type_id) + body)

    def array(self, key, type_name, values):
        type_id, layout = VALUES[type_name]
        values = list(values)
        if layout is None:
            body = b"".join(map(text_bytes, values))
        else:
            body = struct.pack(f"<{len(values)}{layout}", *values)
        head = struct.pack("<IIQ", ARRAY, type_id, len(values))
        self.pairs.append(text_bytes(key) + head + body)

    def u32(self, key, value):
        self.value(key, "u32", value)

    def f32(self, key, value):
        self.value(key, "f32", value)

    def bool(self, key, value):
        self.value(key, "bool", value)

    def string(self, key, value):
        self.value(key, "string", value)

    def tensor(self, name, tensor_type, shape, make):
        """`make()` gives an iterable of arrays or bytes: the payload in pieces."""
        self.tensors.append((name, tensor_type, tuple(shape), make))

    def round_up(self, n):
        return (n + self.alignment - 1) // self.alignment * self.alignment

    def finish(self):
        head = [struct.pack("<4sIQQ", b"GGUF", self.version, len(self.tensors), len(self.pairs))]
        head += self.pairs
        offset = 0
        for name, tensor_type, shape, _ in self.tensors:
            head.append(text_bytes(name) + struct.pack(f"<I{len(shape)}q", len(shape), *shape)
                        + struct.pack("<IQ", tensor_type[0], offset))
            offset += self.round_up(tensor_bytes(tensor_type, shape))
        head = b"".join(head)
        with open(self.path, "wb") as out:
            out.write(head)
            out.write(b"\0" * (self.round_up(len(head)) - len(head)))
            for tensor in self.tensors:
                self._write_payload(out, tensor)

    def _write_payload(self, out, tensor):
        name, tensor_type, shape, make = tensor
        size = 0
        for piece in make():
            raw = piece.tobytes() if isinstance(piece, np.ndarray) else piece
            out.write(raw)
            size += len(raw)
        if size != tensor_bytes(tensor_type, shape):
            raise ValueError(f"{name}: {size} bytes, not {tensor_bytes(tensor_type, shape)}")
        out.write(b"\0" * (self.round_up(size) - size))


def _blocks(rows):
    return np.ascontiguousarray(rows, dtype=np.float32).reshape(-1, 32)


def _one_over(scale):
    inverse = np.zeros_like(scale)
    np.divide(np.float32(1), scale, out=inverse, where=scale != 0)
    return inverse


def _quantise_q8_0(rows):
    x = _blocks(rows)
    scale = np.abs(x).max(axis=1) / np.float32(127)
    scaled = x * _one_over(scale)[:, None]
    whole = np.trunc(scaled)
    # Half away from zero; scaled - whole is exact in float32.
    whole += np.sign(scaled) * (np.abs(scaled - whole) >= np.float32(0.5))
    out = np.empty((len(x), 34), np.uint8)
    out[:, :2] = scale.astype("<f2")[:, None].view(np.uint8)
    out[:, 2:] = whole.astype(np.int8).view(np.uint8)
    return out


def _quantise_q4_0(rows):
    x = _blocks(rows)
    largest = x[np.arange(len(x)), np.abs(x).argmax(axis=1)]
    scale = largest / np.float32(-8)
    q = np.minimum(15, (x * _one_over(scale)[:, None] + np.float32(8.5)).astype(np.int8))
    q = q.astype(np.uint8)
    out = np.empty((len(x), 18), np.uint8)
    out[:, :2] = scale.astype("<f2")[:, None].view(np.uint8)
    out[:, 2:] = q[:, :16] | (q[:, 16:] << 4)
    return out


def quantise(tensor_type, rows):
    if tensor_type is F32:
        return rows.astype("<f4")
    if tensor_type is F16:
        return rows.astype("<f2")
    return _quantise_q8_0(rows) if tensor_type is Q8_0 else _quantise_q4_0(rows)
