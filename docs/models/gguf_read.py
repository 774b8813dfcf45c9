"""Reads GGUF files (version 2 and 3) for the numpy twins: keys, tensors, and every type as floats.

    model = File("model.gguf")
    model["llama.block_count"]          a key's value; model.get(key, fallback)
    model.tensor("output_norm.weight")  float64 array, numpy's order: rows first
    model.raw("output_norm.weight")     (type id, shape as in the file, bytes)

Written to be obviously right, not to be fast or safe: files are trusted here. It shares no code
with src/gguf and src/quant, which are tested against it.
"""
import struct

import numpy as np

# id: (name, values in a block, bytes of a block)
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136), 30: ("BF16", 1, 2), 39: ("MXFP4", 32, 17),
}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class File:
    def __init__(self, path):
        self.bytes = np.memmap(path, np.uint8, "r")
        self.at = 0
        magic, version, n_tensors, n_keys = self._read("4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"{path}: not a GGUF file of version 2 or 3")
        self.types, self.keys = {}, {}
        for _ in range(n_keys):
            name = self._string().decode()
            self.types[name], self.keys[name] = self._value(self._read("I")[0])
        self.tensors = {}
        for _ in range(n_tensors):
            name = self._string().decode()
            shape = self._read(f"{self._read('I')[0]}Q")
            self.tensors[name] = (shape, *self._read("IQ"))
        align = self.get("general.alignment", 32)
        self.data = (self.at + align - 1) // align * align

    def _read(self, layout):
        values = struct.unpack_from("<" + layout, self.bytes, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def _string(self):
        n, = self._read("Q")
        self.at += n
        return self.bytes[self.at - n:self.at].tobytes()

    def _value(self, kind):
        """(type, value); the type of an array is (ARRAY, type of its elements)."""
        if kind == STRING:
            return kind, self._string().decode("utf-8", "surrogateescape")
        if kind != ARRAY:
            return kind, self._read(SCALARS[kind])[0]
        element, n = self._read("IQ")
        if element == STRING:
            return (ARRAY, element), [self._string() for _ in range(n)]
        return (ARRAY, element), list(self._read(f"{n}{SCALARS[element]}"))

    def __getitem__(self, key):
        return self.keys[key]

    def get(self, key, fallback=None):
        return self.keys.get(key, fallback)

    def __contains__(self, tensor):
        return tensor in self.tensors

    def raw(self, name):
        shape, kind, offset = self.tensors[name]
        if kind not in TYPES:
            raise ValueError(f"{name}: type {kind} cannot be read")
        _, values, size = TYPES[kind]
        n = int(np.prod(shape)) // values * size
        return kind, shape, self.bytes[self.data + offset:self.data + offset + n]

    def tensor(self, name, dtype=np.float64):
        kind, shape, raw = self.raw(name)
        return decode(kind, raw).astype(dtype).reshape(shape[::-1])


# ------------------------------------------------------------------------------------- blocks
# Each function takes blocks as bytes [n, block bytes] and gives values [n, block values]. Products
# of a few scales and integers are exact in double or nearly so; the engine's f32 differs by rounding.

def f16(b):
    return np.ascontiguousarray(b).view("<f2").astype(np.float64)


def low_high(q):
    """Nibbles: all the low ones of the bytes, then all the high ones."""
    return np.concatenate([q & 15, q >> 4], axis=-1).astype(np.float64)


def fifth_bits(b):
    """32 bits of a little-endian word, each as 0 or 16."""
    return np.unpackbits(b, axis=1, bitorder="little").astype(np.float64) * 16


def q4_0(b):
    return f16(b[:, :2]) * (low_high(b[:, 2:]) - 8)


def q4_1(b):
    return f16(b[:, :2]) * low_high(b[:, 4:]) + f16(b[:, 2:4])


def q5_0(b):
    return f16(b[:, :2]) * (low_high(b[:, 6:]) + fifth_bits(b[:, 2:6]) - 16)


def q5_1(b):
    return f16(b[:, :2]) * (low_high(b[:, 8:]) + fifth_bits(b[:, 4:8])) + f16(b[:, 2:4])


def q8_0(b):
    return f16(b[:, :2]) * b[:, 2:].view(np.int8)


IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], float)
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], float)


def iq4_nl(b):
    return f16(b[:, :2]) * IQ4[low_high(b[:, 2:]).astype(int)]


def mxfp4(b):
    return np.exp2(b[:, :1].astype(np.float64) - 128) * E2M1[low_high(b[:, 1:]).astype(int)]


def two_bits(q):
    """64 bytes to 256 values: of each half, the four bit pairs of its 32 bytes one after another."""
    q = q.reshape(len(q), 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return (q & 3).reshape(len(q), 256)


def q2_k(b):
    scales, q = b[:, :16], two_bits(b[:, 16:80]).reshape(-1, 16, 16)
    d, low = f16(b[:, 80:82])[..., None], f16(b[:, 82:84])[..., None]
    value = d * (scales & 15)[..., None] * q - low * (scales >> 4)[..., None]
    return value.reshape(-1, 256)


def q3_k(b):
    high, s = b[:, :32], b[:, 96:108]
    bits = (high[:, None, :] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1
    q = two_bits(b[:, 32:96]).astype(int) - 4 * (1 - bits.reshape(-1, 256).astype(int))
    four = np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], axis=1)
    two = np.concatenate([(s[:, 8:] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=1)
    scales = (four | (two << 4)).astype(int) - 32
    return (f16(b[:, 108:110])[..., None] * scales[..., None] * q.reshape(-1, 16, 16)).reshape(-1, 256)


def six_bit_pairs(s):
    """12 bytes to 8 scales and 8 minima of 6 bits."""
    first, second, third = s[:, :4], s[:, 4:8], s[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1)
    return scales.astype(np.float64)[..., None], minima.astype(np.float64)[..., None]


def nibble_runs(q):
    """128 bytes to 8 runs of 32: of each 32 bytes the low nibbles, then the high ones."""
    return low_high(q.reshape(len(q), 4, 32)).reshape(len(q), 8, 32)


def q4_k(b):
    scales, minima = six_bit_pairs(b[:, 4:16])
    d, low = f16(b[:, :2])[..., None], f16(b[:, 2:4])[..., None]
    return (d * scales * nibble_runs(b[:, 16:]) - low * minima).reshape(-1, 256)


def q5_k(b):
    scales, minima = six_bit_pairs(b[:, 4:16])
    d, low = f16(b[:, :2])[..., None], f16(b[:, 2:4])[..., None]
    fifth = (b[:, 16:48][:, None, :] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1
    q = nibble_runs(b[:, 48:]) + 16.0 * fifth
    return (d * scales * q - low * minima).reshape(-1, 256)


def q6_k(b):
    low, high = b[:, :128].reshape(-1, 2, 2, 32), b[:, 128:192].reshape(-1, 2, 32)
    four = np.concatenate([low & 15, low >> 4], axis=2)
    two = np.stack([(high >> shift) & 3 for shift in (0, 2, 4, 6)], axis=2)
    q = (four | (two << 4)).astype(int).reshape(-1, 16, 16) - 32
    scales = b[:, 192:208].view(np.int8).astype(int)
    return (f16(b[:, 208:210])[..., None] * scales[..., None] * q).reshape(-1, 256)


def iq4_xs(b):
    high = np.ascontiguousarray(b[:, 2:4]).view("<u2").astype(int)
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], axis=2).reshape(-1, 8).astype(int)
    scales = (low | (((high >> (2 * np.arange(8))) & 3) << 4)) - 32
    q = IQ4[low_high(b[:, 8:].reshape(-1, 8, 16)).astype(int)]
    return (f16(b[:, :2])[..., None] * scales[..., None] * q).reshape(-1, 256)


BLOCKS = {"Q4_0": q4_0, "Q4_1": q4_1, "Q5_0": q5_0, "Q5_1": q5_1, "Q8_0": q8_0, "Q2_K": q2_k,
          "Q3_K": q3_k, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k, "IQ4_NL": iq4_nl,
          "IQ4_XS": iq4_xs, "MXFP4": mxfp4}


def decode(kind, raw):
    """All values of the bytes `raw` of tensor type `kind`, one after another."""
    name, _, size = TYPES[kind]
    if name == "F32":
        return np.frombuffer(raw, "<f4")
    if name == "F16":
        return np.frombuffer(raw, "<f2")
    if name == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return BLOCKS[name](np.ascontiguousarray(raw).reshape(-1, size)).reshape(-1)
