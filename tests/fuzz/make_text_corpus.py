#!/usr/bin/env python3
"""Writes corpus/text_tokenizer, corpus/text_stream and corpus/text_chat: small inputs in the layout
of the fuzz targets. Run in this folder; needs jinja2 for the templates of tools/mkchat.py."""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))


def save(target, name, data):
    folder = os.path.join(HERE, "corpus", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def text(data):
    return bytes([len(data)]) + data


def vocabulary(flags, tokens, merges, pre, ids, rest):
    data = bytes([flags, len(tokens)])
    for token_type, score, token in tokens:
        data += bytes([token_type, score & 255]) + text(token)
    data += bytes([len(merges)]) + b"".join(text(a) + text(b) for a, b in merges)
    return data + bytes([pre]) + ids + rest


def tokenizer():
    merges = [(b"h", b"e"), (b"he", b"l"), (b"l", b"o"), (b" ", b"w"), (b"\xc3", b"\xa4")]
    words = [(0, 0, b"he"), (0, 0, b"hel"), (0, 0, b"lo"), (0, 0, b" w"), (1, 0, b"|a>"),
             (2, 0, b"b>")]
    sample = "hello world, <|a><b> \u00e4 \u4e2d 123's\n\n".encode()
    for pre in (0, 1, 20, 21, 35, 44, 45, 53, 54, 55, 58, 62):
        save("text_tokenizer", f"tame-{pre}", vocabulary(2, words, merges, pre, b"\0", sample))
    spm = [(1, 5, b"he"), (1, 4, b"\xe2\x96\x81h"), (1, 3, b"llo"), (1, 2, b"ll"), (1, 1, b"o"),
           (3, 0, b"<s>"), (4, 0, b"\n\n"), (2, 0, b"<unk>")]
    save("text_tokenizer", "spm", vocabulary(5, spm, [], 0, b"\0\1\0\0", sample))
    ids = b"\1\x0f\1\0\2\0\3\0\4\0\1\1"
    save("text_tokenizer", "spm-bare", vocabulary(1, spm, [], 0, ids, sample))
    save("text_tokenizer", "wild", vocabulary(4, [(3, 0, b"<a>"), (4, 0, b"a>b"), (77, 0, b""),
                                                  (129, 0, b"\n\n")], [(b"", b""), (b" ", b"")], 21,
                                              b"\1\0\0\0", b"<a>b \xff\xe2\x82"))


def stream():
    save("text_stream", "stop", b"\2" + text(b"\nUser:") + text(b"end") + b"\2\3\1" +
         b"Hello\nUse\nUser: x")
    save("text_stream", "characters", b"\1" + text("\u20ac".encode()) + b"\3\1\2\0" +
         "a\u00e4\U0001F600".encode() + b"\xe2\x82\xff\xf0\x9f")
    save("text_stream", "overlap", b"\3" + text(b"aab") + text(b"ab") + text(b"abab") +
         b"\1\3aaaabab")


def chat():
    with open(os.path.join(HERE, "..", "..", "tools", "mkchat.py"), encoding="utf-8") as file:
        source = file.read().replace("\nmain()\n", "\n")
    names = {"__name__": "mkchat"}
    exec(compile(source, "mkchat.py", "exec"), names)
    for i, (name, template) in enumerate(names["TEMPLATES"].items()):
        head = bytes([i % 7, 4 | i & 3, 0, 9, 2, 17, 3, 33])
        save("text_chat", re.sub("[^a-z0-9]+", "-", name), head + template.encode())


tokenizer()
stream()
chat()
