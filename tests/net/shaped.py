"""A worker and a server on both ends of a cable of the wanted speed, for tests and benches.

The load ratio r is prefill rate x bytes of a token / what the link carries: below 1 the link keeps
up with computing. The worker computes at a given rate (--prefill-rate) a model that is cheap to
compute (mkmodel.py many-rows), so that r is what was asked for on a machine with much else to do
too. Each process has a core of its own where there are two.
"""
import os
import subprocess
import sys

import net_harness as net
import rig

MKMODEL = os.path.join(rig.TOOLS, "mkmodel.py")
MTU = 9000                  # with 1,500 headers are 4.6 % of the bytes that interfaces count
PAYLOAD = (MTU - 52) / (MTU + 14)       # TCP's share: IP and TCP with timestamps, Ethernet
TOKEN_BYTES = 16384         # of many-rows, f16
RATE = 1000                 # tokens a second, a fifth of what a core does


def make_model(folder, config="many-rows"):
    path = os.path.join(folder, config + "-q8_0.gguf")
    if not os.path.exists(path):
        aside = f"{path}.{os.getpid()}"
        done = subprocess.run([sys.executable, MKMODEL, config, aside, "--type", "q8_0"],
                              capture_output=True, text=True)
        net.check(done.returncode == 0, f"mkmodel.py {config}: {done.stderr}")
        os.replace(aside, path)
    return path


def core(index):
    """One core each, if there are two."""
    return index if (os.cpu_count() or 1) > 1 else None


class Pair:
    """with Pair(rig, baton, model, r=0.5) as p: p.ask(n) gives the report of a prompt of n tokens,
    new each time."""

    seeds = 0

    def __init__(self, r_, baton, model, r=None, rate=RATE, token_bytes=TOKEN_BYTES, delay_ms=None,
                 context=4352, worker=(), server=(), order="push"):
        self.rig, self.rate, self.token_bytes = r_, rate, token_bytes
        self.worker = net.Worker(baton, model, "-c", 2 * context, "-t", 1, "--insecure",
                                 *(["--prefill-rate", rate] if rate else []), *worker,
                                 within=r_.worker, cpu=core(0))
        self.proxy = None
        address = self.worker.address
        if delay_ms is not None:
            self.proxy = r_.proxy(address, "--delay-ms", delay_ms)
            address = self.proxy.address
        self.address = address
        self.baton, self.model, self.context, self.options = baton, model, context, server
        self.server = None
        self.start_server(order)
        if r:
            self.set_ratio(r)

    def start_server(self, order, *more):
        if self.server:
            net.check(self.server.end() == 0, "server: no orderly end")
        self.server = net.Server(self.baton, self.model, "-c", 2 * self.context, "-t", 1, "-np", 5,
                                 "--handoff", order, *self.options, *more,
                                 workers=[self.address], within=self.rig.server, cpu=core(1))
        self.server.wait_ready()

    def set_ratio(self, r):
        """Shapes the cable; rate and bytes of a token are those given."""
        self.goodput = self.rate * self.token_bytes / r           # bytes a second
        self.rig.set_rate(self.goodput * 8 / 1e6 / PAYLOAD)

    def link_ms(self, n_bytes):
        return n_bytes / self.goodput * 1000

    def ask(self, n, **options):
        """Report of a prompt nobody has seen before; `first_token_ms` is among its fields."""
        Pair.seeds += 1
        answer = self.server.complete(net.prompt(n, 5000 + Pair.seeds), n_predict=1, **options)
        told = answer["prefill"]
        net.check(told["place"] == "remote" and not told["fallback"], f"{n} tokens: {told}")
        return dict(told, first_token_ms=answer["timings"]["first_token_ms"])

    def end(self):
        net.check(self.server.end() == 0, "server: no orderly end")
        net.check(self.worker.end() == 0, "worker: no orderly end")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.end()
        for p in (self.server, self.worker):
            p.end(hard=True)
        if self.proxy:
            self.proxy.close()
        self.rig.set_rate(None)
