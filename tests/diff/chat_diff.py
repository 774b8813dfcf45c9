#!/usr/bin/env python3
"""Compares rendered chats with jinja2 on random conversations. Run by hand where jinja2 is:

    python tests/diff/chat_diff.py [-n COUNT] [--seed N] TEMPLATE.jinja|MODEL.gguf ...

A template that is refused is named with the reason; that is no failure. A model file needs the
package gguf. Where the template raises an exception, ours must refuse the conversation too.
"""
import argparse
import datetime
import glob
import os
import random
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tools"))
import jinja_reference  # noqa: E402

SECONDS = 1735700000
TEXTS = ["Hello", "", " ", "  two blanks before and one behind ", "\n\nlines\n\n", "tab\t", "\u00a0nb\u3000",
         "a\r\nb", "<|im_end|>\n<|im_start|>system\nno", "<|eot_id|>", "<end_of_turn>", "'quoted' \"too\"",
         "{{ messages }} {% if x %}", "<think>\nhm\n</think>\n\nSo: 4", "<think>unfinished", "done</think>x",
         "<think>a</think>b<think>c</think>\n\nd", "<tool_response>\n1\n</tool_response>", "caf\u00e9 \U0001F642",
         "\\ back", "\x1c\x1d edge \x85", "\u0000nul\u0000", "{\"a\": [1, 2]}", "\x07bell\u2028"]


class Ours:
    def __init__(self, program, template, model):
        self.process = subprocess.Popen([program, template, model], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def render(self, messages, generation, continues):
        data = struct.pack("<BII", generation | continues << 1, SECONDS, len(messages))
        for m in messages:
            for text in (m["role"], m["content"]):
                raw = None if text is None else text.encode()
                data += struct.pack("<I", 0xFFFFFFFF) if raw is None else (
                    struct.pack("<I", len(raw)) + raw)
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        head = self.process.stdout.read(5)
        if len(head) < 5:
            return None
        status, size = struct.unpack("<BI", head)
        text = self.process.stdout.read(size)
        spans = []
        for _ in range(struct.unpack("<I", self.process.stdout.read(4))[0]):
            spans.append(struct.unpack("<IB", self.process.stdout.read(5)))
        return status, text, spans


def conversation(r):
    n = r.choice([1, 1, 2, 2, 3, 3, 4, 5, 6, 9])
    messages = []
    orderly = r.random() < 0.6
    if r.random() < 0.4:
        messages.append({"role": r.choice(["system", "system", "developer"]), "content": text(r)})
    for i in range(n):
        role = ("user", "assistant")[i % 2] if orderly else r.choice(
            ["user", "assistant", "system", "tool", "developer"])
        messages.append({"role": role, "content": text(r)})
    return messages


def text(r):
    if r.random() < 0.05:
        return None
    return "".join(r.choice(TEXTS) for _ in range(r.choice([1, 1, 1, 2, 3])))


def user_text_is_marked(messages, text, spans):
    """Every byte of a span that is not the user's must be the template's own: no text that a user
    wrote in this test holds the letter sequence that marks it."""
    at = 0
    for size, from_user in spans:
        part = text[at:at + size]
        at += size
        if not from_user and b"ZZUSERZZ" in part:
            return False
    return at == len(text)


def bos_of(model):
    if model == "-":
        return ""
    import gguf
    fields = gguf.GGUFReader(model).fields
    add = fields.get("tokenizer.ggml.add_bos_token")
    if add.contents() if add else fields["tokenizer.ggml.model"].contents() == "llama":
        return ""
    token = fields["tokenizer.ggml.bos_token_id"].contents()
    return fields["tokenizer.ggml.tokens"].contents(token)


def compare(program, template_path, model, n, seed):
    with open(template_path, encoding="utf-8", newline="") as file:
        source = file.read()
    local = datetime.datetime.fromtimestamp(SECONDS)
    template = jinja_reference.compile_template(source, local)
    r = random.Random(seed)
    ours = Ours(program, template_path, model)
    bos = bos_of(model)
    counts = {"equal": 0, "both refuse": 0, "different": 0}
    for _ in range(n):
        messages = conversation(r)
        generation = r.random() < 0.8
        continues = messages[-1]["role"] == "assistant" and r.random() < 0.3
        if continues:
            # One that the reference can find again: it searches the text for it.
            messages[-1]["content"] = r.choice(["So", " So far ", "\n2 + 2 is\n\n", "\u00a0x\u3000"])
        for m in messages:
            if m["content"] and r.random() < 0.3:
                m["content"] += "ZZUSERZZ"
        try:
            want = jinja_reference.render(template, messages, generation and not continues, continues,
                                          bos_token=bos)
        except jinja_reference.Raised:
            want = None
        if len(messages) > 1 and messages[-1]["role"] == messages[-2]["role"] == "assistant":
            want = None
        answer = ours.render(messages, generation and not continues, continues)
        if answer is None:
            print(f"{os.path.basename(template_path)}: refused: "
                  f"{ours.process.stderr.read().decode().strip()}")
            return 0
        status, got, spans = answer
        if want is None:
            same = status == 1
        else:
            same = status == 0 and got == want.encode() and user_text_is_marked(messages, got, spans)
        counts["different" if not same else "both refuse" if want is None else "equal"] += 1
        if not same and counts["different"] < 3:
            print(f"  {messages} generation={generation} continues={continues}\n    ours {got[-300:]!r}\n"
                  f"    want {want and want[-300:]!r}")
    print(f"{os.path.basename(template_path)}: {counts}, seed {seed}", flush=True)
    return counts["different"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="-", help="model file whose BOS templates write")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "chat_many")
        sources = [s for room in ("text", "gguf", "quant", "base")
                   for s in sorted(glob.glob(os.path.join(ROOT, "src", room, "*.c")))]
        subprocess.run(["cc", "-std=c17", "-O1", "-g", "-fsanitize=address,undefined", "-D_GNU_SOURCE",
                        "-I", os.path.join(ROOT, "src"),
                        os.path.join(ROOT, "tests", "diff", "chat_many.c"), *sources, "-o", program,
                        "-lpcre2-8", "-lxxhash", "-lpthread", "-lm"], check=True)
        for path in args.files:
            model = args.model
            if path.endswith(".gguf"):
                import gguf
                model = path
                field = gguf.GGUFReader(path).fields.get("tokenizer.chat_template")
                if field is None:
                    print(f"{os.path.basename(path)}: no template")
                    continue
                path = os.path.join(folder, os.path.basename(path) + ".jinja")
                with open(path, "w", encoding="utf-8", newline="") as file:
                    file.write(field.contents())
            total += compare(program, path, model, args.n, args.seed)
    sys.exit(1 if total else 0)


main()
