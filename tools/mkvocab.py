#!/usr/bin/env python3
"""Makes a small vocabulary as a GGUF file without tensors: for tests of tokenizers.

    python3 tools/mkvocab.py bpe FILE [--pre NAME] [--merges N] [--special TEXT=TYPE ...] [--key K=V ...]
    python3 tools/mkvocab.py spm FILE [--merges N] [--special TEXT=TYPE ...] [--key K=V ...]

The merges are learnt from a text below, the most frequent pair first, so the same call always gives
the same file. Special tokens come last, with types as in tokenizer.ggml.token_type (3 control, 4
user-defined); "\\n" in their texts is a newline. Values of keys: integers, true/false, or text.
"""
import argparse
import collections
import re

from gguf_write import Writer

TEXT = """
A relay is a race in which runners carry a baton and hand it over. The first runner starts alone; the
second waits, begins to run before the baton arrives, and takes it at full speed. Whoever hands it over
late loses what the other has won. In the year 1912 there were 4 runners and 400 metres; in 2024 there
were 16 teams, 64 legs and 1000 spectators. It's not what you carry, it's that you don't drop it! Did
they say "they're ready", or didn't they? We'll see: she'd run, he'd wait, I'm here, you've been there.

    for (int i = 0; i < n; i++) {
        sum += weights[i] * values[i];
    }
    return sum / (double)n;

Eine Staffel ist ein Lauf, bei dem ein Stab übergeben wird; früher liefen fünf Läufer größere Strecken.
Le relais est une course où l'on se passe un témoin: à côté, ça a été très serré. Эстафета это бег, в
котором передают палочку. 接力赛是一种赛跑。リレーは走る競技です。릴레이는 달리기 경기이다. 🏃‍♀️➡️🏃 αβγ ∑ → ≤ € “quoted” … ½ ²
"""


def byte_chars():
    """The character that stands for each byte in byte-level BPE."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    chars = {b: chr(b) for b in kept}
    for i, b in enumerate(b for b in range(256) if b not in chars):
        chars[b] = chr(0x100 + i)
    return chars


def learn(words, n_merges):
    """Merges of the most frequent pairs; ties go to the smaller pair."""
    words = collections.Counter(tuple(w) for w in words)
    merges = []
    while len(merges) < n_merges:
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        merged = collections.Counter()
        for word, count in words.items():
            out, i = [], 0
            while i < len(word):
                if word[i:i + 2] == best:
                    out.append(word[i] + word[i + 1])
                    i += 2
                else:
                    out.append(word[i])
                    i += 1
            merged[tuple(out)] += count
        words = merged
    return merges


def unique(items):
    return list(dict.fromkeys(items))


def bpe(n_merges):
    chars = byte_chars()
    words = ["".join(chars[b] for b in w.encode()) for w in re.findall(r" ?\w+|\s+| ?[^\s\w]+", TEXT)]
    merges = learn(words, n_merges)
    tokens = unique([chars[b] for b in range(256)] + [a + b for a, b in merges])
    return tokens, [1] * len(tokens), merges


def spm(n_merges):
    words = [w.replace(" ", "\u2581") for w in re.findall(r" *[^ \n]+|\n| +", TEXT)]
    merges = learn(words, n_merges)
    control = ["<unk>", "<s>", "</s>"]
    by_byte = [f"<0x{b:02X}>" for b in range(256)]
    pieces = unique(a + b for a, b in merges)
    alphabet = sorted(set("".join(words)) - set(pieces) - {"\n"})
    tokens = control + by_byte + pieces + alphabet
    types = [2, 3, 3] + [6] * 256 + [1] * (len(pieces) + len(alphabet))
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces) + len(alphabet))]
    return tokens, types, scores


def put_key(writer, text):
    key, value = text.split("=", 1)
    if value in ("true", "false"):
        writer.value(key, "bool", value == "true")
    elif re.fullmatch(r"-?\d+", value):
        writer.value(key, "u32" if int(value) >= 0 else "i32", int(value))
    else:
        writer.value(key, "string", value)


def make(kind, path, pre="gpt-2", n_merges=300, specials=(), keys=()):
    writer = Writer(path)
    writer.value("general.architecture", "string", "llama")
    writer.value("tokenizer.ggml.model", "string", "gpt2" if kind == "bpe" else "llama")
    tokens, types, rest = bpe(n_merges) if kind == "bpe" else spm(n_merges)
    for text, token_type in specials:
        if text in tokens:
            types[tokens.index(text)] = token_type
        else:
            tokens.append(text)
            types.append(token_type)
    if kind == "bpe":
        writer.value("tokenizer.ggml.pre", "string", pre)
    writer.array("tokenizer.ggml.tokens", "string", tokens)
    writer.array("tokenizer.ggml.token_type", "i32", types)
    if kind == "bpe":
        writer.array("tokenizer.ggml.merges", "string", [a + " " + b for a, b in rest])
    else:
        writer.array("tokenizer.ggml.scores", "f32", rest + [0.0] * (len(tokens) - len(rest)))
    for key in keys:
        put_key(writer, key)
    writer.finish()
    return tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=["bpe", "spm"])
    parser.add_argument("file")
    parser.add_argument("--pre", default="gpt-2")
    parser.add_argument("--merges", type=int, default=300)
    parser.add_argument("--special", action="append", default=[], metavar="TEXT=TYPE")
    parser.add_argument("--key", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    specials = []
    for text in args.special:
        name, token_type = text.replace("\\n", "\n").rsplit("=", 1)
        specials.append((name, int(token_type)))
    tokens = make(args.kind, args.file, args.pre, args.merges, specials, args.key)
    print(f"{args.file}: {len(tokens)} tokens")


if __name__ == "__main__":
    main()
