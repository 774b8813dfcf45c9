#!/usr/bin/env python3
"""What prefill costs per parameter, hybrids and experts against a dense model of the same width.

    bench/prefill_by_family.py BATON [--rounds N] [--type q4_0|q8_0] [--folder DIR] [--isa TIER]

Makes models of a few layers of published shapes (tools/mkmodel.py; random weights), prefills 2,048
tokens in chunks of 512 on one thread, the models in turn and several rounds of it, so that whatever
else the machine does meets all of them. The time of a chunk is the sum over its ops
(`baton logits --trace-ops`) without the embedding and the logits; the first chunk only warms up.
Parameters are those a token's row is multiplied with: all of the layers' matrices, of experts the
share that is used. Prints the median over rounds with the smallest and the largest, the quotient to
the dense model of the same width within each round, and where the time goes.

Attention costs no parameters but grows with the prompt, and a hybrid has little of it, so the
quotient is printed without that op too: what is left of it in short prompts.
Wanted: both at most 1.5.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
N_TOKENS, CHUNK, MOST = 2048, 512, 1.5

# name: (configuration and options of mkmodel.py, the dense model of this width)
MODELS = {
    "dense-1024": ("qwen3-0.6b --layers 8 --vocab 4096", None),
    "hybrid-1024": ("qwen35-0.8b --layers 8 --vocab 4096", "dense-1024"),
    "dense-2048": ("llama-1b --layers 4 --vocab 4096", None),
    "hybrid-moe-2048": ("qwen35moe-8l --layers 4 --vocab 4096", "dense-2048"),
}


def make(folder, name, tensor_type):
    path = folder / f"{name}-{tensor_type}.gguf"
    if not path.exists():
        config, *options = MODELS[name][0].split()
        making = path.with_suffix(".making")
        subprocess.run([sys.executable, str(ROOT / "tools" / "mkmodel.py"), config, str(making),
                        "--type", tensor_type, *options], check=True, stdout=subprocess.DEVNULL)
        making.rename(path)
    return path


def parameters(baton, path):
    """Values of the layers' matrices that a row meets."""
    said = json.loads(subprocess.run([baton, "inspect", "--json", str(path)], check=True,
                                     capture_output=True).stdout)
    layers = said["layers"]
    share = layers["experts_used"] / layers["experts"] if layers["experts"] else 0
    total = 0
    for tensor in said["tensors"]:
        if tensor["name"].startswith("blk.") and len(tensor["shape"]) > 1:
            n = 1
            for length in tensor["shape"]:
                n *= length
            total += n * share if "_exps." in tensor["name"] else n
    return total


def prefill(baton, path, extra):
    """Microseconds of each op name per chunk, without the first chunk."""
    tokens = ",".join(str(7 * i % 4000) for i in range(N_TOKENS))
    by_op, chunks = {}, N_TOKENS // CHUNK
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as trace:
        subprocess.run([baton, "logits", "-m", str(path), "--tokens", tokens, "--chunk", str(CHUNK),
                        "-t", "1", "-tb", "1", "--trace-ops", trace.name, *extra], check=True,
                       stdout=subprocess.DEVNULL)
        for op in map(json.loads, trace):
            if op.get("step", 1) > 1 and "layer" in op:
                by_op[op["name"]] = by_op.get(op["name"], 0.0) + op["us"] / (chunks - 1)
    return by_op


def costs(rounds, n_parameters, left_out=""):
    """Picoseconds per token and parameter of each round: a parameter is one multiplication."""
    return [1e6 * sum(us for op, us in by_op.items() if op != left_out) / CHUNK / n_parameters
            for by_op in rounds]


def spread(values, form):
    return (f"{statistics.median(values):{form}} "
            f"({min(values):{form}} to {max(values):{form}})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("baton")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--type", default="q4_0", choices=["q4_0", "q8_0", "f16", "f32"])
    parser.add_argument("--folder", type=pathlib.Path, help="where models are kept")
    parser.add_argument("--isa")
    options = parser.parse_args()
    extra = ["--isa", options.isa] if options.isa else []
    with tempfile.TemporaryDirectory() as aside:
        folder = options.folder or pathlib.Path(aside)
        folder.mkdir(parents=True, exist_ok=True)
        paths = {name: make(folder, name, options.type) for name in MODELS}
        n = {name: parameters(options.baton, path) for name, path in paths.items()}
        ops = {name: [] for name in MODELS}
        for _ in range(options.rounds):
            for name, path in paths.items():
                ops[name].append(prefill(options.baton, path, extra))
    good = True
    for name, (_, dense) in MODELS.items():
        print(f"{name} {options.type}: {n[name] / 1e6:.0f} M parameters, ps per token and "
              "parameter " + spread(costs(ops[name], n[name]), ".1f"))
        for what, left_out in (("", ""), (" without attention", "attention")) if dense else ():
            ours, theirs = (costs(ops[one], n[one], left_out) for one in (name, dense))
            ratios = [a / b for a, b in zip(ours, theirs)]
            good &= statistics.median(ratios) <= MOST
            print(f"  against {dense}{what}: {spread(ratios, '.2f')}, of the best rounds "
                  f"{min(ours) / min(theirs):.2f}, wanted at most {MOST}")
        middle = {op: statistics.median(o[op] for o in ops[name]) for op in ops[name][0]}
        whole = sum(middle.values())
        print("  " + ", ".join(f"{op} {100 * us / whole:.1f} %" for op, us in
                               sorted(middle.items(), key=lambda pair: -pair[1])[:8]))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
