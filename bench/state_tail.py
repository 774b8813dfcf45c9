#!/usr/bin/env python3
"""How much of a recurrent state's transfer a handoff exposes: state_tail.py BATON MODEL

A worker and a server, a core each, on two network namespaces (tests/net/rig.py). The cable is given
the goodput at which the whole recurrent state of MODEL takes as long as the last chunk's computing:
the most that the last chunk can hide. Then prompts in turn: with the states leaving layer by layer
in a last chunk that is cut for it (push), and with the last chunk sent when it is computed (chunks),
which is what sending the state at the end costs. Printed is the exposed time as a share of
the state's transfer time.

Computing takes longer beside pushing: shaping the cable is work of the worker's core here (a timer
interrupt for nearly each packet, in system time of whoever runs there; with packets of 1,500 bytes
at 170 Mbit/s 0.45 s in 7 s). On a cable without a limit the same prompt takes 6.49 s of that
thread's time pushed and 6.46 s in chunks.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "tests", "net"))
import net_harness as net                                                   # noqa: E402
import rig                                                                  # noqa: E402
import shaped                                                               # noqa: E402

CHUNK = 512


def state_bytes(baton, model):
    told = subprocess.run([baton, "inspect", "--json", "-c", "2048", model],
                              capture_output=True, text=True, check=True)
    return json.loads(told.stdout)["memory"]["state_bytes"]


def pair(o, r, order):
    worker = net.Worker(o.baton, o.model, "--insecure", "-c", 8192, "-t", 1, "--n-prefill-chunk",
                        CHUNK, "--snapshot-bytes", 0, within=r.worker, cpu=0)
    server = net.Server(o.baton, o.model, "-c", 4096, "-t", 1, "--handoff", order,
                        "--snapshot-bytes", 0, workers=[worker.address], within=r.server, cpu=1)
    server.wait_ready()
    return worker, server


def ask(server, n, seed):
    told = server.complete(net.prompt(n, seed), n_predict=2, n_probs=1)["prefill"]
    net.check(told["place"] == "remote", f"{told}")
    return told


def chunk_ms(o, r):
    """Computing the last of three chunks, on a free cable; a step of a prompt takes a second at
    most, and then that is its chunk."""
    r.set_rate(None)
    worker, server = pair(o, r, "layers")
    ask(server, 300, 1)
    three, two = (min(ask(server, k * CHUNK + 1, s)["compute_ms"]
                      for s in range(10 * k, 10 * k + 3)) for k in (3, 2))
    server.end()
    worker.end()
    return min(three - two, 1000)


def one(order, o, server, last_ms, seed):
    """Exposed share of the state's transfer in %, and computing in ms."""
    told = ask(server, o.tokens, seed)
    share = 100 * told["exposed_ms"] / last_ms
    print(f"{order:7} exposed {told['exposed_ms']:7.1f} ms, {share:5.1f} % of the state's "
          f"{last_ms:.0f} ms; computing {told['compute_ms']:.0f} ms", flush=True)
    return share, told["compute_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("baton")
    parser.add_argument("model")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=3 * CHUNK)
    o = parser.parse_args()
    size = state_bytes(o.baton, o.model)
    with rig.rig_or_skip(mtu=shaped.MTU) as r:
        last_ms = chunk_ms(o, r)
        mbit = size * 8 / last_ms / 1000 / shaped.PAYLOAD
        r.set_rate(mbit)
        print(f"state {size / 2**20:.1f} MiB, last chunk {last_ms:.0f} ms, cable "
              f"{mbit:.1f} Mbit/s", flush=True)
        pairs = {order: pair(o, r, order) for order in ("push", "chunks")}
        for _, server in pairs.values():
            for k in range(3):          # to know rates and link
                ask(server, o.tokens, 100 + k)
        told = {order: [] for order in pairs}
        for k in range(o.times):        # in turn: the machine is not the same all the time
            for order, (_, server) in pairs.items():
                told[order].append(one(order, o, server, last_ms, 200 + k))
        for worker, server in pairs.values():
            net.check(server.end() == 0 and worker.end() == 0, "an end was not orderly")
    return "; ".join(
        f"{order}: exposed {statistics.median(s for s, _ in x):.1f} % ({min(s for s, _ in x):.1f} "
        f"to {max(s for s, _ in x):.1f}), computing {statistics.median(c for _, c in x):.0f} ms"
        for order, x in told.items())


if __name__ == "__main__":
    sys.exit(net.run(main))
