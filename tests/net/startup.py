#!/usr/bin/env python3
"""How a pair comes up: each side loads its own weights, and says why it is not ready.

The bytes on the wire from start to ready are counted: a few KiB, whatever the model's size. A server
serves from the beginning, and names in /v1/prefill what keeps a worker away: refused, no route, no
answer, not permitted, a name that is none, another version, something that is no worker.
"""
import os
import time

import net_harness as net
import rig
import wire
from fault_proxy import FaultProxy

READY_BYTES_MAX = 4096     # HELLO and WELCOME are below 1 KiB, a PING is 60 bytes; the rest is time


def bytes_until_ready(o, models):
    """Both directions, for the smallest and the largest model there is."""
    told = []
    sizes = sorted(models.values(), key=os.path.getsize)
    for model in {sizes[0], sizes[-1]}:
        worker = net.Worker(o.baton, model, "-c", 512)
        proxy = FaultProxy(worker.address)
        begin = time.monotonic()
        server = net.Server(o.baton, model, "-c", 512, workers=[proxy.address])
        server.wait_ready()
        n = sum(c["up"] + c["down"] for c in proxy.status()["connections"])
        # A PING and a PONG in each direction every half second, if it took that long.
        beats = 4 * 72 * int((time.monotonic() - begin) / 0.5 + 1)
        net.check(n <= READY_BYTES_MAX + beats, f"{n} bytes until ready")
        net.check(os.path.getsize(model) > 100 * n, "the model is too small to tell")
        told.append(f"{os.path.getsize(model)} bytes of model, {n} on the wire")
        net.end_all(server, worker)
        proxy.close()
    return "; ".join(sorted(told))


def reason(server, index=0):
    return net.wait_for("a reason", lambda: server.worker(index)["reason"], 20)


def serves_alone(server):
    answer = server.complete(net.prompt(100, 3), n_predict=4, where="auto")
    told = answer["prefill"]
    net.check(told["place"] == "local" and told["fallback"] and
              "no worker is ready" in told["reason"], f"{told}")


def reasons_here(o, models):
    """Refused; a name that is none; a worker of another version; something else entirely."""
    liars = [wire.Liar(lambda c: wire.answer_hello_with_reject(c, "version", "1.1", "9.0",
                                                                "update the server")),
             wire.Liar(lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))]
    workers = [f"127.0.0.1:{net.free_port()}", "no-such-name.invalid:7070",
               *(x.address for x in liars)]
    server = net.Server(o.baton, models["tiny-llama"], "-c", 512, workers=workers)
    expected = [("connecting", "refused"), ("connecting", "no-such-name.invalid"),
                ("refused", "'version'"), ("refused", "not a Baton frame")]
    for i, (state, text) in enumerate(expected):
        told = net.wait_for(f"{text}: {server.worker(i)}", lambda: (lambda w: text in w["reason"]
                            and w["state"] == state and w)(server.worker(i)), 20)
        net.check(told["n_connects"] == 0, f"{told}")
    serves_alone(server)
    net.end_all(server)
    for x in liars:
        x.close()


def reasons_of_the_way(o, models):
    try:
        r = rig.Rig()
    except rig.NotAllowed as problem:
        raise net.Skipped(f"without namespaces: {problem}")
    with r:
        r.server.run("ip", "route", "add", "unreachable", "192.0.2.2")
        r.server.run("ip", "route", "add", "prohibit", "192.0.2.3")
        r.server.run("ip", "neigh", "add", "10.77.0.77", "lladdr", "02:00:00:00:00:77", "dev",
                     rig.DEVICE)
        hosts = {"192.0.2.1": "no route", "192.0.2.2": "no route", "192.0.2.3": "not permitted",
                 "10.77.0.77": "no answer"}
        server = net.Server(o.baton, models["tiny-llama"], "-c", 512,
                            workers=[f"{h}:7070" for h in hosts], within=r.server)
        for i, text in enumerate(hosts.values()):
            told = reason(server, i)
            net.check(text in told and server.worker(i)["state"] == "connecting", f"{text}: {told}")
        serves_alone(server)
        net.end_all(server)


CASES = [bytes_until_ready, reasons_here, reasons_of_the_way]


def main():
    o = net.parser(__doc__, CASES).parse_args()
    models = net.models_or_skip(o.models, ["tiny-llama"] + net.FAMILIES + net.REAL)
    return net.run_cases(o, CASES, o, models)


if __name__ == "__main__":
    net.run(main)
