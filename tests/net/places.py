#!/usr/bin/env python3
"""Where prompts go: the faster place, a change of the link, deltas, several workers, other roles.

The numbers of the choice (95 % of the cells right, at worst 10 % slower) are held against simulated
machines in tests/unit/handoff/sweep.c; here real processes show that what is measured and predicted
leads to the faster place wherever one of them is clearly faster.
"""
import functools
import http.client
import json
import os
import statistics
import threading
import time

import net_harness as net
from fault_proxy import FaultProxy
from losses import Asked, Bench
from streams import Leaver

CLEAR = 1.6                # a place that much slower must not be chosen
TOKENS = 2000


def total_ms(server, b, n, where):
    """Median time of a prompt there."""
    return statistics.median(server.complete(b.prompt(n), where=where)["prefill"]["total_ms"]
                             for _ in range(3))


def place(server, tokens, **options):
    told = server.complete(tokens, where="auto", n_predict=1, **options)["prefill"]
    return ("remote" if told["worker"] else "local"), told


# ---- the faster place ----

def settle(server, b, n=8):
    """Prompts of several lengths on both sides, from which costs are learned."""
    for i in range(n):
        for where in ("remote", "local"):
            server.complete(b.prompt((150, 600, TOKENS)[i % 3]), where=where, n_predict=1)


def slow_server(b, proxy, *options):
    """One that prefills slower than the worker: token by token."""
    server = b.server("-c", 8 * TOKENS, "-ub", 1, *options, workers=[proxy.address])
    server.wait_ready()
    return server


@functools.partial(net.again_if_late, tries=4)
def cell(b, server, n):
    """What both places take and which one is chosen, which must not be the clearly slower one."""
    here, there = (total_ms(server, b, n, w) for w in ("local", "remote"))
    chosen, told = place(server, b.prompt(n))
    f = told["forecast"]
    net.check(f["local_ms"] > 0 and f["workers"][0]["ms"] > 0, f"{told}")
    taken, other = (there, here) if chosen == "remote" else (here, there)
    probe = server.prefill()["decisions"][0]["probe"]
    text = f"{n} tokens: {here:.0f} ms here, {there:.0f} there, {chosen}"
    net.check_time(taken <= CLEAR * other or probe, text)
    return text


def choices(b):
    """Lengths and link rates: nowhere the clearly slower place."""
    worker = b.worker("--n-prefill", 2, "--link-buffer", 262144)
    rows = []
    with FaultProxy(worker.address) as proxy:
        server = slow_server(b, proxy)
        for rate in (0, 30):
            proxy.set_rate(rate)
            settle(server, b, 6)
            for n in (100, 600, TOKENS):
                rows.append(f"{rate or 'no'} Mbit/s limit, {cell(b, server, n)}")
        proxy.set_rate(0)
        net.end_all(server, worker)
    return "; ".join(rows)


def queue_counts(b):
    """Work in line on the worker makes the same prompt stay here."""
    worker = b.worker("--n-prefill", 2, "--link-buffer", 262144)
    with FaultProxy(worker.address) as proxy:
        server = slow_server(b, proxy, "--n-prefill", 2)
        settle(server, b)
        n = 600
        before, told = place(server, b.prompt(n))
        proxy.set_rate(3)
        others = [Leaver(server, b.prompt(TOKENS)) for _ in range(2)]
        net.wait_for("a queue", lambda: server.worker()["tokens_in_flight"] > TOKENS)
        behind, told_behind = place(server, b.prompt(n))
        for o in others:
            o.leave()
        forecast, then = (t["forecast"]["workers"][0] for t in (told, told_behind))
        net.check(then["tokens_ahead"] > forecast["tokens_ahead"] + n, f"{forecast} {then}")
        net.check(then["ms"] > forecast["ms"] and behind == "local", f"{told_behind}")
        proxy.set_rate(0)
        net.end_all(server, worker)
    return f"idle: {before}, {forecast['ms']:.0f} ms; behind others: {behind}, {then['ms']:.0f} ms"


@net.again_if_late
def adaptation(b):
    """The rate of the link changes while the server runs: the mind follows, and does not flap."""
    worker = b.worker("--link-buffer", 262144)
    with FaultProxy(worker.address) as proxy:
        server = slow_server(b, proxy)
        settle(server, b)
        slowest = [0]

        def row(n):
            """Places of so many prompts, and which of them were probes."""
            slowest[0] = 0
            for _ in range(n):
                slowest[0] = max(slowest[0], place(server, b.prompt(TOKENS))[1]["total_ms"])
            return [("remote" if d["worker"] else "local", d["probe"])
                    for d in server.prefill()["decisions"][:n]][::-1]

        def until(wanted, most):
            for i in range(most):
                if row(1)[0] == (wanted, False):
                    return i
            raise net.Late(f"not {wanted} after {most} prompts: {server.prefill()['decisions'][:3]}")

        until("remote", 12)
        flips = [sum(p == "local" for p, probe in row(10))]
        proxy.set_rate(4)
        down = until("local", 6)
        flips.append(sum(p == "remote" and not probe for p, probe in row(18)))
        # Probes among them would take seconds; they are prefilled here as well.
        told, longest = server.prefill(), slowest[0]
        net.check(longest < 2000, f"{longest:.0f} ms for one of them")
        net.check(told["n_hedges_won_locally"] > 0, f"{told}")
        proxy.set_rate(0)
        up = until("remote", 40)
        flips.append(sum(p == "local" for p, probe in row(10)))
        net.check_time(max(flips) <= 1, f"flaps: {flips} of 10, 18, 10")
        net.end_all(server, worker)
    return (f"to local after {down} prompts, back after {up}; the other way in 10, 18, 10: {flips}; "
            f"probes: {told['n_hedged']}, here first: {told['n_hedges_won_locally']}, at most {longest:.0f} ms")


# ---- deltas ----

def delta(b):
    """Turn 2 with 95 % cached: on the wire are the rows that the server lacks, and little else."""
    worker = b.worker()
    with FaultProxy(worker.address) as proxy:
        server = b.server("--prefill-min-tokens", 100, workers=[proxy.address])
        server.wait_ready()

        def down():
            return proxy.status()["connections"][-1]["down"]

        begin = down()
        first = server.complete(b.prompt(TOKENS), cache=True, where="auto")
        told = first["prefill"]
        row = told["bytes"] / told["n_remote"]
        whole = down() - begin
        net.check(told["place"] == "remote" and whole >= told["bytes"], f"{told}")
        tokens = b.prompt(TOKENS)
        server.complete(tokens, cache=True, where="auto")
        begin = down()
        second = server.complete(tokens + net.prompt(110, 5), cache=True, where="auto")
        moved, told = down() - begin, second["prefill"]
        net.check(net.facts(second) == b.want(tokens + net.prompt(110, 5)), "another answer")
        net.check(told["place"] == "remote" and told["n_cached"] >= 0.94 * TOKENS, f"{told}")
        net.check(told["bytes"] == told["n_remote"] * row and told["n_remote"] < 150, f"{told}")
        # Frames' headers and heartbeats: in proportion, and a fixed part.
        net.check(moved <= 1.15 * told["bytes"] + 4000, f"{moved} bytes on the wire for {told}")
        # Much is cached, but the new part is long: to the worker again, which has the rest too.
        third = server.complete(tokens + net.prompt(1500, 6), cache=True, where="auto")
        told = third["prefill"]
        net.check(net.facts(third) == b.want(tokens + net.prompt(1500, 6)), "another answer")
        net.check(told["place"] == "remote" and told["n_cached"] > 0.9 * TOKENS, f"{told}")
        net.check(told["forecast"]["workers"][0]["n_known"] > 0.9 * TOKENS, f"{told}")
        # And a short one stays.
        fourth = server.complete(tokens + net.prompt(40, 7), cache=True, where="auto")["prefill"]
        net.check(fourth["place"] in ("local", "cache") and not fourth["fallback"], f"{fourth}")
        net.end_all(server, worker)
    return f"{whole} bytes for turn 1, {moved} for turn 2"


# ---- several prompts, several workers ----

@functools.partial(net.again_if_late, tries=4)
def balance(b):
    """Two workers, six prompts, long and short by turns: by count one would get all the long ones.
    Again where it looks wrong: a busy machine may measure one of two equal workers as slow."""
    room = ["-c", 10 * TOKENS]
    workers = [b.worker(*room, "--link-buffer", 65536) for _ in range(2)]
    proxies = [FaultProxy(w.address) for w in workers]
    server = b.server(*room, "-np", 12, workers=[p.address for p in proxies])
    server.wait_ready(2)
    for i in range(8):                 # both are measured
        server.complete(b.prompt((300, TOKENS)[i % 2]), where="remote", n_predict=1)
    for p in proxies:
        p.set_rate(2)
    clients = []
    for i in range(6):
        clients.append(Leaver(server, b.prompt((TOKENS, 250)[i % 2])))
        net.wait_for("it to be given out", lambda: sum(
            server.worker(k)["n_in_flight"] + server.worker(k)["n_waiting"] for k in (0, 1))
            == len(clients))
    loads = {}
    for d in server.prefill()["decisions"][:6]:
        loads[d["worker"]] = loads.get(d["worker"], 0) + d["n_tokens"]
    for c in clients:
        c.leave()
    for p in proxies:
        p.set_rate(0)
    server.wait_idle(60)
    net.end_all(server, *workers)
    for p in proxies:
        p.close()
    share = max(loads.values()) / sum(loads.values())
    net.check_time(share < 0.75, f"the larger share of the tokens is {share:.2f}")
    return f"the larger share of the tokens is {share:.2f} (by count: 0.89)"


def fairness(b):
    """A short prompt behind more long ones than there are slots does not wait for one to end, and
    a long one among ever new short ones is not held up for ever."""
    room = ["-c", 14 * TOKENS]
    worker = b.worker(*room, "--n-prefill", 2)
    server = b.server(*room, "-np", 12, workers=[worker.address])
    server.wait_ready()
    alone_long = total_ms(server, b, 2 * TOKENS, "remote")
    alone_short = total_ms(server, b, 64, "remote")

    def client(i):
        server.complete(net.prompt(2 * TOKENS, 300 + i), n_predict=1)
        return time.monotonic()

    clients = [net.Task(client, i) for i in range(4)]
    net.wait_for("four long ones", lambda: (lambda w: w["n_in_flight"] + w["n_waiting"] >= 3)
                 (server.worker()))
    behind = server.complete(b.prompt(64), n_predict=1)["prefill"]["total_ms"]
    short_end = time.monotonic()
    first = sum(c.done() < short_end for c in clients)
    net.check(first <= 1, f"the short one waited for {first} of four long ones")
    net.check(behind < alone_long + 10 * alone_short, f"{behind:.0f} ms behind, {alone_short:.0f} "
              f"alone, {alone_long:.0f} for a long one")
    stop = threading.Event()

    def flow(k):
        i = 0
        while not stop.is_set():
            i += 1
            server.complete(net.prompt(100, 1000 * k + i), n_predict=1)

    flows = [net.Task(flow, k) for k in range(1, 5)]
    beside = [server.complete(b.prompt(2 * TOKENS), n_predict=1)["prefill"]["total_ms"]
              for _ in range(2)]
    stop.set()
    for f in flows:
        f.done()
    # It is overtaken at most by as much work as it is itself; the rest is for two cores that run
    # both processes and five clients.
    net.check(min(beside) < 6 * alone_long, f"{beside} beside short ones, {alone_long:.0f} alone")
    net.end_all(server, worker)
    return (f"short: {alone_short:.0f} ms alone, {behind:.0f} behind four long ones; long: "
            f"{alone_long:.0f} ms alone, {min(beside):.0f} beside a flow of short ones")


# ---- full ----

def full_pool(b):
    """The server's pages are taken: no prompt goes out that has no pages here, later ones are told
    429 and when to come back, those that were taken get their answers."""
    n = 400
    worker = b.worker()
    server = net.Server(b.baton, b.model, "-c", 1024, "-np", 8, "-t", 1, "--queue", 64,
                        "--queue-wait", 1, workers=[worker.address])
    server.wait_ready()
    for i in range(3):
        server.complete(b.prompt(n), n_predict=400)
    stop, options = threading.Event(), {"n_predict": 400, "n_probs": 1}

    def client(i):
        begin = time.monotonic()
        body = {"prompt": net.prompt(n, 60 + i), "temperature": 0, "ignore_eos": True,
                "cache_prompt": False, "return_tokens": True, "prefill": {"where": "remote"},
                **options}
        status, headers, answer = request_with_headers(server, body)
        return i, status, headers, answer, time.monotonic() - begin

    def watch():
        most = 0
        while not stop.is_set():
            most = max(most, server.worker()["n_in_flight"] + server.worker()["n_waiting"])
        return most

    watcher = net.Task(watch)
    clients = []
    for i in range(40):
        clients.append(net.Task(client, i))
        time.sleep(0.005)              # they come one after the other
    got = [c.done() for c in clients]
    stop.set()
    most = watcher.done()
    done = [(i, answer) for i, status, _, answer, _ in got if status == 200]
    told = [(headers, took) for _, status, headers, _, took in got if status == 429]
    net.check(len(done) + len(told) == 40 and len(told) >= 5 and len(done) >= 4,
              f"{len(done)} answered, {len(told)} told 429, {[g[1] for g in got]}")
    net.check(all(int(h["Retry-After"]) >= 1 for h, _ in told), f"{told[:1]}")
    slowest = statistics.median(took for _, took in told)
    net.check(slowest < 0.5, f"a refusal took {slowest:.2f} s")
    net.check(0 < most <= 3, f"{most} prompts were out, with pages for two or three")
    for i, data in done:
        answer = json.loads(data)
        want = b.plain.complete(net.prompt(n, 60 + i), where="local", **options)
        made = len(answer["tokens"])     # fewer where pages ended meanwhile, and then it says so
        net.check(made == 400 or made > 0 and answer["truncated"], f"{i}: {made} tokens")
        net.check(answer["tokens"] == want["tokens"][:made] and
                  answer["completion_probabilities"] == want["completion_probabilities"][:made],
                  f"{i}: another answer")
    server.wait_idle()
    net.check(server.worker()["n_corrupt"] == 0 and server.worker()["n_lost"] == 0, "lost")
    tokens = b.prompt(n)
    net.check(net.facts(server.complete(tokens)) == b.want(tokens), "another answer afterwards")
    net.end_all(server, worker)
    return (f"{len(done)} answered, {len(told)} told 429 after {slowest * 1000:.0f} ms, at most "
            f"{most} prompts out")


def request_with_headers(server, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("POST", "/completion", json.dumps(body),
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, dict(response.getheaders()), data


# ---- roles ----

def list_changes(b):
    """--prefill-device-file: workers come and go without a restart."""
    path = os.path.join(os.path.dirname(b.plain.log), "workers")
    workers = [b.worker() for _ in range(2)]

    def write(text):
        with open(path + ".new", "w") as f:
            f.write(text)
        os.rename(path + ".new", path)

    write("# nobody yet\n")
    server = b.server("--prefill-device-file", path, "--prefill-min-tokens", 1, workers=[])
    told = server.complete(b.prompt(200), where="auto")["prefill"]
    net.check(told["place"] == "local" and "list of workers is empty" in told["reason"], f"{told}")
    write(f"{workers[0].address}  # the first\n")
    server.wait_ready()
    told = server.complete(b.prompt(200), where="auto")["prefill"]
    net.check(told["worker"] == workers[0].address, f"{told}")
    write(f"{workers[0].address}\n{workers[1].address}\n")
    server.wait_ready(2)
    # One leaves while it works: it finishes.
    asked = Asked(server, b.prompt(), policy="fail")
    net.wait_for("a prompt in work", lambda: any(server.worker(i)["n_in_flight"] for i in (0, 1)))
    busy = 0 if server.worker(0)["n_in_flight"] else 1
    write(f"{workers[1 - busy].address}\n")
    asked.done()
    net.check(asked.status == 200 and asked.answer["prefill"]["worker"] == workers[busy].address,
              f"{asked.status} {asked.answer}")
    net.wait_for("one worker", lambda: server.prefill()["n_workers"] == 1)
    told = server.complete(b.prompt(200), where="auto")["prefill"]
    net.check(told["worker"] == workers[1 - busy].address, f"{told}")
    write("this is no address\n")
    net.wait_for("a warning", lambda: "event=workers_unchanged" in server.text())
    net.check(server.prefill()["n_workers"] == 1, f"{server.prefill()}")
    write("")
    net.wait_for("no worker", lambda: server.prefill()["n_workers"] == 0)
    told = server.complete(b.prompt(200), where="auto")["prefill"]
    net.check(told["place"] == "local" and told["fallback"], f"{told}")
    # Gone, a folder in its place, and back: said once each, and the last list holds.
    write(f"{workers[0].address}\n")
    server.wait_ready()
    os.unlink(path)
    net.wait_for("a warning", lambda: server.text().count("event=workers_unchanged") == 2)
    time.sleep(3)
    net.check(server.text().count("event=workers_unchanged") == 2, "warned more than once")
    told = server.complete(b.prompt(200), where="auto")["prefill"]
    net.check(told["worker"] == workers[0].address, f"{told}")
    n_read = server.text().count("event=workers_reloaded")
    write(f"{workers[0].address}\n{workers[1].address}\n")
    server.wait_ready(2)
    net.check(server.text().count("event=workers_reloaded") == n_read + 1, "read more than once")
    os.unlink(path)
    os.mkdir(path)
    net.wait_for("a warning", lambda: server.text().count("event=workers_unchanged") == 3)
    time.sleep(3)
    net.check(server.text().count("event=workers_unchanged") == 3 and server.prefill()["n_workers"] == 2,
              "a folder is no list")
    os.rmdir(path)
    net.end_all(server, *workers)


def both_roles(b):
    """Two servers that prefill for each other; one leaves, the other goes on alone."""
    ports = [net.free_port() for _ in range(2)]
    servers = [b.server("--prefill-listen", f"127.0.0.1:{ports[i]}", "--n-prefill-chunk", 32,
                        workers=[f"127.0.0.1:{ports[1 - i]}"]) for i in range(2)]
    for s in servers:
        s.wait_ready()

    def client(s, k):
        for i in range(4):
            tokens = net.prompt(700, 100 * k + i)
            answer = s.complete(tokens)
            net.check(net.facts(answer) == b.want(tokens) and
                      answer["prefill"]["place"] == "remote", f"{answer['prefill']}")

    clients = [net.Task(client, servers[k % 2], k) for k in range(4)]
    for c in clients:
        c.done()
    asked = Asked(servers[0], b.prompt(), policy="fail")
    net.wait_for("a prompt in work", lambda: servers[0].worker()["n_in_flight"])
    net.end_all(servers[1])       # finishes it first
    asked.done()
    net.check(asked.status == 200 and net.facts(asked.answer) == b.want(asked.tokens),
              f"{asked.status} {asked.answer}")
    tokens = b.prompt(300)
    answer = servers[0].complete(tokens)
    net.check(net.facts(answer) == b.want(tokens) and answer["prefill"]["fallback"],
              f"{answer['prefill']}")
    net.end_all(servers[0])


def drain_ends(b):
    """A worker that shuts down before a prompt is done: the reason says so."""
    worker = b.worker("--drain-ms", 200, "--prefill-rate", 300)
    server = b.server(workers=[worker.address])
    server.wait_ready()
    asked = Asked(server, b.prompt(), policy="fail")
    net.wait_for("a prompt in work", lambda: server.worker()["n_in_flight"])
    worker.end()
    asked.done()
    said = asked.answer["error"]["message"]
    net.check(asked.status >= 500 and "shutting down" in said and "--drain-ms" in said,
              f"{asked.status} {asked.answer}")
    net.end_all(server)


CASES = [drain_ends, choices, queue_counts, adaptation, delta, balance, fairness, full_pool, list_changes,
         both_roles]


def main():
    o = net.parser(__doc__, CASES).parse_args()
    return net.run_cases(o, CASES, Bench(o.baton, o.models))


if __name__ == "__main__":
    net.run(main)
