"""Writes corpus/gguf_open/: small files that between them have every key and tensor type.

    make_gguf_corpus.py FOLDER
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tools"))
import gguf_write as gw  # noqa: E402

# Blocks of the types that gguf_write does not encode: any bytes will do.
OTHERS = [(3, 32, 20), (6, 32, 22), (7, 32, 24), (10, 256, 84), (11, 256, 110), (12, 256, 144),
          (13, 256, 176), (14, 256, 210), (16, 256, 66), (20, 32, 18), (23, 256, 136), (30, 1, 2),
          (39, 32, 17)]


def some_bytes(n):
    return bytes((7 * i + 3) % 256 for i in range(n))


def every_key(folder):
    w = gw.Writer(folder / "keys.gguf")
    w.string("general.architecture", "llama")
    for name, value in [("u8", 200), ("i8", -100), ("u16", 60000), ("i16", -30000),
                        ("u32", 4000000000), ("i32", -5), ("f32", 1.5), ("bool", True),
                        ("u64", 2**64 - 1), ("i64", -2**63), ("f64", 1e300)]:
        w.value("a." + name, name, value)
        w.array("b." + name, name, [value, value])
    w.array("tokenizer.ggml.tokens", "string", ["<s>", "", "a b", "\u00e9"])
    w.finish()


def tensors(folder):
    w = gw.Writer(folder / "tensors.gguf")
    w.string("general.architecture", "x")
    w.tensor("norm", gw.F32, (5,), lambda: [some_bytes(20)])
    w.tensor("half", gw.F16, (4, 3, 2), lambda: [some_bytes(48)])
    w.tensor("q8", gw.Q8_0, (32, 2), lambda: [some_bytes(68)])
    w.tensor("q4", gw.Q4_0, (64, 1, 1, 2), lambda: [some_bytes(72)])
    w.finish()


def blocks(folder):
    w = gw.Writer(folder / "blocks.gguf", alignment=8, version=2)
    for tensor_type, values, size in OTHERS:
        w.tensor(f"t{tensor_type}", (tensor_type, values, size, "?"), (values,),
                 lambda size=size: [some_bytes(size)])
    w.finish()


def split(folder):
    w = gw.Writer(folder / "split.gguf")
    w.value("split.no", "u16", 0)
    w.value("split.count", "u16", 2)
    w.value("split.tensors.count", "i32", 3)
    w.finish()


def last_string_missing(folder):
    """An array that ends with the file and announces one string more than there is."""
    w = gw.Writer(folder / "last-string-missing.gguf")
    w.array("list", "string", ["a", "bc", "", "def"])
    w.finish()
    raw = bytearray(w.path.read_bytes())
    raw[24 + 8 + 4 + 4 + 4] += 1
    w.path.write_bytes(raw)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for make in (every_key, tensors, blocks, split, last_string_missing):
        make(folder)


if __name__ == "__main__":
    main()
