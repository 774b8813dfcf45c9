#!/usr/bin/env python3
"""Prefill and decode against llama.cpp, interleaved: against_llama.py BATON MODEL [MODEL...]

Needs the package llama-cpp-python, built for this machine (CMAKE_ARGS=-DGGML_NATIVE=ON), in the
interpreter that runs this. Both read the model into memory, both use flash attention, the same
threads and the same tokens; each round runs one, then the other, so that whatever else the machine
does meets both. Per model and number of threads: medians of the rates in tokens per second with the
smallest and largest, and the median of the rounds' quotients, Baton to llama.cpp.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time


def baton(o, model, tokens, threads):
    done = subprocess.run(
        [o.baton, "run", "-m", model, "--tokens", ",".join(map(str, tokens)), "-n", str(o.predict),
         "--temp", "0", "--ignore-eos", "--json", "-q", "-t", str(threads), "-c", str(o.context)],
        capture_output=True, text=True, check=True)
    timings = json.loads(done.stdout)["timings"]
    return timings["prompt_per_second"], timings["predicted_per_second"]


def llama(o, model, tokens, threads):
    """In a process of its own, as the other."""
    done = subprocess.run(
        [sys.executable, __file__, o.baton, model, "--peer", ",".join(map(str, tokens)),
         "--threads", str(threads), "--predict", str(o.predict), "--context", str(o.context)],
        capture_output=True, text=True, check=True)
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def peer(o):
    from llama_cpp import Llama
    tokens = list(map(int, o.peer.split(",")))
    threads = int(o.threads)
    m = Llama(o.models[0], n_ctx=o.context, n_batch=512, n_threads=threads, use_mmap=False,
              n_threads_batch=threads, flash_attn=True, verbose=False)
    m.eval(tokens[:8])                      # touches memory, as a first request does
    m.reset()
    begin = time.perf_counter()
    m.eval(tokens)
    prefill = time.perf_counter() - begin
    begin = time.perf_counter()
    for i in range(o.predict):
        m.eval([tokens[i % len(tokens)]])
    decode = time.perf_counter() - begin
    print(json.dumps([len(tokens) / prefill, o.predict / decode]))


def spread(values):
    return f"{statistics.median(values):7.1f} ({min(values):.1f} to {max(values):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("baton")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--predict", type=int, default=64)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.peer:
        return peer(o)
    for model in o.models:
        dice = random.Random(1)
        tokens = [dice.randrange(300, 40000) for _ in range(o.prompt)]
        for threads in map(int, o.threads.split(",")):
            ours, theirs = [], []
            for _ in range(o.rounds):
                ours.append(baton(o, model, tokens, threads))
                theirs.append(llama(o, model, tokens, threads))
            print(f"{os.path.basename(model)}, {threads} threads, {o.prompt} + {o.predict} tokens, "
                  f"{o.rounds} rounds")
            for i, what in enumerate(("prefill", "decode")):
                quotients = [a[i] / b[i] for a, b in zip(ours, theirs)]
                print(f"  {what:8} {spread([a[i] for a in ours])} against "
                      f"{spread([b[i] for b in theirs])}: {spread(quotients).strip()}", flush=True)
    return None


if __name__ == "__main__":
    main()
