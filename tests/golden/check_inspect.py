"""What `baton inspect` says, against what was written: check_inspect.py BATON FOLDER

FOLDER holds the golden models; files of its own go into a temporary folder.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tools"))
import gguf_write as gw  # noqa: E402
import mkmodel  # noqa: E402

BATON = sys.argv[1]
MODELS = pathlib.Path(sys.argv[2])


def run(*words, code=0):
    done = subprocess.run([BATON, "inspect", *map(str, words)], capture_output=True, timeout=60)
    assert done.returncode == code, (words, done.returncode, done.stderr)
    return done


def inspect(*words):
    return json.loads(run("--json", *words).stdout.decode("utf-8"))


def state_values(config):
    """Of one recurrent layer: the convolution's past and a matrix per value head."""
    if "delta" not in config:
        return 0
    delta = config["delta"]
    channels = (2 * delta["k_heads"] + delta["v_heads"]) * delta["state"]
    return (delta["conv"] - 1) * channels + delta["v_heads"] * delta["state"] ** 2


def check_counts(said, config, n_attention):
    experts = config.get("experts", dict(n=0, used=0))
    assert said["layers"] == {"count": config["layers"], "behind": 0,
                              "recurrent": config["layers"] - n_attention,
                              "experts": experts["n"], "experts_used": experts["used"]}
    idle = sum(np.prod(t["shape"]) * (experts["n"] - experts["used"]) // experts["n"]
               for t in said["tensors"] if "_exps." in t["name"])
    assert said["parameters"] == {"all": said["total"]["values"],
                                  "active": said["total"]["values"] - idle}


def check_snapshots(path, memory):
    """What one takes, how many fit, all of them: for people, at several limits."""
    def kept(limit):
        text = run(path, "--snapshot-bytes", limit).stdout.decode()
        lines = [line.strip() for line in text.splitlines() if "kept" in line]
        return lines, json.loads(run(path, "--snapshot-bytes", limit, "--json").stdout)["memory"]

    each = memory["snapshot_each_bytes"]
    if not each:
        assert kept(2 << 30)[0] == []
        return
    lines, told = kept(10 * each + 5)
    assert "each; 10 fit in" in lines[0] and "(--snapshot-bytes)" in lines[0], lines
    assert told["snapshots"] == 10 and told["snapshot_limit_bytes"] == 10 * each + 5, told
    assert told["snapshot_bytes"] == 10 * each, told
    assert len(lines) == 2 and lines[1].startswith("together"), lines
    lines, told = kept(each - 1)
    assert len(lines) == 1 and "each; none fits in" in lines[0], lines
    assert told["snapshots"] == told["snapshot_bytes"] == 0, told
    lines, told = kept("1024G")
    assert told["snapshots"] == 65535 and "each; 65535 are kept at most, " in lines[0], lines


def check_model(path):
    """Shapes and sizes follow from the configuration alone."""
    name, type_name = path.stem.rsplit("-", 1)
    config = mkmodel.CONFIGS[name]
    said = inspect(path)
    assert said["bytes"] == path.stat().st_size and said["parts"] == 1 and said["version"] == 3
    keys = said["metadata"]
    assert keys["general.architecture"] == {"type": "string", "value": config["arch"]}
    assert keys[config["arch"] + ".block_count"] == {"type": "u32", "value": config["layers"]}
    tokens = keys["tokenizer.ggml.tokens"]
    assert tokens["count"] == config["vocab"] and len(tokens["first"]) == 8
    whole = inspect(path, "--all")["metadata"]["tokenizer.ggml.tokens"]["first"]
    assert whole == mkmodel.vocabulary_bpe(config["vocab"])[0]

    by_name = {t["name"]: t for t in said["tensors"]}
    assert by_name["token_embd.weight"]["shape"] == [config["width"], config["vocab"]]
    if type_name == "f32":
        assert set(said["types"]) == {"F32"}
        assert said["total"]["bytes"] == 4 * said["total"]["values"]
    for field in ("tensors", "bytes", "values"):
        assert said["total"][field] == sum(t[field] for t in said["types"].values())
    assert said["total"]["bytes"] == sum(t["bytes"] for t in said["tensors"])

    # Two rows (key and value) of f16 for each layer with attention and token.
    n_attention = config["layers"] // config.get("interval", 1)
    token_bytes = 2 * 2 * n_attention * config["kv_heads"] * config["head_dim"]
    state_bytes = (config["layers"] - n_attention) * state_values(config) * 4
    check_counts(said, config, n_attention)
    for n_ctx, words in ((config["context"], []), (1000, ["-c", "1000"])):
        memory = inspect(path, *words)["memory"]
        assert memory["context"] == n_ctx and memory["context_trained"] == config["context"]
        assert memory["kv_token_bytes"] == token_bytes, memory
        assert memory["kv_bytes"] == token_bytes * n_ctx
        assert memory["weights_bytes"] == said["total"]["bytes"]
        assert memory["state_bytes"] == state_bytes, memory
        assert memory["total_bytes"] == sum(memory[part + "_bytes"] for part in
                                            ("kv", "weights", "state", "snapshot"))
        # In memory each layer's part is padded to a cache line.
        each = memory["snapshot_each_bytes"]
        assert state_bytes <= each <= state_bytes + 2 * 64 * config["layers"], memory
        assert memory["snapshot_limit_bytes"] == 2 << 30
        assert memory["snapshots"] == (min((2 << 30) // each, 65535) if each else 0)
        assert memory["snapshot_bytes"] == memory["snapshots"] * each
    check_snapshots(path, inspect(path, "-c", "1000")["memory"])
    assert b"memory for a context of 1000 tokens" in run(path, "-c", 1000).stdout


VALUES = [("u8", 200), ("i8", -100), ("u16", 60000), ("i16", -30000), ("u32", 4000000000),
          ("i32", -2000000000), ("f32", 1.5), ("bool", True), ("u64", 2**64 - 1), ("i64", -2**63),
          ("f64", 0.1)]


def check_values(folder):
    """Every type survives, scalar and array; a file without tensors is fine."""
    path = folder / "values.gguf"
    w = gw.Writer(path)
    for name, value in VALUES:
        w.value("a." + name, name, value)
        w.array("b." + name, name, [value] * 3)
    w.f32("tenth", 0.1)
    w.value("inf", "f64", float("inf"))
    w.finish()
    said = inspect(path)
    for name, value in VALUES:
        assert said["metadata"]["a." + name] == {"type": name, "value": value}, name
        assert said["metadata"]["b." + name]["first"] == [value] * 3
    assert b'"tenth":{"type":"f32","value":0.1}' in run(path, "--json").stdout
    assert said["metadata"]["inf"]["value"] is None
    assert said["tensors"] == [] and said["memory"] is None and said["memory_unknown"]
    assert b"\n0 tensors\n" in run(path).stdout


def check_hostile_text(folder):
    """Nothing that a file holds reaches the terminal as a control character."""
    path = folder / "hostile.gguf"
    nasty = ("\x1b[2J\r\x07\x00\x7f\u009b2J\u202egnp\u200b\U000e0041\"\\\n\t\u00e9\U0001f600"
             .encode() + b"\xff\xc3")
    w = gw.Writer(path)
    w.value("general.architecture", "string", nasty)
    w.array("list", "string", [nasty, "x" * 500])
    w.u32("key\u009b\u202e", 1)
    w.tensor("name\u202e", gw.F32, (1,), lambda: [b"\0\0\0\0"])
    w.finish()
    text = run(path).stdout.decode("utf-8")
    for c in text:
        assert c == "\n" or (c >= " " and not 0x7f <= ord(c) <= 0x9f and ord(c) not in
                             (0x202e, 0x200b, 0xe0041)), (c, text)
    assert "\\xff\\xc3" in text and "440 bytes more" in text and "\u00e9\U0001f600" in text
    said = inspect(path)
    assert said["metadata"]["general.architecture"]["value"] == nasty.decode(errors="replace")
    assert said["metadata"]["key\u009b\u202e"]["value"] == 1
    assert said["tensors"][0]["name"] == "name\u202e"


def check_refusals(folder):
    path = folder / "short.gguf"
    path.write_bytes((MODELS / "tiny-llama-f32.gguf").read_bytes()[:40000])
    done = run(path, code=1)
    assert b"error: 'short.gguf'" in done.stderr and done.stdout == b""
    assert b"cannot be opened" in run(folder / "none.gguf", code=1).stderr
    assert b"FILE is missing" in run(code=2).stderr
    assert b"one file too many" in run(path, path, code=2).stderr
    assert b"from 0 to 16777216" in run(path, "-c", 16777217, code=2).stderr


def check_parts(folder):
    for i in range(3):
        w = gw.Writer(folder / f"m-{i + 1:05}-of-00003.gguf")
        w.value("split.no", "u16", i)
        w.value("split.count", "u16", 3)
        w.value("split.tensors.count", "i32", 2)
        if i > 0:
            w.tensor(f"t{i}", gw.F32, (4,), lambda: [bytes(16)])
        w.finish()
    said = inspect(folder / "m-00001-of-00003.gguf")
    assert said["parts"] == 3 and [t["part"] for t in said["tensors"]] == [1, 2]


# What files of published models say. Bytes per token of f16 keys and values, bytes of state per
# sequence: 64 KiB and 149.625 MiB for 27B, 20 KiB and 62.8125 MiB for 35B-A3B.
HYBRID = {"context_length": 262144, "attention.key_length": 256, "attention.value_length": 256,
          "rope.dimension_count": 64, "full_attention_interval": 4, "ssm.conv_kernel": 4,
          "ssm.state_size": 128, "ssm.group_count": 16}
PUBLISHED = [
    ("qwen35", dict(HYBRID, **{
        "block_count": 64, "embedding_length": 5120, "feed_forward_length": 17408,
        "attention.head_count": 24, "attention.head_count_kv": 4, "ssm.time_step_rank": 48,
        "ssm.inner_size": 6144}), 64 * 1024, 156893184, 48),
    ("qwen35", dict(HYBRID, **{         # the same with a block for the token after the next
        "block_count": 65, "nextn_predict_layers": 1, "embedding_length": 5120,
        "feed_forward_length": 17408, "attention.head_count": 24, "attention.head_count_kv": 4,
        "ssm.time_step_rank": 48, "ssm.inner_size": 6144}), 64 * 1024, 156893184, 48),
    ("qwen35moe", dict(HYBRID, **{
        "block_count": 41, "nextn_predict_layers": 1, "embedding_length": 2048,
        "attention.head_count": 16, "attention.head_count_kv": 2, "ssm.time_step_rank": 32,
        "ssm.inner_size": 4096, "expert_count": 256, "expert_used_count": 8,
        "expert_feed_forward_length": 512, "expert_shared_feed_forward_length": 512}),
     20 * 1024, 65863680, 30),
    ("qwen3next", dict(HYBRID, **{
        "block_count": 48, "embedding_length": 2048, "attention.head_count": 16,
        "attention.head_count_kv": 2, "ssm.time_step_rank": 32, "ssm.inner_size": 4096,
        "expert_count": 512, "expert_used_count": 10, "expert_feed_forward_length": 512,
        "expert_shared_feed_forward_length": 512}), 24 * 1024, 79036416, 36),
]


def check_published(folder):
    """Files of metadata alone."""
    path = folder / "published.gguf"
    for arch, keys, token_bytes, state_bytes, n_recurrent in PUBLISHED:
        w = gw.Writer(path)
        w.value("general.architecture", "string", arch)
        for key, value in keys.items():
            w.u32(f"{arch}.{key}", value)
        w.f32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)
        w.u32(f"{arch}.vocab_size", 248320)
        if arch != "qwen3next":
            w.array(f"{arch}.rope.dimension_sections", "i32", [11, 11, 10, 0])
        w.finish()
        said = inspect(path)
        assert said["memory"], said["memory_unknown"]
        assert said["memory"]["kv_token_bytes"] == token_bytes, said["memory"]
        assert said["memory"]["state_bytes"] == state_bytes, said["memory"]
        behind = keys.get("nextn_predict_layers", 0)
        assert said["layers"]["count"] == keys["block_count"] - behind
        assert said["layers"]["recurrent"] == n_recurrent and said["layers"]["behind"] == behind
        kept = inspect(path, "--snapshot-bytes", "1G")["memory"]
        each = kept["snapshot_each_bytes"]
        assert state_bytes <= each <= 1.01 * state_bytes, kept
        assert kept["snapshots"] == (1 << 30) // each
        assert kept["snapshot_bytes"] == kept["snapshots"] * each
        text = run(path, "-c", 1000).stdout.decode()
        assert f"{token_bytes} bytes per token" in text and f"{state_bytes} bytes" in text, text


class HeaderWriter(gw.Writer):
    """A file of the right size that has no data: holes in place of tensors."""

    def _write_payload(self, out, tensor):
        out.seek(self.round_up(gw.tensor_bytes(tensor[1], tensor[2])), 1)
        out.truncate()


WIDE = dict(n_rot=64, sections=[11, 11, 10, 0], vocab=248320, tied=False, context=262144,
            head_dim=256, rope_base=1e7, eps=1e-6, interval=4)
WHOLE = {
    # name: (configuration, tensors, billions of parameters, of active ones)
    "27B": (dict(WIDE, arch="qwen35", layers=64, width=5120, ff=17408, heads=24, kv_heads=4,
                 delta=dict(conv=4, state=128, k_heads=16, v_heads=48)), 851, 26.9, 26.9),
    "35B-A3B": (dict(WIDE, arch="qwen35moe", layers=40, width=2048, ff=512, heads=16, kv_heads=2,
                     delta=dict(conv=4, state=128, k_heads=16, v_heads=32),
                     experts=dict(n=256, used=8, ff=512, shared_ff=512)), 733, 34.7, 3.5),
}


def block_behind(model, config):
    """The tensors of a block that predicts the token after the next one, of the dense model."""
    n, width = config["layers"], config["width"]
    model.norm(f"blk.{n}.attn_norm.weight", width)
    model.attention(f"blk.{n}.", n)
    model.norm(f"blk.{n}.post_attention_norm.weight", width)
    model.feed_forward(f"blk.{n}.", n)
    model.matrix(f"blk.{n}.nextn.eh_proj.weight", width, 2 * width)
    for part in ("enorm", "hnorm", "shared_head_norm"):
        model.norm(f"blk.{n}.nextn.{part}.weight", width)


def check_whole(folder):
    """Every tensor of the published models, with nothing in them."""
    path = folder / "whole.gguf"
    for name, (config, n_tensors, billions, active) in WHOLE.items():
        w = HeaderWriter(path)
        model = mkmodel.Model(name, config, gw.Q4_0, w)
        model.build()
        w.finish()
        said = inspect(path, "-c", 32768)
        assert said["total"]["tensors"] == n_tensors, said["total"]
        found = said["parameters"]
        assert found["all"] == model.n_values == said["total"]["values"]
        assert [round(found["all"] / 1e9, 1), round(found["active"] / 1e9, 1)] == \
            [billions, active], found
    # A block behind the layers: in the file, but neither a layer nor active.
    config, n_tensors = WHOLE["27B"][:2]
    w = HeaderWriter(path)
    model = mkmodel.Model("27B", dict(config, layers=65), gw.Q4_0, w)
    model.keys()
    w.u32("qwen35.nextn_predict_layers", 1)
    model.c, model.keys = config, lambda: None
    model.build()
    trunk = model.n_values
    block_behind(model, config)
    w.finish()
    said = inspect(path)
    assert said["total"]["tensors"] == n_tensors + 15 and said["layers"]["behind"] == 1
    assert said["layers"]["count"] == 64
    assert said["parameters"] == {"all": model.n_values, "active": trunk}
    assert said["memory"]["kv_token_bytes"] == 64 * 1024
    assert said["memory"]["state_bytes"] == 156893184


def main():
    models = [path for path in sorted(MODELS.glob("tiny*.gguf"))
              if path.stem.rsplit("-", 1)[0] in mkmodel.CONFIGS]
    assert len(models) >= 10, models
    for path in models:
        check_model(path)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for check in (check_values, check_hostile_text, check_refusals, check_parts,
                      check_published, check_whole):
            check(folder)


if __name__ == "__main__":
    main()
