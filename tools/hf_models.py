#!/usr/bin/env python3
"""Tiny random checkpoints from transformers, as GGUF files with the logits that torch computes.

    hf_models.py OUT_DIR [NAME ...]      (without names: all; --list prints them)

An independent path: the mathematics is transformers', the mapping to GGUF is written here from
docs/models/, and Baton's own code has no part in it. For developers: needs torch, transformers,
numpy (a virtual environment of their own) and gguf_write.py beside it.

NAME.json holds the prompt, the logits of its last token in float32 and how far float32 and float64
of the same model are apart (`natural_nmse`), 64 greedy tokens, and how many of them do not hang on a
near tie (`greedy_sure`). Matrices are rounded to f16 first and stored so, which keeps files small.
Agreement to ask for: `nmse_max`, 16 times the natural distance (4 times in norm), at least 1e-10
because other orders of f32 summation are as good as torch's.
"""
import json
import os
import sys

import numpy as np
import torch
import transformers as tf

import gguf_write as gw
import mkmodel

V, PROMPT, GREEDY = 512, 75, 64
BASE = dict(vocab_size=V, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=8192,
            rms_norm_eps=1e-6, tie_word_embeddings=False, attention_dropout=0.0)
DELTA = dict(linear_conv_kernel_dim=4, linear_key_head_dim=32, linear_value_head_dim=32,
             linear_num_key_heads=2, linear_num_value_heads=4)
MOE = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True,
           decoder_sparse_step=1, mlp_only_layers=[])
SHARED = dict(shared_expert_intermediate_size=32)


def rope(base, **more):
    return dict(rope_parameters=dict(rope_type="default", rope_theta=base, **more))


def mrope(factor=0.5, sections=(3, 3, 2)):
    return rope(1e7, partial_rotary_factor=factor, mrope_section=list(sections),
                mrope_interleaved=True)


# name: (GGUF architecture, transformers class stem, settings)
MODELS = {
    "hf-llama": ("llama", "Llama", {**BASE, **rope(1e4)}),
    "hf-llama-rope3": ("llama", "Llama", {**BASE, "rope_parameters": dict(
        rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=32)}),
    "hf-llama-yarn": ("llama", "Llama", {**BASE, "rope_parameters": dict(
        rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=64)}),
    "hf-qwen2": ("qwen2", "Qwen2", {**BASE, **rope(1e6), "tie_word_embeddings": True,
                 "head_dim": 16}),
    "hf-qwen3": ("qwen3", "Qwen3", {**BASE, **rope(1e6), "head_dim": 64}),
    "hf-gemma3": ("gemma3", "Gemma3Text", {**BASE, "tie_word_embeddings": True,
                  "sliding_window": 16, "sliding_window_pattern": 2, "query_pre_attn_scalar": 32,
                  "final_logit_softcapping": 5.0, "rope_parameters": dict(
                      full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                      sliding_attention=dict(rope_type="default", rope_theta=1e4))}),
    "hf-mixtral": ("llama", "Mixtral", {**BASE, **rope(1e6), "intermediate_size": 32,
                   "num_local_experts": 6, "num_experts_per_tok": 3}),
    "hf-qwen3moe": ("qwen3moe", "Qwen3Moe", {**BASE, **MOE, **rope(1e6)}),
    "hf-qwen3moe-8of8": ("qwen3moe", "Qwen3Moe", {**BASE, **MOE, **rope(1e6),
                         "num_experts_per_tok": 8, "tie_word_embeddings": True}),
    "hf-qwen35": ("qwen35", "Qwen3_5Text", {**BASE, **DELTA, **mrope()}),
    "hf-qwen35-tied-r1": ("qwen35", "Qwen3_5Text", {**BASE, **DELTA, **mrope(),
                          "tie_word_embeddings": True, "linear_num_key_heads": 4}),
    "hf-qwen35-r3-i2": ("qwen35", "Qwen3_5Text", {**BASE, **DELTA, **mrope(),
                        "linear_num_value_heads": 6, "full_attention_interval": 2,
                        "num_attention_heads": 6, "num_key_value_heads": 3}),
    "hf-qwen35-wide-heads": ("qwen35", "Qwen3_5Text", {     # the heads of published models
        **BASE, **DELTA, **mrope(0.25, (11, 11, 10)),
        "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 3,
        "num_key_value_heads": 1, "head_dim": 256, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_num_key_heads": 1, "linear_num_value_heads": 3}),
    "hf-qwen35moe": ("qwen35moe", "Qwen3_5MoeText", {**BASE, **DELTA, **MOE, **SHARED, **mrope()}),
    "hf-qwen35moe-1of4": ("qwen35moe", "Qwen3_5MoeText", {
        **BASE, **DELTA, **MOE, **SHARED, **mrope(), "num_experts": 4, "num_experts_per_tok": 1,
        "linear_num_value_heads": 6, "full_attention_interval": 2, "tie_word_embeddings": True}),
    "hf-qwen35moe-r1-5of16": ("qwen35moe", "Qwen3_5MoeText", {
        **BASE, **DELTA, **MOE, **SHARED, **mrope(0.25, (2, 1, 1)),
        "num_experts": 16, "num_experts_per_tok": 5, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 64, "num_attention_heads": 8, "num_key_value_heads": 1,
        "linear_num_key_heads": 4}),
    "hf-qwen3next": ("qwen3next", "Qwen3Next", {**BASE, **DELTA, **MOE, **SHARED,
                     **rope(1e7, partial_rotary_factor=0.5)}),
    "hf-qwen3next-r3-8of8": ("qwen3next", "Qwen3Next", {
        **BASE, **DELTA, **MOE, **SHARED, **rope(1e7, partial_rotary_factor=0.25),
        "linear_num_value_heads": 6, "num_experts_per_tok": 8, "full_attention_interval": 2}),
}
HYBRIDS = ("qwen35", "qwen35moe", "qwen3next")
# Keys of the file, after the architecture's name, and what they are called in a checkpoint.
KEYS = (
    ("context_length", "max_position_embeddings"), ("block_count", "num_hidden_layers"),
    ("embedding_length", "hidden_size"), ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"), ("attention.value_length", "head_dim"),
    ("expert_count", "num_experts"), ("expert_count", "num_local_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ("attention.sliding_window", "sliding_window"),
    ("attention.sliding_window_pattern", "sliding_window_pattern"),
    ("ssm.conv_kernel", "linear_conv_kernel_dim"), ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"))


def build(stem, settings):
    """A model whose every parameter is random, norms and decays too, so that none can be missed."""
    config = getattr(tf, stem + "Config")(**settings)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"   # the only one that also runs in float64
    cls = getattr(tf, stem.replace("Text", "") + "ForCausalLM")
    model = cls(config).float().eval()
    generator = torch.Generator().manual_seed(20260101)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if name.endswith("A_log"):
                p.copy_(torch.log(1 + 15 * torch.rand(p.shape, generator=generator)))
            elif name.endswith("dt_bias"):
                p.copy_(noise - 3)
            elif "norm" in name:
                centre = 0.0 if plus_one(stem, name) else 1.0
                p.copy_(centre + 0.2 * noise)
            elif name.endswith("conv1d.weight"):
                p.copy_(0.5 * noise)
            elif name.endswith(".bias"):
                p.copy_(0.1 * noise)
            elif "embed_tokens" in name:
                p.copy_(noise * (p.shape[-1] ** -0.5))
            else:
                gain = 1.4 if ("q_proj" in name or "k_proj" in name) else 1.0
                p.copy_(gain * noise * (p.shape[-1] ** -0.5))
            if is_half(name, p.dim()):
                p.copy_(p.half().float())
    return model


def is_half(name, n_dims):
    """Matrices of the file that are stored as f16: not the router nor the convolution."""
    return n_dims > 1 and "conv1d" not in name and not name.endswith("mlp.gate.weight")


def plus_one(stem, name):
    """Whether this norm multiplies by 1 + weight."""
    if stem == "Gemma3Text":
        return True
    return stem.startswith(("Qwen3_5", "Qwen3Next")) and "linear_attn.norm" not in name


# ---- the mapping to GGUF

class File:
    def __init__(self, path, architecture, stem, settings, state):
        self.w, self.a, self.stem, self.s = gw.Writer(path), architecture, stem, settings
        self.state = {k.removeprefix("model."): v for k, v in state.items()}

    def get(self, name):
        value = self.state[name].double().numpy()
        return value + 1.0 if "norm" in name and plus_one(self.stem, name) else value

    def put(self, name, value):
        small = value.ndim > 1 and not name.endswith(("gate_inp.weight", "conv1d.weight"))
        value = np.ascontiguousarray(value, dtype=np.float16 if small else np.float32)
        kind = gw.F16 if small else gw.F32
        self.w.tensor(name, kind, value.shape[::-1], lambda: [value.tobytes()])

    def half_split_to_pairs(self, weight, heads):
        """Rows of each head from (i, i + half) order to pairs (2i, 2i + 1)."""
        rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1)
        return rows.swapaxes(1, 2).reshape(weight.shape)

    def tile_heads(self, value, axis, width):
        """V heads from grouped by K head to tiled: stored r * n_k + g comes from g * r_n + r."""
        n_k, n_v = self.s["linear_num_key_heads"], self.s["linear_num_value_heads"]
        if self.a == "qwen3next":
            return value
        moved = np.moveaxis(value, axis, 0)
        tiled = moved.reshape(n_k, n_v // n_k, width, -1).swapaxes(0, 1).reshape(moved.shape)
        return np.moveaxis(tiled, 0, axis)

    def attention(self, b, h):
        s = self.s
        for letter, heads in (("q", s["num_attention_heads"]), ("k", s["num_key_value_heads"]),
                              ("v", 0)):
            weight = self.get(h + f"{letter}_proj.weight")
            if self.a == "llama" and heads:
                weight = self.half_split_to_pairs(weight, heads)
            self.put(b + f"attn_{letter}.weight", weight)
            if h + f"{letter}_proj.bias" in self.state:
                self.put(b + f"attn_{letter}.bias", self.get(h + f"{letter}_proj.bias"))
        self.put(b + "attn_output.weight", self.get(h + "o_proj.weight"))
        if h + "q_norm.weight" in self.state:
            self.put(b + "attn_q_norm.weight", self.get(h + "q_norm.weight"))
            self.put(b + "attn_k_norm.weight", self.get(h + "k_norm.weight"))

    def delta_projections(self, b, h):
        """The in-projections as q rows, k rows, v rows; z; alpha; beta."""
        s, dk, dv = self.s, self.s["linear_key_head_dim"], self.s["linear_value_head_dim"]
        n_k, n_v = s["linear_num_key_heads"], s["linear_num_value_heads"]
        r = n_v // n_k
        if self.a != "qwen3next":
            qkv = self.get(h + "in_proj_qkv.weight")
            v = self.tile_heads(qkv[2 * n_k * dk:], 0, dv)
            self.put(b + "attn_qkv.weight", np.concatenate([qkv[:2 * n_k * dk], v]))
            self.put(b + "attn_gate.weight", self.tile_heads(self.get(h + "in_proj_z.weight"), 0, dv))
            for ours, theirs in (("alpha", "a"), ("beta", "b")):
                weight = self.get(h + f"in_proj_{theirs}.weight")
                self.put(b + f"ssm_{ours}.weight", self.tile_heads(weight, 0, 1))
            return
        qkvz = self.get(h + "in_proj_qkvz.weight").reshape(n_k, 2 * dk + 2 * r * dv, -1)
        q, k, v, z = np.split(qkvz, [dk, 2 * dk, 2 * dk + r * dv], axis=1)
        flat = [part.reshape(-1, qkvz.shape[-1]) for part in (q, k, v, z)]
        self.put(b + "attn_qkv.weight", np.concatenate(flat[:3]))
        self.put(b + "attn_gate.weight", flat[3])
        self.put(b + "ssm_ba.weight", self.get(h + "in_proj_ba.weight"))

    def delta(self, b, h):
        s, dk, dv = self.s, self.s["linear_key_head_dim"], self.s["linear_value_head_dim"]
        n_k = s["linear_num_key_heads"]
        self.delta_projections(b, h)
        conv = self.get(h + "conv1d.weight").squeeze(1)
        v = self.tile_heads(conv[2 * n_k * dk:], 0, dv)
        self.put(b + "ssm_conv1d.weight", np.concatenate([conv[:2 * n_k * dk], v]))
        self.put(b + "ssm_dt.bias", self.tile_heads(self.get(h + "dt_bias"), 0, 1))
        self.put(b + "ssm_a", self.tile_heads(-np.exp(self.get(h + "A_log")), 0, 1))
        self.put(b + "ssm_norm.weight", self.get(h + "norm.weight"))
        self.put(b + "ssm_out.weight", self.tile_heads(self.get(h + "out_proj.weight"), 1, dv))

    def ffn(self, b, h):
        if h + "gate.weight" not in self.state:
            for name in ("gate", "up", "down"):
                self.put(b + f"ffn_{name}.weight", self.get(h + f"{name}_proj.weight"))
            return
        self.put(b + "ffn_gate_inp.weight", self.get(h + "gate.weight"))
        gate_up = self.get(h + "experts.gate_up_proj")
        half = gate_up.shape[1] // 2
        self.put(b + "ffn_gate_exps.weight", gate_up[:, :half])
        self.put(b + "ffn_up_exps.weight", gate_up[:, half:])
        self.put(b + "ffn_down_exps.weight", self.get(h + "experts.down_proj"))
        if h + "shared_expert_gate.weight" in self.state:
            self.put(b + "ffn_gate_inp_shexp.weight", self.get(h + "shared_expert_gate.weight")[0])
            for name in ("gate", "up", "down"):
                self.put(b + f"ffn_{name}_shexp.weight",
                         self.get(h + f"shared_expert.{name}_proj.weight"))

    def layer(self, i):
        b, h = f"blk.{i}.", f"layers.{i}."
        self.put(b + "attn_norm.weight", self.get(h + "input_layernorm.weight"))
        if h + "linear_attn.A_log" in self.state:
            self.delta(b, h + "linear_attn.")
        else:
            self.attention(b, h + "self_attn.")
        after = "post_attention_norm" if self.a in HYBRIDS + ("gemma3",) else "ffn_norm"
        self.put(b + after + ".weight", self.get(h + "post_attention_layernorm.weight"))
        if self.a == "gemma3":
            self.put(b + "ffn_norm.weight", self.get(h + "pre_feedforward_layernorm.weight"))
            self.put(b + "post_ffw_norm.weight", self.get(h + "post_feedforward_layernorm.weight"))
        self.ffn(b, h + "mlp.")

    def rope_keys(self, p):
        r, w, s = self.s["rope_parameters"], self.w, self.s
        if "full_attention" in r:
            w.f32(p + "rope.freq_base_swa", r["sliding_attention"]["rope_theta"])
            r = r["full_attention"]
        w.f32(p + "rope.freq_base", r["rope_theta"])
        n_rot = int(s["head_dim"] * r.get("partial_rotary_factor", 1.0))
        w.u32(p + "rope.dimension_count", n_rot)
        if "mrope_section" in r:
            w.array(p + "rope.dimension_sections", "i32", r["mrope_section"] + [0])
        if r["rope_type"] in ("linear", "yarn"):
            w.string(p + "rope.scaling.type", r["rope_type"])
            w.f32(p + "rope.scaling.factor", r["factor"])
        if r["rope_type"] == "yarn":
            w.u32(p + "rope.scaling.original_context_length", r["original_max_position_embeddings"])
        if r["rope_type"] == "llama3":
            self.put("rope_freqs.weight", llama3_divisors(r, n_rot))

    def keys(self):
        w, s, p = self.w, self.s, self.a + "."
        w.string("general.architecture", self.a)
        w.u32("general.file_type", 1)
        for key, name in KEYS:
            if name in s:
                w.u32(p + key, s[name])
        if self.a in HYBRIDS:
            w.u32(p + "ssm.inner_size", s["linear_num_value_heads"] * s["linear_value_head_dim"])
            w.u32(p + "full_attention_interval", s.get("full_attention_interval", 4))
        if "final_logit_softcapping" in s:
            w.f32(p + "final_logit_softcapping", s["final_logit_softcapping"])
        w.f32(p + "attention.layer_norm_rms_epsilon", s["rms_norm_eps"])
        self.rope_keys(p)
        tokens, types, merges = mkmodel.vocabulary_bpe(V)
        w.string("tokenizer.ggml.model", "gpt2")
        w.string("tokenizer.ggml.pre", "qwen2")
        w.array("tokenizer.ggml.tokens", "string", tokens)
        w.array("tokenizer.ggml.token_type", "i32", types)
        w.array("tokenizer.ggml.merges", "string", merges)
        w.u32("tokenizer.ggml.eos_token_id", V - 2)

    def write(self):
        self.keys()
        self.put("token_embd.weight", self.get("embed_tokens.weight"))
        for i in range(self.s["num_hidden_layers"]):
            self.layer(i)
        self.put("output_norm.weight", self.get("norm.weight"))
        if not self.s["tie_word_embeddings"]:
            self.put("output.weight", self.get("lm_head.weight"))
        self.w.finish()


def llama3_divisors(r, n_rot):
    base, o = r["rope_theta"], r["original_max_position_embeddings"]
    low, high, factor = r["low_freq_factor"], r["high_freq_factor"], r["factor"]
    out = []
    for i in range(n_rot // 2):
        wave = 2 * np.pi * base ** (2 * i / n_rot)
        smooth = (o / wave - low) / (high - low)
        out.append(1.0 if wave < o / high else factor if wave > o / low
                   else 1 / ((1 - smooth) / factor + smooth))
    return np.array(out)


# ---- results

def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].double().numpy()


def greedy(model, tokens):
    """Greedy tokens, and how many of them come before the first near tie."""
    out, sure, clear = list(tokens), 0, True
    for _ in range(GREEDY):
        last = logits_of(model, out)[-1]
        order = np.argsort(-last, kind="stable")
        clear = clear and last[order[0]] - last[order[1]] > 1e-3 * np.std(last)
        sure += clear
        out.append(int(order[0]))
    return out[len(tokens):], sure


def make(name, folder):
    architecture, stem, settings = MODELS[name]
    model = build(stem, dict(settings))
    path = os.path.join(folder, name + ".gguf")
    File(path, architecture, stem, settings, model.state_dict()).write()
    generator = np.random.Generator(np.random.PCG64(len(name)))
    tokens = [int(t) for t in generator.integers(0, V - 4, PROMPT)]
    single = logits_of(model, tokens)[-1]
    tokens_out, sure = greedy(model, tokens)
    double = logits_of(model.double(), tokens)[-1]
    natural = float(np.sum((single - double) ** 2) / np.sum(double ** 2))
    result = dict(model=name + ".gguf", tokens=tokens, n_vocab=V,
                  logits_last=[round(float(x), 7) for x in single], greedy=tokens_out,
                  greedy_sure=int(sure), natural_nmse=[natural], nmse_max=max(16 * natural, 1e-10),
                  made_with=f"torch {torch.__version__}, transformers {tf.__version__}")
    with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as file:
        json.dump(result, file)
        file.write("\n")
    print(f"{name}: f32 against f64 {natural:.1e}, {sure} of {GREEDY} greedy tokens sure")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] == "--list":
        sys.exit("models: " + " ".join(MODELS))
    torch.set_num_threads(1)
    os.makedirs(sys.argv[1], exist_ok=True)
    for wanted in sys.argv[2:] or MODELS:
        make(wanted, sys.argv[1])
