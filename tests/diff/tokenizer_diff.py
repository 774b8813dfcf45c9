#!/usr/bin/env python3
"""Compares the tokenizer with llama.cpp's on random texts. Run by hand where llama-cpp-python is:

    python tests/diff/tokenizer_diff.py [-n TEXTS] [--seed N] MODEL.gguf ...

Per file: texts of many kinds encoded as user text, with special tokens parsed, and with BOS/EOS;
all pieces of all tokens, with and without special ones; the set that ends a generation; and the
texts that ids decode to. Prints every difference (up to a few per kind) and a line of counts.

Known and wanted differences, which are left out here: a piece whose characters stand for no byte
(the reference prints "[UNK_BYTE_0x..]"), and bytes that are not UTF-8 in byte-level BPE beyond
single bad bytes (the reference lets overlong forms and surrogates pass).
"""
import argparse
import ctypes
import glob
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

import llama_cpp

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tools"))
import mkvocab  # noqa: E402


class Ours:
    def __init__(self, program, path):
        self.process = subprocess.Popen([program, path], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def ask(self, kind, data):
        self.process.stdin.write(kind + struct.pack("<I", len(data)) + data)
        self.process.stdin.flush()
        head = self.process.stdout.read(4)
        if len(head) < 4:
            sys.exit("our side ended")
        return struct.unpack("<I", head)[0]

    def encode(self, text, special, bos):
        n = self.ask(b"b" if bos else b"s" if special else b"e", text)
        return list(struct.unpack(f"<{n}I", self.process.stdout.read(4 * n)))

    def piece(self, token, special):
        n = self.ask(b"P" if special else b"p", struct.pack("<I", token))
        return self.process.stdout.read(n)

    def decode(self, ids):
        n = self.ask(b"d", struct.pack(f"<{len(ids)}I", *ids))
        return self.process.stdout.read(n)

    def flags(self, token):
        return self.ask(b"g", struct.pack("<I", token))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Theirs:
    def __init__(self, path):
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            sys.exit(f"{path}: the reference cannot load it")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.count = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.bpe = llama_cpp.llama_vocab_type(self.vocab) == 2

    def encode(self, text, special, bos):
        room = len(text) * 3 + 16
        ids = (llama_cpp.llama_token * room)()
        n = llama_cpp.llama_tokenize(self.vocab, text, len(text), ids, room, bos, special)
        return list(ids[:n])

    def piece(self, token, special):
        room = 1 << 17
        text = ctypes.create_string_buffer(room)
        n = llama_cpp.llama_token_to_piece(self.vocab, token, text, room, 0, special)
        return text.raw[:n]

    def decode(self, ids):
        room = len(ids) * 256 + 16
        text = ctypes.create_string_buffer(room)
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        n = llama_cpp.llama_detokenize(self.vocab, tokens, len(ids), text, room, False, False)
        return text.raw[:n]

    def text(self, token):
        return llama_cpp.llama_vocab_get_text(self.vocab, token)

    def special(self, token):
        return bool(llama_cpp.llama_vocab_get_attr(self.vocab, token) & (1 | 8))

    def eog(self, token):
        return llama_cpp.llama_vocab_is_eog(self.vocab, token)


BLOCKS = [(0x20, 0x7E), (0xA0, 0x17F), (0x180, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F),
          (0x530, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x10A0, 0x10FF),
          (0x1100, 0x11FF), (0x1680, 0x1680), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F),
          (0x2190, 0x2BFF), (0x2C00, 0x2DFF), (0x2E80, 0x2FDF), (0x3000, 0x30FF), (0x3400, 0x34FF),
          (0x4E00, 0x9FFF), (0xA640, 0xA7FF), (0xAB70, 0xABBF), (0xAC00, 0xD7FF), (0xE000, 0xE0FF),
          (0xF900, 0xFAFF), (0xFB00, 0xFEFF), (0xFF00, 0xFFFF), (0x10400, 0x104FF),
          (0x1D400, 0x1D7FF), (0x1F000, 0x1FAFF), (0x20000, 0x2FFFF), (0xE0000, 0xE01EF)]
WORDS = ("the of and to in is that it was for on are as with his they at be this from I have or by "
         "one had not but what all were when we there can an your which their said if do will each "
         "about how up out them then she many some so these would other into has more her two like "
         "him see time could no make than first been its who now people my made over did down only "
         "way find use may water long little very after words called just where most know").split()
BLANKS = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n ", "\n \n", "\u00a0", "\u3000",
          "\u2028", "\u0085", "\v", "\f", "\u200b", "\u1680", "\u202f", "\n\n\n\n", "        "]
SNIPPETS = ["'s", "'re", "'LL", "'t", "I'd", "we'Ve", "don't", "'\u017f", "\u2019s", "1234567", "3.14",
            "\u00b2\u00bd\u2167", "\u0660\u0661\u0662\u0663", "e\u0301", "\u0915\u094d\u0937\u093f",
            "\U0001F468\u200D\U0001F469\u200D\U0001F467", "\U0001F1E9\U0001F1EA", "~~~", "`x`", "/*",
            "//\n", "!!\n\n", "...\r\n", "->", "<=", "$5", "a_b", "HTTPServer", "iPhone", "\u00c5B",
            "\u4e2d\u6587", "\u304b\u306a", "\ud55c\uae00", "\ufffd", "\u0000", "\u001f", "\u00ad",
            "\u2581", "\u2581\u2581", "<0x0A>", "[INST]", "<|im_start|>", "<|im_end|>", "<s>", "</s>",
            "<|endoftext|>", "<bos>", "<start_of_turn>", "<|end|>", "<|user|>", "\uff5e", "\u2fff",
            "\U0002EBF0"]


def random_char(r):
    if r.random() < 0.03:
        code = r.randrange(0x110000)
    else:
        low, high = r.choice(BLOCKS)
        code = r.randint(low, high)
    return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)


def random_text(r, theirs):
    parts = []
    for _ in range(r.choice([1, 2, 3, 5, 8, 13, 30])):
        pick = r.random()
        if pick < 0.25:
            parts.append(r.choice(WORDS))
        elif pick < 0.40:
            parts.append(r.choice(BLANKS))
        elif pick < 0.50:
            parts.append(r.choice(SNIPPETS))
        elif pick < 0.65:
            parts.append("".join(random_char(r) for _ in range(r.randint(1, 6))))
        elif pick < 0.72:
            parts.append(str(r.randrange(10 ** r.randint(1, 12))))
        elif pick < 0.80:
            parts.append("".join(r.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in
                                 range(r.randint(1, 5))))
        elif pick < 0.88:
            parts.append(theirs.piece(r.randrange(theirs.count), True).decode("utf-8", "replace"))
        elif pick < 0.92:
            # The end of the vocabulary is where special tokens are; also cut off at a side.
            text = theirs.piece(theirs.count - 1 - r.randrange(min(16, theirs.count)), True).decode(
                "utf-8", "replace")
            parts.append(text[r.choice([0, 0, 0, 1]):r.choice([None, None, -1])])
        else:
            parts.append(r.choice("abcXYZ01 \n'") * r.randint(1, 40))
        if r.random() < 0.4:
            parts.append(" ")
    text = "".join(parts)
    return unicodedata.normalize("NFD", text) if r.random() < 0.1 else text


def clean(text):
    """The blanks that the reference takes out of whole texts of some vocabularies; ours keeps them."""
    for mark in b"?!.,":
        text = text.replace(b" " + bytes([mark]), bytes([mark]))
    text = text.replace(b" ' ", b"'")
    for end in (b"'s", b"'m", b"'re", b"'ve"):
        text = text.replace(b" " + end, end)
    return text


def with_pre(path, name, folder):
    """A copy of a file without tensors whose pre-tokenizer has another name."""
    data = open(path, "rb").read()
    key = b"tokenizer.ggml.pre"
    at = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 4
    size = struct.unpack_from("<Q", data, at)[0]
    text = name.encode()
    copy = os.path.join(folder, f"{os.path.basename(path)[:-5]} as {name}.gguf")
    with open(copy, "wb") as file:
        file.write(data[:at] + struct.pack("<Q", len(text)) + text + data[at + 8 + size:])
    return copy


# Vocabularies of our own with special tokens that overlap, nest, or mean something to the loader.
SYNTHETIC = {
    "nested": [("<a>", 3), ("<a><b>", 3), ("><", 4), ("<b>", 4), ("ab", 4), ("abc", 4), ("bcd", 4),
               ("\n\n", 4), ("\n\n\n", 4), ("  ", 4), ("<a", 2), ("caf\u00e9", 4), ("\u00e9", 4)],
    "endings": [("<|im_start|>", 1), ("<|im_end|>", 4), ("<|endoftext|>", 1), ("<|eot_id|>", 4),
                ("<end_of_turn>", 1), ("<|fim_prefix|>", 4), ("<|fim_pad|>", 4), ("<|repo_name|>", 4),
                ("<|file_sep|>", 1), ("[PAD]", 4), ("<|eom_id|>", 4), ("</s>", 4),
                ("<turn|>", 4), ("[e~[", 1)],
    "channels": [("<|start|>", 3), ("<|end|>", 3), ("<|message|>", 3), ("<|channel|>", 3),
                 ("<|constrain|>", 3), ("<|return|>", 3), ("<|call|>", 3), ("<|endoftext|>", 3)],
    "calls": [("<|end|>", 3), ("<|calls|>", 3), ("<|flush|>", 3), ("</s>", 3),
              ("<|tool_response>", 3), ("<unused>", 5), ("nothing", 0)],
}


def synthetic(folder):
    files = []
    for name, specials in SYNTHETIC.items():
        for kind in ("bpe", "spm"):
            for phi in (False, True):
                if phi:
                    # The reference does not load such a name without these. It takes tokens of equal
                    # length in no fixed order, which blanks that are stripped would show.
                    specials = [s for s in specials if s[0].strip()]
                    names = [name for name, _ in specials]
                    specials = specials + [(t, 3) for t in ("<unk>", "<s>", "</s>", "<|endoftext|>")
                                           if t not in names]
                keys = ["general.name=" + ("Phi-3 like" if phi else name)]
                if kind == "bpe":
                    keys += ["tokenizer.ggml.bos_token_id=300", "tokenizer.ggml.eos_token_id=301",
                             "tokenizer.ggml.add_bos_token=true", "tokenizer.ggml.add_eos_token=true"]
                path = os.path.join(folder, f"{kind} {name}{' phi' if phi else ''}.gguf")
                mkvocab.make(kind, path, "llama-bpe", 300, specials, keys)
                files.append(path)
    return files


def show(kind, detail, shown):
    shown[kind] = shown.get(kind, 0) + 1
    if shown[kind] <= 5:
        print(f"  {kind}: {detail}")


def compare(program, path, n, seed):
    ours, theirs = Ours(program, path), Theirs(path)
    r = random.Random(seed)
    shown = {}
    for token in range(theirs.count):
        for special in (False, True):
            a, b = ours.piece(token, special), theirs.piece(token, special)
            if a != b and b"[UNK_BYTE_0x" not in b:
                show("piece", f"{token} special={special} {theirs.text(token)!r}: {a!r} != {b!r}",
                     shown)
        flags = ours.flags(token)
        if bool(flags & 1) != theirs.eog(token):
            show("eog", f"{token} {theirs.text(token)!r}: ours {flags & 1}", shown)
        if bool(flags & 2) != theirs.special(token):
            show("special", f"{token} {theirs.text(token)!r}: ours {bool(flags & 2)}", shown)
    for i in range(n):
        text = random_text(r, theirs).encode()
        if r.random() < 0.1:
            # Single bad bytes; BPE's reference decoder is lenient about longer ones.
            cut = r.randrange(len(text) + 1)
            bad = bytes([r.choice([0x80, 0xBF, 0xFF, 0xF8] if theirs.bpe else range(128, 256))])
            if theirs.bpe:
                text = text.decode()
                cut = len(text[:cut].encode())
                text = text.encode()
            text = text[:cut] + bad + text[cut:]
        for special, bos in ((False, False), (True, False), (True, True)):
            a, b = ours.encode(text, special, bos), theirs.encode(text, special, bos)
            if a != b:
                show("encode", f"special={special} bos={bos} {text!r}\n    {a}\n    {b}", shown)
        ids = ours.encode(text, False, False)
        a, b = ours.decode(ids), theirs.decode(ids)
        if a != b and clean(a) != b:
            show("decode", f"{ids}: {a!r} != {b!r}", shown)
    ours.close()
    total = sum(shown.values())
    print(f"{os.path.basename(path)}: {theirs.count} tokens, {n} texts x 3 ways, seed {seed}: "
          f"{total} differences {shown if shown else ''}", flush=True)
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pre", help="comma-separated names: instead of the file's pre-tokenizer")
    parser.add_argument("--synthetic", action="store_true", help="vocabularies of our own, too")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    llama_cpp.llama_log_set(QUIET, ctypes.c_void_p(0))
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "tokenizer_many")
        sources = [s for room in ("text", "gguf", "quant", "base")
                   for s in sorted(glob.glob(os.path.join(ROOT, "src", room, "*.c")))]
        subprocess.run(["cc", "-std=c17", "-O2", "-D_GNU_SOURCE", "-I", os.path.join(ROOT, "src"),
                        os.path.join(ROOT, "tests", "diff", "tokenizer_many.c"), *sources,
                        "-o", program, "-lpcre2-8", "-lxxhash", "-lpthread", "-lm"], check=True)
        files = args.files
        if args.pre:
            files = [with_pre(f, name, folder) for f in files for name in args.pre.split(",")]
        if args.synthetic:
            files = files + synthetic(folder)
        total = sum(compare(program, path, args.n, args.seed) for path in files)
    sys.exit(1 if total else 0)


@llama_cpp.llama_log_callback
def QUIET(level, text, context):
    pass


main()
