#!/usr/bin/env python3
"""Makes small models for tests and random ones of real sizes for benches.

    mkmodel.py CONFIG OUT.gguf [--type f32|f16|q8_0|q4_0] [options]
    mkmodel.py --list

The weights are random but always the same: each tensor has its own generator, seeded by
"NAME/TENSOR", so neither the order of tensors nor the type of the file changes a value, and a
variant has the base's weights wherever the shapes agree. NAME is the configuration's name unless
--name says otherwise. Needs numpy and gguf_write.py beside it.

What the shapes mean is in docs/models/. All arithmetic here is float32, step by step, so that
every version of numpy gives the same bytes.
"""
import argparse
import math
import sys
import zlib

import numpy as np

import gguf_write as gw

BENCHES = {
    "qwen3-0.6b": dict(arch="qwen3", layers=28, width=1024, ff=3072, heads=16, kv_heads=8,
                       head_dim=128, vocab=151936, tied=True, context=40960, rope_base=1e6,
                       eps=1e-6),
    "llama-1b": dict(arch="llama", layers=16, width=2048, ff=8192, heads=32, kv_heads=8,
                     head_dim=64, vocab=32000, tied=True, context=131072, rope_base=5e5, eps=1e-5),
    "qwen35-0.8b": dict(arch="qwen35", layers=24, width=1024, ff=3584, heads=8, kv_heads=2,
                        head_dim=256, n_rot=64, sections=[11, 11, 10, 0], vocab=248320, tied=True,
                        context=262144, rope_base=1e7, eps=1e-6, interval=4,
                        delta=dict(conv=4, state=128, k_heads=16, v_heads=16)),
    "qwen35moe-8l": dict(arch="qwen35moe", layers=8, width=2048, ff=512, heads=16, kv_heads=2,
                         head_dim=256, n_rot=64, sections=[11, 11, 10, 0], vocab=32000, tied=False,
                         context=262144, rope_base=1e7, eps=1e-6, interval=4,
                         delta=dict(conv=4, state=128, k_heads=16, v_heads=32),
                         experts=dict(n=32, used=4, ff=512, shared_ff=512)),
}

# Cheap to compute and large to send: for tests and benches of links. 16 KiB of f16 rows a token.
BENCHES["many-rows"] = dict(arch="llama", layers=16, width=64, ff=64, heads=2, kv_heads=2,
                            head_dim=128, vocab=1024, tied=False, context=65536, rope_base=1e4,
                            eps=1e-5)

# The same with recurrent layers: 4 KiB of rows a token and 3.1 MiB of state.
BENCHES["many-states"] = dict(arch="qwen35", layers=16, width=64, ff=64, heads=2, kv_heads=2,
                              head_dim=128, n_rot=32, sections=[6, 5, 5, 0], vocab=1024, tied=True,
                              context=65536, rope_base=1e7, eps=1e-6, interval=4,
                              delta=dict(conv=4, state=64, k_heads=8, v_heads=16))

TINY = dict(layers=3, width=128, ff=256, heads=4, kv_heads=2, head_dim=32, vocab=1024, tied=False,
            context=8192, rope_base=1e6, eps=1e-6)
TINY_35 = dict(TINY, layers=4, n_rot=16, sections=[3, 3, 2, 0], rope_base=1e7, interval=4)
TINIES = {
    "tiny-llama": dict(TINY, arch="llama", rope_base=1e4, eps=1e-5),
    "tiny-qwen2": dict(TINY, arch="qwen2", tied=True),
    "tiny-qwen3": dict(TINY, arch="qwen3", head_dim=64, tied=True),
    "tiny-gemma3": dict(TINY, arch="gemma3", layers=4, tied=True, rope_base_swa=1e4, window=64,
                        period=2),
    "tiny-qwen3moe": dict(TINY, arch="qwen3moe", layers=2,
                          experts=dict(n=8, used=2, ff=64, shared_ff=0)),
    "tiny-qwen35": dict(TINY_35, arch="qwen35", tied=True,
                        delta=dict(conv=4, state=32, k_heads=4, v_heads=4)),
    "tiny-qwen35-v2k": dict(TINY_35, arch="qwen35", interval=2,
                            delta=dict(conv=4, state=32, k_heads=2, v_heads=4)),
    "tiny-qwen35moe": dict(TINY_35, arch="qwen35moe",
                           delta=dict(conv=4, state=32, k_heads=2, v_heads=4),
                           experts=dict(n=8, used=2, ff=32, shared_ff=64)),
}


def wider(config):
    """The same with rows of 256 values, so that every block type fits."""
    wide = dict(config, width=256, ff=512, head_dim=64, heads=4, kv_heads=2)
    if "n_rot" in wide:
        wide.update(n_rot=32, sections=[6, 5, 5, 0])
    if "delta" in wide:
        wide.update(delta=dict(conv=4, state=64, k_heads=4, v_heads=8))
    if "experts" in wide:
        wide.update(experts=dict(n=8, used=2, ff=256, shared_ff=256))
    return wide


CONFIGS = {**BENCHES, **TINIES}
for family in ("llama", "qwen3", "qwen35", "qwen35moe"):
    CONFIGS["tinyq-" + family] = wider(TINIES["tiny-" + family])

# ------------------------------------------------------------------------------- vocabularies

LETTERS = "etaoinshrdlucmfwypvbgkjqxz"      # roughly by how often they are used
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def made_up_words(space):
    """Pairs of known pieces that make a new one, most useful first, without end of repeats."""
    pairs = [a + b for a in LETTERS for b in LETTERS]
    yield from ((space, c) for c in LETTERS)
    yield from ((a, b) for a in LETTERS for b in LETTERS)
    yield from ((space + c, pair) for pair in pairs for c in LETTERS)
    yield from ((first, second) for first in pairs for second in pairs)


def byte_symbols():
    """The printable character that stands for each byte in a byte-level vocabulary."""
    plain = {*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return [chr(b if b in plain else next(stand_ins)) for b in range(256)]


def vocabulary_bpe(n):
    """Bytes (id = byte), then merged words, then four control tokens."""
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
    n_plain = n - len(controls)
    tokens = byte_symbols()
    if n_plain < len(tokens):
        sys.exit(f"a BPE vocabulary needs at least {len(tokens) + len(controls)} tokens")
    known, merges = set(tokens), []
    for left, right in made_up_words(tokens[ord(" ")]):
        if len(tokens) == n_plain:
            break
        if left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
            merges.append(f"{left} {right}")
    if len(tokens) < n_plain:
        sys.exit(f"only {len(tokens) + len(controls)} tokens can be made up")
    return tokens + controls, [NORMAL] * n_plain + [CONTROL] * len(controls), merges


def vocabulary_spm(n):
    """<unk> <s> </s>, the 256 byte tokens, printable characters, then words; score = -rank."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    scores = [0.0] * len(tokens)
    space = "\u2581"
    words = [space] + [chr(c) for c in range(0x21, 0x7f)] + list("\u00e9\u00fc\u00df\u4e2d\u6587")
    known = set(words)
    for left, right in made_up_words(space):
        if len(tokens) + len(words) >= n:
            break
        if left + right not in known:
            known.add(left + right)
            words.append(left + right)
    if len(tokens) + len(words) != n:
        sys.exit(f"an SPM vocabulary of {n} tokens cannot be made; {len(tokens) + len(words)} can")
    scores += [-float(rank) for rank in range(len(words))]
    return tokens + words, types + [NORMAL] * len(words), scores


# ------------------------------------------------------------------------------------ weights

class Model:
    """Collects the keys and tensors of one model in a Writer."""

    CHUNK_ROWS = 8192

    def __init__(self, name, config, tensor_type, writer):
        self.name = name
        self.c = config
        self.type = tensor_type
        self.out = writer
        self.n_values = 0

    def generator(self, tensor):
        seed = zlib.crc32(f"{self.name}/{tensor}".encode())
        return np.random.Generator(np.random.SFC64(seed))

    def add(self, tensor, tensor_type, shape, make):
        """`make()` gives the float32 values; shape is numpy's (rows last but one)."""
        def pieces():
            rows = make().reshape(-1, shape[-1])
            for at in range(0, len(rows), self.CHUNK_ROWS):
                yield gw.quantise(tensor_type, rows[at:at + self.CHUNK_ROWS])
        self.n_values += math.prod(shape)
        self.out.tensor(tensor, tensor_type, shape[::-1], pieces)

    def matrix(self, tensor, *shape, spread=None, plain=False):
        """Normal values; `plain` ones stay f32 whatever the file's type is."""
        spread = np.float32(1 / np.sqrt(shape[-1]) if spread is None else spread)
        fits = shape[-1] % self.type[1] == 0
        tensor_type = gw.F32 if plain else self.type if fits else gw.F16

        def make():
            values = self.generator(tensor).standard_normal(shape, dtype=np.float32)
            values *= spread
            return values
        self.add(tensor, tensor_type, shape, make)

    def vector(self, tensor, n, mean=0.0, spread=0.05):
        def make():
            values = self.generator(tensor).standard_normal(n, dtype=np.float32)
            values = np.float32(spread) * values
            return np.float32(mean) + values if mean else values
        self.add(tensor, gw.F32, (n,), make)

    def norm(self, tensor, n, mean=1.0):
        self.vector(tensor, n, mean)

    # -- keys

    def number(self, key, value):
        """A scalar, or one entry per layer."""
        if isinstance(value, list):
            self.out.array(key, "u32", value)
        else:
            self.out.u32(key, value)

    def keys(self):
        c, out, a = self.c, self.out, self.c["arch"] + "."
        out.string("general.architecture", c["arch"])
        out.string("general.name", self.name)
        out.u32("general.file_type", gw.FILE_TYPES[self.type[3]])
        out.u32(a + "context_length", c["context"])
        out.u32(a + "embedding_length", c["width"])
        out.u32(a + "block_count", c["layers"])
        self.number(a + "feed_forward_length", c["ff"])
        self.number(a + "attention.head_count", c["heads"])
        self.number(a + "attention.head_count_kv", c["kv_heads"])
        out.u32(a + "attention.key_length", c["head_dim"])
        out.u32(a + "attention.value_length", c.get("value_dim", c["head_dim"]))
        out.f32(a + "attention.layer_norm_rms_epsilon", c["eps"])
        out.f32(a + "rope.freq_base", c["rope_base"])
        out.u32(a + "rope.dimension_count", c.get("n_rot", c["head_dim"]))
        out.u32(a + "vocab_size", c["vocab"])
        self.keys_of_parts(a)
        self.keys_of_rope(a)
        if "softcap" in c:
            out.f32(a + "final_logit_softcapping", c["softcap"])
        (self.keys_of_spm if c.get("spm") else self.keys_of_bpe)()
        if "chat_template" in c:
            out.string("tokenizer.chat_template", c["chat_template"])

    def keys_of_parts(self, a):
        c, out = self.c, self.out
        if "sections" in c:
            out.array(a + "rope.dimension_sections", "i32", c["sections"])
        if "delta" in c:
            d = c["delta"]
            out.u32(a + "ssm.conv_kernel", d["conv"])
            out.u32(a + "ssm.state_size", d["state"])
            out.u32(a + "ssm.group_count", d["k_heads"])
            out.u32(a + "ssm.time_step_rank", d["v_heads"])
            out.u32(a + "ssm.inner_size", d["v_heads"] * d["state"])
            out.u32(a + "full_attention_interval", c["interval"])
        if "experts" in c:
            e = c["experts"]
            out.u32(a + "expert_count", e["n"])
            out.u32(a + "expert_used_count", e["used"])
            out.u32(a + "expert_feed_forward_length", e["ff"])
            if e["shared_ff"]:
                out.u32(a + "expert_shared_feed_forward_length", e["shared_ff"])
        if "window" in c:
            out.u32(a + "attention.sliding_window", c["window"])
            out.u32(a + "attention.sliding_window_pattern", c["period"])
            out.f32(a + "rope.freq_base_swa", c["rope_base_swa"])

    def keys_of_rope(self, a):
        scaling = self.c.get("rope_scaling")
        if scaling and scaling["type"] != "llama3":
            self.out.string(a + "rope.scaling.type", scaling["type"])
            self.out.f32(a + "rope.scaling.factor", scaling["factor"])
            if "original" in scaling:
                self.out.u32(a + "rope.scaling.original_context_length", scaling["original"])

    def keys_of_bpe(self):
        out, n = self.out, self.c["vocab"]
        tokens, types, merges = vocabulary_bpe(n)
        out.string("tokenizer.ggml.model", "gpt2")
        out.string("tokenizer.ggml.pre", self.c.get("pre", "qwen2"))
        out.array("tokenizer.ggml.tokens", "string", tokens)
        out.array("tokenizer.ggml.token_type", "i32", types)
        out.array("tokenizer.ggml.merges", "string", merges)
        out.u32("tokenizer.ggml.bos_token_id", n - 4)
        out.u32("tokenizer.ggml.eos_token_id", n - 2)
        out.u32("tokenizer.ggml.padding_token_id", n - 1)
        out.bool("tokenizer.ggml.add_bos_token", False)

    def keys_of_spm(self):
        out = self.out
        tokens, types, scores = vocabulary_spm(self.c["vocab"])
        out.string("tokenizer.ggml.model", "llama")
        out.array("tokenizer.ggml.tokens", "string", tokens)
        out.array("tokenizer.ggml.scores", "f32", scores)
        out.array("tokenizer.ggml.token_type", "i32", types)
        out.u32("tokenizer.ggml.bos_token_id", 1)
        out.u32("tokenizer.ggml.eos_token_id", 2)
        out.u32("tokenizer.ggml.unknown_token_id", 0)
        out.bool("tokenizer.ggml.add_bos_token", True)
        out.bool("tokenizer.ggml.add_eos_token", False)
        out.bool("tokenizer.ggml.add_space_prefix", True)

    # -- parts of a layer

    def of_layer(self, key, layer):
        value = self.c[key]
        return value[layer] if isinstance(value, list) else value

    def attention(self, b, layer):
        c, arch = self.c, self.c["arch"]
        width, head_dim, value_dim = c["width"], c["head_dim"], c.get("value_dim", c["head_dim"])
        heads, kv_heads = self.of_layer("heads", layer), self.of_layer("kv_heads", layer)
        gated = arch in ("qwen35", "qwen35moe")
        normed = gated or arch in ("qwen3", "qwen3moe", "gemma3")
        # Scores spread enough that attention is far from uniform.
        spread = (1.0 if normed else np.sqrt(2.0)) / np.sqrt(width)
        self.matrix(b + "attn_q.weight", heads * head_dim * (2 if gated else 1), width,
                    spread=spread)
        self.matrix(b + "attn_k.weight", kv_heads * head_dim, width, spread=spread)
        self.matrix(b + "attn_v.weight", kv_heads * value_dim, width)
        if arch == "qwen2":
            self.vector(b + "attn_q.bias", heads * head_dim, spread=0.1)
            self.vector(b + "attn_k.bias", kv_heads * head_dim, spread=0.1)
            self.vector(b + "attn_v.bias", kv_heads * value_dim, spread=0.1)
        self.matrix(b + "attn_output.weight", width, heads * value_dim)
        if normed:
            self.norm(b + "attn_q_norm.weight", head_dim, 1.5)
            self.norm(b + "attn_k_norm.weight", head_dim, 1.5)

    def delta_net(self, b):
        width, d = self.c["width"], self.c["delta"]
        keys, values, n = d["k_heads"] * d["state"], d["v_heads"] * d["state"], d["v_heads"]
        self.matrix(b + "attn_qkv.weight", 2 * keys + values, width)
        self.matrix(b + "attn_gate.weight", values, width)
        self.matrix(b + "ssm_conv1d.weight", 2 * keys + values, d["conv"], spread=0.5, plain=True)

        def time_steps():
            # The inverse softplus of steps between 0.001 and 0.1, spread evenly by magnitude.
            uniform = self.generator(b + "ssm_dt.bias").uniform(np.log(1e-3), np.log(1e-1), n)
            steps = np.exp(uniform)
            return (steps + np.log(-np.expm1(-steps))).astype(np.float32)

        def decays():
            return (-self.generator(b + "ssm_a").uniform(1, 16, n)).astype(np.float32)
        self.add(b + "ssm_dt.bias", gw.F32, (n,), time_steps)
        self.add(b + "ssm_a", gw.F32, (n,), decays)
        self.matrix(b + "ssm_beta.weight", n, width)
        self.matrix(b + "ssm_alpha.weight", n, width)
        self.norm(b + "ssm_norm.weight", d["state"])
        self.matrix(b + "ssm_out.weight", width, values)

    def feed_forward(self, b, layer):
        width, ff = self.c["width"], self.of_layer("ff", layer)
        self.matrix(b + "ffn_gate.weight", ff, width)
        self.matrix(b + "ffn_up.weight", ff, width)
        self.matrix(b + "ffn_down.weight", width, ff)

    def experts(self, b):
        width, e = self.c["width"], self.c["experts"]
        self.matrix(b + "ffn_gate_inp.weight", e["n"], width, spread=2 / np.sqrt(width),
                    plain=True)
        self.matrix(b + "ffn_gate_exps.weight", e["n"], e["ff"], width)
        self.matrix(b + "ffn_up_exps.weight", e["n"], e["ff"], width)
        self.matrix(b + "ffn_down_exps.weight", e["n"], width, e["ff"])
        if e["shared_ff"]:
            self.vector(b + "ffn_gate_inp_shexp.weight", width, spread=1 / np.sqrt(width))
            self.matrix(b + "ffn_gate_shexp.weight", e["shared_ff"], width)
            self.matrix(b + "ffn_up_shexp.weight", e["shared_ff"], width)
            self.matrix(b + "ffn_down_shexp.weight", width, e["shared_ff"])

    def layer(self, i):
        c, b, width = self.c, f"blk.{i}.", self.c["width"]
        self.norm(b + "attn_norm.weight", width)
        if "delta" in c and (i + 1) % c["interval"] != 0:
            self.delta_net(b)
        else:
            self.attention(b, i)
        if "delta" in c or c["arch"] == "gemma3":
            self.norm(b + "post_attention_norm.weight", width)
        if "delta" not in c:
            self.norm(b + "ffn_norm.weight", width)
        if "experts" in c:
            self.experts(b)
        else:
            self.feed_forward(b, i)
        if c["arch"] == "gemma3":
            self.norm(b + "post_ffw_norm.weight", width)

    def rope_factors(self):
        """Divisors of the angles as Llama 3.1 has them: long waves stretched, short ones kept."""
        c, s = self.c, self.c["rope_scaling"]
        n_rot = c.get("n_rot", c["head_dim"])
        waves = 2 * np.pi * c["rope_base"] ** (np.arange(0, n_rot, 2) / n_rot)
        smooth = (s["original"] / waves - s["low"]) / (s["high"] - s["low"])
        between = 1 / ((1 - smooth) / s["factor"] + smooth)
        factors = np.where(waves < s["original"] / s["high"], 1.0,
                           np.where(waves > s["original"] / s["low"], s["factor"], between))
        return factors.astype(np.float32)

    def build(self):
        c, width, vocab = self.c, self.c["width"], self.c["vocab"]
        self.keys()
        spread = 1 / np.sqrt(width) if c["tied"] else 0.02 if width > 256 else 0.2
        self.matrix("token_embd.weight", vocab, width, spread=spread)
        if c.get("rope_scaling", {}).get("type") == "llama3":
            self.add("rope_freqs.weight", gw.F32, (c.get("n_rot", c["head_dim"]) // 2,),
                     self.rope_factors)
        for i in range(c["layers"]):
            self.layer(i)
        self.norm("output_norm.weight", width)
        if not c["tied"]:
            self.matrix("output.weight", vocab, width)


# ------------------------------------------------------------------------------- command line

def rope_scaling(text):
    """linear:FACTOR, yarn:FACTOR:CONTEXT, llama3:FACTOR:LOW:HIGH:CONTEXT"""
    kind, *numbers = text.split(":")
    names = {"none": [], "linear": ["factor"], "yarn": ["factor", "original"],
             "llama3": ["factor", "low", "high", "original"]}
    if kind not in names or len(numbers) != len(names[kind]):
        raise argparse.ArgumentTypeError(f"'{text}': {rope_scaling.__doc__}")
    scaling = {name: float(n) for name, n in zip(names[kind], numbers)}
    scaling.setdefault("factor", 1.0)
    if "original" in scaling:
        scaling["original"] = int(scaling["original"])
    return dict(scaling, type=kind)


def per_layer(text):
    values = [int(n) for n in text.split(",")]
    return values[0] if len(values) == 1 else values


def extra_key(text):
    """KEY=TYPE:VALUE, as in llama.rope.scaling.attn_factor=f32:0.9"""
    try:
        key, rest = text.split("=", 1)
        type_name, value = rest.split(":", 1)
        layout = gw.VALUES[type_name][1]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"'{text}' is not KEY=TYPE:VALUE") from None
    if layout is not None:
        number = float(value) if layout in "fd" else int(value)
        value = bool(number) if layout == "?" else number
    return key, type_name, value


# Options that replace one entry of the configuration.
CHANGES = [
    ("--layers", int, "layers"), ("--width", int, "width of the residual stream"),
    ("--ff", per_layer, "width of the feed-forward part; a list gives one per layer"),
    ("--heads", per_layer, "query heads; a list gives one per layer"),
    ("--kv-heads", per_layer, "key and value heads; a list gives one per layer"),
    ("--head-dim", int, "width of a head"), ("--value-dim", int, "width of a value head"),
    ("--n-rot", int, "rotated values of a head"), ("--vocab", int, "tokens"),
    ("--context", int, "training context"), ("--rope-base", float, "base of the rope angles"),
    ("--rope-scaling", rope_scaling, rope_scaling.__doc__),
    ("--softcap", float, "soft cap of the logits"), ("--window", int, "sliding window"),
    ("--period", int, "every n-th layer sees all keys"),
    ("--pre", str, "name of the pre-tokenizer (BPE)"), ("--chat-template", str, "its text"),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("config", nargs="?")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--list", action="store_true", help="names of the configurations")
    parser.add_argument("--type", choices=sorted(gw.TYPES), default="f32")
    parser.add_argument("--name", help="seeds the weights; default: the configuration's name")
    parser.add_argument("--spm", action="store_true", help="an SPM vocabulary in place of BPE")
    parser.add_argument("--untied", action="store_true", help="a separate output matrix")
    parser.add_argument("--set", type=extra_key, action="append", default=[],
                        metavar="KEY=TYPE:VALUE", help="one more key")
    for option, kind, text in CHANGES:
        parser.add_argument(option, type=kind, help=text)
    options = parser.parse_args()
    if options.list:
        print("\n".join(CONFIGS))
        return
    if options.config not in CONFIGS or not options.out:
        parser.error("needs CONFIG and OUT.gguf; CONFIG is one of " + " ".join(CONFIGS))

    config = dict(CONFIGS[options.config])
    for option, _, _ in CHANGES:
        entry = option[2:].replace("-", "_")
        if getattr(options, entry) is not None:
            config[entry] = getattr(options, entry)
    if options.spm:
        config["spm"] = True
    if options.untied:
        config["tied"] = False
    if config["arch"] == "gemma3":
        config.setdefault("rope_base_swa", 1e4)

    writer = gw.Writer(options.out)
    model = Model(options.name or options.config, config, gw.TYPES[options.type], writer)
    model.build()
    for key, type_name, value in options.set:
        writer.value(key, type_name, value)
    writer.finish()
    print(f"{options.out}: {model.n_values / 1e6:.2f} M values")


if __name__ == "__main__":
    main()
