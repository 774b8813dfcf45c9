"""Writes corpus/model_load/: models of a few kilobytes, with recurrent layers and experts.

    make_model_corpus.py FOLDER
"""
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tools"))
import gguf_write as gw  # noqa: E402

D, V, HEADS, KV_HEADS, DIM, FF = 16, 6, 2, 1, 8, 8
N_K, N_V, S, TAPS, EXPERTS = 1, 2, 8, 3, 3
KEYS, VALUES = N_K * S, N_V * S


class Model:
    def __init__(self, path, arch, **options):
        self.w, self.arch, self.o = gw.Writer(path), arch, options
        self.w.string("general.architecture", arch)

    def key(self, name, value):
        self.w.u32(f"{self.arch}.{name}", value)

    def tensor(self, name, *shape):
        values = np.sin(np.arange(np.prod(shape)) + len(name)).astype("<f4") / 4
        self.w.tensor(name, gw.F32, shape, lambda: [values.tobytes()])

    def keys(self, n_layers):
        for name, value in (("block_count", n_layers), ("context_length", 64),
                            ("embedding_length", D), ("attention.head_count", HEADS),
                            ("attention.head_count_kv", KV_HEADS), ("attention.key_length", DIM),
                            ("attention.value_length", DIM)):
            self.key(name, value)
        self.w.f32(self.arch + ".attention.layer_norm_rms_epsilon", 1e-6)
        if "experts" not in self.o or self.arch == "llama":
            self.key("feed_forward_length", FF)
        if "experts" not in self.o:
            return
        for name, value in (("expert_count", EXPERTS), ("expert_used_count", 2),
                            ("expert_feed_forward_length", FF)):
            self.key(name, value)

    def delta_keys(self):
        for name, value in (("rope.dimension_count", 4), ("full_attention_interval", 2),
                            ("ssm.conv_kernel", TAPS), ("ssm.state_size", S),
                            ("ssm.group_count", N_K), ("ssm.time_step_rank", N_V),
                            ("ssm.inner_size", VALUES)):
            self.key(name, value)
        if "experts" in self.o:
            self.key("expert_shared_feed_forward_length", FF)
        if "flags" in self.o:
            self.w.array(self.arch + ".attention.recurrent_layers", "bool", self.o["flags"])
            self.key("nextn_predict_layers", 1)
            self.w.array(self.arch + ".rope.dimension_sections", "i32", [1, 1, 0, 0])

    def delta_net(self, b):
        if "old" in self.o:
            self.tensor(b + "ssm_in.weight", D, 2 * (KEYS + VALUES))
            self.tensor(b + "ssm_ba.weight", D, 2 * N_V)
        else:
            self.tensor(b + "attn_qkv.weight", D, 2 * KEYS + VALUES)
            self.tensor(b + "attn_gate.weight", D, VALUES)
            self.tensor(b + "ssm_alpha.weight", D, N_V)
            self.tensor(b + "ssm_beta.weight", D, N_V)
        self.tensor(b + "ssm_conv1d.weight", TAPS, 2 * KEYS + VALUES)
        for name, n in (("ssm_dt.bias", N_V), ("ssm_a", N_V), ("ssm_norm.weight", S)):
            self.tensor(b + name, n)
        self.tensor(b + "ssm_out.weight", VALUES, D)

    def attention(self, b, gated, normed):
        self.tensor(b + "attn_q.weight", D, HEADS * DIM * (2 if gated else 1))
        for part in "kv":
            self.tensor(b + f"attn_{part}.weight", D, KV_HEADS * DIM)
        for part in "qk" if normed else "":
            self.tensor(b + f"attn_{part}_norm.weight", DIM)
        self.tensor(b + "attn_output.weight", HEADS * DIM, D)

    def feed_forward(self, b, shared):
        if "experts" not in self.o:
            self.tensor(b + "ffn_gate.weight", D, FF)
            self.tensor(b + "ffn_up.weight", D, FF)
            self.tensor(b + "ffn_down.weight", FF, D)
            return
        self.tensor(b + "ffn_gate_inp.weight", D, EXPERTS)
        if self.o["experts"] == "merged":
            self.tensor(b + "ffn_gate_up_exps.weight", D, 2 * FF, EXPERTS)
        else:
            self.tensor(b + "ffn_gate_exps.weight", D, FF, EXPERTS)
            self.tensor(b + "ffn_up_exps.weight", D, FF, EXPERTS)
        self.tensor(b + "ffn_down_exps.weight", FF, D, EXPERTS)
        if shared:
            self.tensor(b + "ffn_gate_inp_shexp.weight", D)
            self.tensor(b + "ffn_gate_shexp.weight", D, FF)
            self.tensor(b + "ffn_up_shexp.weight", D, FF)
            self.tensor(b + "ffn_down_shexp.weight", FF, D)

    def build(self, hybrid=False, normed=False):
        behind = "flags" in self.o
        self.keys(2 + behind)
        if hybrid:
            self.delta_keys()
        self.tensor("token_embd.weight", D, V)
        for i in range(2 + behind):
            b = f"blk.{i}."
            self.tensor(b + "attn_norm.weight", D)
            if hybrid and i == 0:
                self.delta_net(b)
            else:
                self.attention(b, hybrid, normed)
            self.tensor(b + ("post_attention_norm.weight" if hybrid else "ffn_norm.weight"), D)
            self.feed_forward(b, hybrid)
        self.tensor("output_norm.weight", D)
        self.w.finish()


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    Model(folder / "llama.gguf", "llama").build()
    Model(folder / "llama-experts.gguf", "llama", experts="merged").build()
    Model(folder / "qwen3moe.gguf", "qwen3moe", experts="apart").build(normed=True)
    Model(folder / "qwen35.gguf", "qwen35", flags=[True, False, False]).build(True, True)
    Model(folder / "qwen35moe.gguf", "qwen35moe", experts="apart").build(True, True)
    Model(folder / "qwen3next.gguf", "qwen3next", experts="merged", old=True).build(True, True)


if __name__ == "__main__":
    main()
