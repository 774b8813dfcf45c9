#!/usr/bin/env python3
"""Clients that go away: at every stage, and a thousand of them.

What they used is free on both machines within a quarter of a second (and the 100 ms in which a server
looks at its clients' sockets, and a step), other clients get the answers that they always get, and
after a storm descriptors, threads, pages and memory are what they were.
"""
import json
import os
import random
import re
import signal
import threading
import time

import net_harness as net
from fault_proxy import FaultProxy
from losses import Bench
from streams import Leaver, Streams

NOTICED_S = 0.1            # a server looks at its clients' sockets so often
FREE_S = 0.25
STEP_S = 0.25              # a step, and a machine that does other things too
TOKENS = 2500


def is_free(worker, server):
    """Nothing of any prompt is left on either side."""
    w, s = worker.status(), server.worker()
    return (w["in_flight"] == w["running"] == w["waiting"] == w["tokens_in_flight"] == 0
            and w["kv_pages_used"] == w["kv_pages_cached"]
            and s["n_in_flight"] == s["n_waiting"] == s["tokens_in_flight"] == 0
            and server.metric("llamacpp:requests_processing") == 0
            and server.metric("baton_kv_pages_used") == server.metric("baton_kv_pages_cached"))


def leave_and_time(worker, server, client):
    begin = time.monotonic()
    client.leave()
    net.wait_for("everything to be free", lambda: is_free(worker, server), 10)
    return time.monotonic() - begin


def in_line(b, worker, server):
    """Behind as many others as there are slots: cancelled before it is sent."""
    others = [Leaver(server, b.prompt()) for _ in range(2)]
    net.wait_for("slots to be taken", lambda: server.worker()["n_in_flight"] == 2)
    client = Leaver(server, b.prompt())
    net.wait_for("one in line", lambda: server.worker()["n_waiting"] == 1)
    client.leave()
    begin = time.monotonic()
    net.wait_for("the line to be empty", lambda: server.worker()["n_waiting"] == 0, 10)
    took = time.monotonic() - begin
    for o in others[1:]:
        o.leave()
    return max(took, leave_and_time(worker, server, others[0]))


def computing(b, worker, server):
    """Rows come as they are computed."""
    client = Leaver(server, b.prompt())
    net.wait_for("computing", lambda: 0 < worker.status()["tokens_in_flight"] < TOKENS - 100)
    return leave_and_time(worker, server, client)


def transferring(b, worker, server):
    """All is computed and most of it still has to come."""
    client = Leaver(server, b.prompt())
    net.wait_for("all to be computed", lambda: (lambda w: w["in_flight"] == 1 and
                 w["tokens_in_flight"] == 0)(worker.status()))
    net.check(server.worker()["tokens_in_flight"] > 100, "nothing was left to transfer")
    return leave_and_time(worker, server, client)


def decoding(b, worker, server):
    client = Leaver(server, b.prompt(200), n_predict=5000)
    net.wait_for("an answer", lambda: server.worker()["n_in_flight"] == 0 and
                 server.metric("llamacpp:requests_processing") == 1)
    return leave_and_time(worker, server, client)


def every_stage(b, times=3):
    """Each stage several times; the median, because one hiccup of the machine is longer."""
    told = []
    # Small buffers, or all rows of a prompt are in the kernel's hands at once.
    worker = b.worker("--n-prefill", 2, "--link-buffer", 65536)
    with FaultProxy(worker.address) as proxy:
        server = b.server("--n-prefill", 2, workers=[proxy.address])
        server.wait_ready()
        for stage, rate in ((computing, 0), (transferring, 8), (in_line, 8), (decoding, 0)):
            proxy.set_rate(rate)
            took = sorted(stage(b, worker, server) for _ in range(times))
            told.append(f"{stage.__name__} {took[times // 2] * 1000:.0f} ms")
            net.check(took[times // 2] < NOTICED_S + FREE_S + STEP_S, f"{stage.__name__}: {took}")
        proxy.set_rate(0)
        tokens = b.prompt()
        net.check(net.facts(server.complete(tokens)) == b.want(tokens), "another answer afterwards")
        net.check(server.worker()["n_connects"] == 1, "the connection was lost")
        net.end_all(server, worker)
    return "free after: " + ", ".join(told)


def counts(worker, server):
    """Descriptors and threads when all is free."""
    net.wait_for("everything to be free", lambda: is_free(worker, server), 20)
    return net.resources(worker, server)


def storm(b, at_once=24):
    """So many clients that leave at any moment, many at once, while others go on."""
    times = b.n_clients
    worker = b.worker("--n-prefill", 6)
    proxy = FaultProxy(worker.address, rate_mbit=60)   # so that many leave while rows come
    server = b.server(workers=[proxy.address])
    server.wait_ready()
    n = 700
    dice = random.Random(5)
    span = server.complete(b.prompt(n))["prefill"]["total_ms"] / 1000 + NOTICED_S
    left, end = [0], [0]
    lock = threading.Lock()

    def go():
        while True:
            with lock:
                if left[0] >= end[0]:
                    return
                left[0] += 1
                i, wait = left[0], dice.uniform(0, 1.5 * span)
            client = Leaver(server, net.prompt(n, 20000 + i))
            time.sleep(wait)
            client.leave()

    def run(n_times):
        end[0] = left[0] + n_times
        for t in [net.Task(go) for _ in range(at_once)]:
            t.done()

    def run_beside_streams(n_times):
        with Streams(server, 2):       # they check that their answers never change
            run(n_times)
        return counts(worker, server)

    before = run_beside_streams(times * 4 // 10)
    memory = [(worker.rss_kib(), server.rss_kib())]
    for _ in range(2):
        run_beside_streams(times * 3 // 10)
        memory.append((worker.rss_kib(), server.rss_kib()))
    after = net.wait_for("descriptors and threads to be gone", lambda: (lambda c: all(
        x is None or x <= y for x, y in zip(c, before)) and c)(counts(worker, server)), 20)
    # A leak grows with each part, what an allocator keeps of a crowd does not; the tokens alone of a
    # part are 840 KB.
    grown = [min(memory[1][i] - memory[0][i], memory[2][i] - memory[1][i]) for i in range(2)]
    net.check(max(grown) < 600, f"memory, worker and server: {memory} KiB")
    told = worker.status()
    net.check(told["cancelled"] > times // 100, f"too few were cancelled on the worker: {told}")
    net.check(server.worker()["n_lost"] == 0, f"{server.worker()}")
    tokens = b.prompt()
    net.check(net.facts(server.complete(tokens)) == b.want(tokens), "another answer afterwards")
    net.end_all(server, worker)
    proxy.close()
    return (f"{times} left, {told['cancelled']} of them on the worker; descriptors and threads "
            f"{before}, then {after}; memory {grown[0]:+} and {grown[1]:+} KiB")


def no_ghosts(b, times=150):
    """Steps there are long, clients impatient: who has left takes nobody's place in the line."""
    worker = b.worker("--n-prefill", 2, "--prefill-rate", 300)
    server = b.server(workers=[worker.address])
    server.wait_ready()
    most = 0
    for i in range(times):
        client = Leaver(server, net.prompt(700, 30000 + i))
        time.sleep(0.01)
        client.leave()
        most = max(most, worker.status()["in_flight"])
    tokens = b.prompt(300)
    answer = server.complete(tokens, prefill={"where": "remote", "policy": "fail"})
    net.check(net.facts(answer) == b.want(tokens), "another answer afterwards")
    sent = worker.status()["cancelled"]
    net.check(sent > 4, f"only {sent} of {times} were cancelled on the worker")
    net.check(most <= 4 * 2, f"{most} prompts on a worker that takes 2 at once")
    net.check(server.prefill()["n_fallbacks"] == server.metric("baton_prefill_fallbacks_total"),
              "two counters of fallbacks, two numbers")
    net.check(server.metric("baton_requests_cancelled_total") <=
              server.metric("baton_requests_total"), "more were cancelled than came")
    net.end_all(server, worker)
    return f"{times} left, {sent} of them on the worker, at most {most} there at once"


def told_now(worker):
    """The worker's counters, as soon as they are printed."""
    n = worker.n_told
    worker.signal(signal.SIGUSR1)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        lines = re.findall(r"^\{.*\}$", worker.text(), re.M)
        if len(lines) > n:
            worker.n_told = len(lines)
            return json.loads(lines[-1])
        time.sleep(0.0005)
    raise net.Failed("the worker prints no counters")


def cancels(b):
    """How soon pages are free on both machines after a client of a streaming request has left."""
    worker = b.worker("--n-prefill-chunk", 64)
    server = b.server(workers=[worker.address])
    server.wait_ready()
    took = []
    for i in range(b.n_cancels):
        client = Leaver(server, b.prompt(), n_predict=2000)
        net.wait_for("a prompt in flight", lambda: server.worker()["n_in_flight"] == 1)
        time.sleep(b.random.uniform(0, 0.05))
        begin = time.monotonic()
        client.leave()
        while (server.metric("baton_kv_pages_used") != server.metric("baton_kv_pages_cached")):
            net.check(time.monotonic() - begin < 5, f"cancel {i}: the server's pages stay taken")
        while (lambda w: w["kv_pages_used"] != w["kv_pages_cached"] or w["in_flight"])(
                told_now(worker)):
            net.check(time.monotonic() - begin < 5, f"cancel {i}: the worker's pages stay taken")
        took.append(1000 * (time.monotonic() - begin))
    took.sort()
    net.end_all(server, worker)
    return (f"{len(took)} cancels: free on both after {took[len(took) // 2]:.1f} ms (median), "
            f"{took[-1]:.1f} ms (at most)")


CASES = [every_stage, storm, no_ghosts]


def main():
    parser = net.parser(__doc__, CASES)
    parser.add_argument("--clients", type=int, default=1000, help="of the storm")
    parser.add_argument("--cancels", type=int, default=0,
                        help="measure so many cancels on an idle machine, and nothing else")
    o = parser.parse_args()
    os.environ["MALLOC_ARENA_MAX"] = "1"   # else each thread keeps some, now more, now less
    b = Bench(o.baton, o.models)
    b.n_clients = o.clients
    b.n_cancels = o.cancels
    b.random = random.Random(7)
    return net.run_cases(o, [cancels] if o.cancels else CASES, b)


if __name__ == "__main__":
    net.run(main)
