#!/usr/bin/env python3
"""The twins with recurrent state or experts: hybrid_twins.py FOLDER [--results DIR] [--baton FILE]

Makes models in FOLDER and checks the twins against themselves: a model written in another form of
file (merged experts, the tensors of Qwen3-Next, a block behind the trunk, ...) gives the same logits,
chunked recurrences give what the token recurrence gives, and a prompt's beginning what the whole
prompt gives there. How much may differ is measured: four times what the twin loses in single
precision, times 2^-29, by which roundings shrink and mistakes do not.

--results: also every NAME.json of these families there, beside its NAME.gguf, as made by another
engine: logits, and greedy tokens as far as they are sure. Can be given more than once; the
environment's BATON_GOLDEN_DIR is one more.
--baton: also the engine against the twins, on every tier of instruction sets, as twins.py does it.
"""
import argparse
import importlib
import json
import os
import pathlib
import sys

import numpy as np

import twins
import variants
from parts import Model              # noqa: E402 (variants sets the path)
import gguf_write as gw              # noqa: E402
import hybrid                        # noqa: E402
import mkmodel                       # noqa: E402

FAMILIES = ("llama", "qwen3moe", "qwen35", "qwen35moe", "qwen3next")
SINGLE_TO_DOUBLE = 2.0 ** -29


# --------------------------------------------------------------------------------------- edits
# As in variants.py: each changes tensors and keys in place.

def rows_of(tensors, name):
    _, shape, raw = tensors[name]
    return np.frombuffer(raw, "<f4").reshape(shape[::-1])


def put(tensors, name, rows):
    tensors[name] = (gw.F32, rows.shape[::-1], np.ascontiguousarray(rows, "<f4").tobytes())


def named(tensors, part):
    return [name for name in tensors if name.split(".")[2:3] == [part]]


def arch(keys):
    return keys["general.architecture"][1]


def number(keys, name):
    return keys[f"{arch(keys)}.{name}"][1]


def rename_arch(keys, new):
    old = arch(keys) + "."
    for name in [n for n in keys if n.startswith(old)]:
        keys[new + "." + name.removeprefix(old)] = keys.pop(name)
    keys["general.architecture"] = ("string", new)


def merge_experts(tensors, keys):
    """One tensor for gate and up."""
    for name in named(tensors, "ffn_gate_exps"):
        parts = [rows_of(tensors, name), rows_of(tensors, name.replace("gate", "up"))]
        put(tensors, name.replace("gate", "gate_up"), np.concatenate(parts, axis=1))
        del tensors[name], tensors[name.replace("gate", "up")]


def no_expert_width(tensors, keys):
    """Mixtral's files call an expert's width that of the feed-forward block."""
    keys["llama.feed_forward_length"] = keys.pop("llama.expert_feed_forward_length")


def as_qwen3next(tensors, keys):
    """Value heads grouped by key head in place of tiled; beta and alpha in one tensor."""
    n_k, n_v = number(keys, "ssm.group_count"), number(keys, "ssm.time_step_rank")
    s = number(keys, "ssm.state_size")
    heads = np.arange(n_v).reshape(n_v // n_k, n_k).T.reshape(-1)    # where each one is now
    values = (heads[:, None] * s + np.arange(s)).reshape(-1)
    channels = np.concatenate([np.arange(2 * n_k * s), 2 * n_k * s + values])
    for part, order in (("attn_gate", values), ("attn_qkv", channels), ("ssm_conv1d", channels),
                        ("ssm_a", heads), ("ssm_dt", heads), ("ssm_alpha", heads),
                        ("ssm_beta", heads)):
        for name in named(tensors, part):
            if part != "attn_gate" or name.replace("gate", "qkv") in tensors:
                put(tensors, name, rows_of(tensors, name)[order])
    for name in named(tensors, "ssm_out"):
        put(tensors, name, rows_of(tensors, name)[:, values])
    for name in named(tensors, "ssm_beta"):
        beta, alpha = (rows_of(tensors, n).reshape(n_k, n_v // n_k, -1)
                       for n in (name, name.replace("beta", "alpha")))
        both = np.concatenate([beta, alpha], axis=1)
        put(tensors, name.replace("beta", "ba"), both.reshape(2 * n_v, -1))
        del tensors[name], tensors[name.replace("beta", "alpha")]
    rename_arch(keys, "qwen3next")
    del keys["qwen3next.rope.dimension_sections"]


def one_projection(tensors, keys):
    """The oldest form of Qwen3-Next: q, k, v and z of each key head together."""
    n_k, s = number(keys, "ssm.group_count"), number(keys, "ssm.state_size")
    for name in named(tensors, "attn_qkv"):
        qkv = rows_of(tensors, name)
        q, k, v = np.split(qkv, [n_k * s, 2 * n_k * s])
        z = rows_of(tensors, name.replace("qkv", "gate"))
        by_head = [part.reshape(n_k, -1, qkv.shape[1]) for part in (q, k, v, z)]
        put(tensors, name.replace("attn_qkv", "ssm_in"),
            np.concatenate(by_head, axis=1).reshape(-1, qkv.shape[1]))
        del tensors[name], tensors[name.replace("qkv", "gate")]


def layer_flags(tensors, keys):
    """Which layers are recurrent as an array, beside an interval that says something else."""
    every = number(keys, "full_attention_interval")
    flags = [(i + 1) % every != 0 for i in range(number(keys, "block_count"))]
    keys[arch(keys) + ".attention.recurrent_layers"] = (("array", "bool"), flags)
    keys[arch(keys) + ".full_attention_interval"] = ("u32", every + 1)


def heads_by_layer(tensors, keys):
    """Numbers of heads as arrays that have none for recurrent layers."""
    every, n = number(keys, "full_attention_interval"), number(keys, "block_count")
    for name in ("attention.head_count", "attention.head_count_kv"):
        heads = [0 if (i + 1) % every else number(keys, name) for i in range(n)]
        keys[f"{arch(keys)}.{name}"] = (("array", "u32"), heads)


def block_behind(tensors, keys):
    """A block that predicts further tokens behind the trunk, whose values must not matter."""
    n, width = number(keys, "block_count"), number(keys, "embedding_length")
    for name in [t for t in tensors if t.startswith(f"blk.{n - 1}.")]:
        put(tensors, name.replace(f".{n - 1}.", f".{n}."), -3 * rows_of(tensors, name))
    put(tensors, f"blk.{n}.nextn.eh_proj.weight", np.ones((width, 2 * width)))
    for part in ("enorm", "hnorm", "shared_head_norm"):
        put(tensors, f"blk.{n}.nextn.{part}.weight", np.ones(width))
    keys[arch(keys) + ".block_count"] = ("u32", n + 1)
    keys[arch(keys) + ".nextn_predict_layers"] = ("u32", 1)


def block_behind_flagged(tensors, keys):
    layer_flags(tensors, keys)
    block_behind(tensors, keys)         # the array stays as long as the trunk


# --------------------------------------------------------------------------------- the models

def delta(k_heads, v_heads, conv=4, state=32):
    return dict(conv=conv, state=state, k_heads=k_heads, v_heads=v_heads)


def config(base, **changes):
    return dict(mkmodel.TINIES["tiny-" + base], **changes)


EXPERTS = dict(n=8, ff=32, shared_ff=64)
MODELS = {
    "llama-experts": config("llama", experts=dict(n=6, used=3, ff=64, shared_ff=0)),
    "qwen3moe": config("qwen3moe"),
    "qwen3moe-all": config("qwen3moe", tied=True, heads=3, kv_heads=1,
                           experts=dict(n=5, used=5, ff=96, shared_ff=0)),
    "qwen3moe-one": config("qwen3moe", experts=dict(n=16, used=1, ff=32, shared_ff=0)),
    "qwen35-r1": config("qwen35"),
    "qwen35-r2": config("qwen35-v2k"),
    "qwen35-r3": config("qwen35", tied=False, delta=delta(2, 6), layers=8, heads=6, kv_heads=3),
    "qwen35-r4-long-conv": config("qwen35", delta=delta(1, 4, conv=6, state=16), interval=2),
    "qwen35moe-r2": config("qwen35moe", experts=dict(EXPERTS, used=2)),
    "qwen35moe-r3": config("qwen35moe", delta=delta(2, 6), interval=2, tied=True,
                           experts=dict(EXPERTS, used=8)),
    "qwen35moe-r1-one": config("qwen35moe", delta=delta(2, 2), experts=dict(EXPERTS, used=1)),
}
FORMS = {   # other forms of the same model: edits that must change nothing
    "llama": {"merged experts": merge_experts, "width of the block": no_expert_width},
    "qwen3moe": {"merged experts": merge_experts},
    "qwen35": {"flags by layer": layer_flags, "heads by layer": heads_by_layer,
               "a block behind": block_behind, "a block behind, flags": block_behind_flagged},
    "qwen35moe": {"merged experts": merge_experts, "flags by layer": layer_flags,
                  "a block behind": block_behind, "as qwen3next": as_qwen3next,
                  "as qwen3next, ssm_in": variants.both(as_qwen3next, one_projection),
                  "as qwen3next, merged experts, a block behind":
                      variants.both(as_qwen3next, merge_experts, block_behind)},
}
PROMPT = 150


def build(path, name):
    writer = gw.Writer(path)
    mkmodel.Model(name, MODELS[name], gw.F32, writer).build()
    writer.finish()


def run(path, tokens, dtype=np.float64, **how):
    model = Model(path, dtype)
    forward = importlib.import_module(model.arch).forward
    return forward(model, tokens, **how).astype(np.float64)


def tokens_for(name, vocab):
    return np.random.Generator(np.random.SFC64(len(name))).integers(0, vocab, PROMPT).tolist()


def check_model(folder, name, baton):
    path, other = folder / f"{name}.gguf", folder / f"{name}.form.gguf"
    build(path, name)
    family, tokens = MODELS[name]["arch"], tokens_for(name, MODELS[name]["vocab"])
    exact, single = run(path, tokens), run(path, tokens, np.float32)
    lost = twins.differences(single, exact)
    allowed = 4 * SINGLE_TO_DOUBLE * lost
    good = True
    for size in (16, 64) if "delta" in MODELS[name] else ():
        # The chunked form rounds otherwise, so it is judged by its own loss.
        chunked = twins.differences(run(path, tokens, np.float32, chunk=size), exact)
        good &= twins.judge(f"{name}, chunks of {size}", run(path, tokens, chunk=size), exact,
                            4 * SINGLE_TO_DOUBLE * chunked)
    for n in (1, 2, 3, 5):
        good &= twins.judge(f"{name}, the first {n}", run(path, tokens[:n]), exact[:n],
                            np.full(n, allowed.max()))
    for form, edit in FORMS[family].items():
        variants.rewrite(path, other, edit)
        what = f"{name}, {form}"
        good &= twins.judge(what, run(other, tokens), exact, allowed)
        if baton:
            good &= check_engine(baton, other, what, tokens, ["best"])    # only loading differs
    if baton:
        good &= check_engine(baton, path, name, tokens, twins.TIERS)
    other.unlink(missing_ok=True)
    path.unlink()
    return good


def check_engine(baton, path, what, tokens, tiers):
    exact, good, tried = twins.twin(path, tokens, np.float64, "f32"), True, 0
    lost = 4 * twins.differences(twins.twin(path, tokens, np.float32, "f32"), exact)
    for tier in tiers:
        isa = [] if tier == "best" else ["--isa", tier]
        ours = twins.engine(baton, path, tokens, *isa, "-ctk", "f32", "-ctv", "f32")
        if ours is not None:
            good &= twins.judge(f"{what} {tier}, engine", ours, exact, lost)
            tried += 1
    if not tried:
        sys.exit("this machine has none of the tiers " + ",".join(tiers))
    return good


# -------------------------------------------------------------------------------- other engines

def nmse(ours, reference):
    return float(np.sum((ours - reference) ** 2) / np.sum(np.square(reference)))


def check_result(result):
    """Against logits made elsewhere. Where the reference is exact arithmetic on decoded weights, no
    more than 16 times (4 in norm) what single precision loses is allowed, whatever the file asks."""
    path, wanted = result.with_suffix(".gguf"), json.loads(result.read_text())
    exact_form = "logits_exact" in wanted
    reference = np.array(wanted["logits_exact" if exact_form else "logits_last"])
    greedy, last = wanted["greedy_exact" if exact_form else "greedy"], len(wanted["tokens"]) - 1
    # Greedy decoding agrees with the reference if and only if every token of the reference is the
    # best one behind those before it, so one pass over all of them tells.
    logits = run(path, wanted["tokens"] + greedy[:-1])
    single = run(path, wanted["tokens"], np.float32)[-1]
    most = wanted["nmse_max"]
    if exact_form:
        most = min(most, 16 * nmse(single, logits[last]))
    found = nmse(logits[last], reference)
    same = logits[last:].argmax(axis=1) == greedy
    n_same = len(same) if same.all() else int(same.argmin())
    good = found <= most and n_same >= wanted["greedy_sure"]
    line = (f"{result.stem}: nmse {found:.1e} (single {nmse(single, reference):.1e}, allowed "
            f"{most:.1e}), greedy {n_same} of {len(greedy)} ({wanted['greedy_sure']} sure)")
    if exact_form:
        line += f", to quantised activations {nmse(logits[last], wanted['logits_last']):.1e}"
    for size in (16, 64) if Model(path).key("ssm.state_size") else ():
        chunked = nmse(run(path, wanted["tokens"], chunk=size)[-1], reference)
        line, good = line + f", chunks of {size} {chunked:.1e}", good and chunked <= most
    print(line + (": agrees" if good else ": DIFFERS"), flush=True)
    return good


def check_results(folder):
    results = [r for r in sorted(folder.glob("*.json")) if r.with_suffix(".gguf").exists()
               and Model(r.with_suffix(".gguf")).arch in FAMILIES]
    if not results:
        sys.exit(f"{folder}: no results of {', '.join(FAMILIES)}")
    return all([check_result(r) for r in results])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--baton")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if os.environ.get("BATON_GOLDEN_DIR"):
        options.results.append(pathlib.Path(os.environ["BATON_GOLDEN_DIR"]))
    good = hybrid.self_check()
    for name in MODELS:
        good &= check_model(options.folder, name, options.baton)
    for folder in options.results:
        good &= check_results(folder)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
