#!/usr/bin/env python3
"""Rows that travel in another type than they are stored in (--prefill-wire-type).

  exact     stored, and f16 where rows are stored as f16: the answer of a local prefill, bit for bit
  bytes     q8_0 takes 34 bytes for 64, and a slow link that much less time
  declared  the answer says what came; what a model's rows cannot be is refused at the start
  close     the loss is held against what storing rows as q8_0 costs, which people accept: rows
            that travel as q8_0 have met the same rounding once, on the same values, and the worker
            has computed with the exact ones; so the likeliest tokens' log-probabilities may differ
            by no more than twice that (each of the two has its own rounding errors), and on average
            by less
"""
import os
import re
import subprocess
import sys

import net_harness as net
import rig
import shaped

N_PROBS = 10


# ---- exact ----

def exact(r, o):
    baton, model = o.baton, net.model_or_skip(o.models)
    worker = net.Worker(baton, model, "-c", 4096, "-t", 1)
    for wire in ("stored", "f16"):
        server = net.Server(baton, model, "-c", 4096, "-t", 1, "--prefill-wire-type", wire,
                            workers=[worker.address])
        server.wait_ready()
        for n in (2, 33, 700):
            remote = server.complete(net.prompt(n, 3), n_predict=6)
            local = server.complete(net.prompt(n, 3), n_predict=6, where="local")
            told = remote["prefill"]
            net.check(told["place"] == "remote" and told["wire_type"] == "f16", f"{told}")
            net.check(net.facts(remote) == net.facts(local), f"{wire}, {n} tokens: not equal")
        net.end_all(server)
    net.end_all(worker)


# ---- bytes ----

def half_the_bytes(r, o):
    n = 1025
    with shaped.Pair(r, o.baton, shaped.make_model(o.models), r=4) as p:
        p.ask(n)
        stored = p.ask(n)
        p.start_server("push", "--prefill-wire-type", "q8_0")
        p.ask(n)
        with rig.Meter(r.server) as meter:
            q8 = p.ask(n)
        net.check(q8["wire_type"] == "q8_0" and stored["wire_type"] == "f16", f"{q8}")
        net.check(q8["bytes"] * 64 == stored["bytes"] * 34, "q8_0 has 34 bytes for 64")
        net.check(q8["bytes"] <= meter.bytes <= 1.02 * q8["bytes"],
                  f"{q8['bytes']} reported, {meter.bytes} on the interface")
        # r is 4, and with q8_0 still 2: both are as slow as the link.
        net.check(q8["total_ms"] <= 1.1 * p.link_ms(q8["bytes"]), f"{q8}")
        net.check(q8["total_ms"] <= 0.6 * stored["total_ms"], f"{q8['total_ms']} ms")
        return f"{stored['bytes']} bytes and {stored['total_ms']:.0f} ms as stored, " \
               f"{q8['bytes']} and {q8['total_ms']:.0f} as q8_0"


# ---- declared ----

def declared(r, o):
    """tiny-llama's rows have 64 values; those of a variant 24, which no block of q8_0 fits."""
    baton, odd = o.baton, os.path.join(net.FOLDER, "odd-rows.gguf")
    subprocess.run([sys.executable, shaped.MKMODEL, "tiny-llama", odd, "--head-dim", "12"],
                   check=True, capture_output=True)
    done = subprocess.run([baton, "serve", "-m", odd, "--port", "0", "--prefill-device",
                           "127.0.0.1:9", "--prefill-wire-type", "q8_0"], capture_output=True,
                          text=True, timeout=60)
    net.check(done.returncode == 1 and "K rows of layer 0 have 24 values" in done.stderr,
              f"{done.returncode}: {done.stderr}")
    done = subprocess.run([baton, "serve", "-m", net.model_or_skip(o.models),
                           "--prefill-wire-type", "q3"], capture_output=True, text=True, timeout=60)
    net.check(done.returncode == 2 and re.search("q3.*stored, f16 or q8_0", done.stderr),
              f"{done.returncode}: {done.stderr}")


# ---- close ----

def log_probabilities(server, tokens, where):
    """The likeliest tokens after the prompt."""
    answer = server.complete(tokens, n_predict=1, where=where, n_probs=N_PROBS)
    first = answer["completion_probabilities"][0]
    return {t["id"]: t["logprob"] for t in first["top_logprobs"]}


def distances(exact, other):
    """Of the tokens that both name."""
    return [abs(exact[i] - other[i]) for i in exact if i in other]


def close(r, o):
    real = net.find_models(o.models, net.REAL[:1])
    baton, model = o.baton, next(iter(real.values()), net.model_or_skip(o.models))
    worker = net.Worker(baton, model, "-c", 4096)
    servers = {
        "exact": net.Server(baton, model, "-c", 4096),
        "wire": net.Server(baton, model, "-c", 4096, "--prefill-wire-type", "q8_0",
                           workers=[worker.address]),
        "cache": net.Server(baton, model, "-c", 4096, "-ctk", "q8_0", "-ctv", "q8_0"),
    }
    servers["wire"].wait_ready()
    found = {"wire": [], "cache": []}
    for i, n in enumerate((17, 33, 65, 90, 130, 200, 260)):
        tokens = net.prompt(n, 400 + i)
        exact = log_probabilities(servers["exact"], tokens, "local")
        for kind, where in (("wire", "remote"), ("cache", "local")):
            found[kind] += distances(exact, log_probabilities(servers[kind], tokens, where))
    net.end_all(worker, *servers.values())
    most = {k: max(v) for k, v in found.items()}
    mean = {k: sum(v) / len(v) for k, v in found.items()}
    text = f"{len(found['wire'])} log-probabilities: q8_0 on the wire moves them by " \
           f"{mean['wire']:.5f} on average and {most['wire']:.4f} at most, q8_0 in the cache by " \
           f"{mean['cache']:.5f} and {most['cache']:.4f}"
    net.check(mean["wire"] > 0, f"nothing was turned: {text}")
    net.check(mean["wire"] <= mean["cache"] and most["wire"] <= 2 * most["cache"], text)
    return text


CASES = [exact, half_the_bytes, declared, close]


def main():
    o = net.parser(__doc__, CASES).parse_args()
    with rig.rig_or_skip(mtu=shaped.MTU) as r:
        return net.run_cases(o, CASES, r, o)


if __name__ == "__main__":
    net.run(main)
