#!/usr/bin/env python3
"""Two workers that fail all the time, and clients that must not notice more than a delay.

A server and two workers, each behind a fault proxy. Every now and then something random happens: a
link is cut, stalls, swallows or damages bytes, becomes slow or long, refuses; a worker is stopped and
continued, killed and started again, drained; the server itself is stopped for a moment. Meanwhile
clients ask, stream, choose places and policies, and leave early. Every answer is compared with the
one known from a server without workers, every request has a deadline, and in the end nothing is
left over: pages, streams, descriptors, threads, memory.

    soak.py BATON MODELS [--minutes 20] [--seed N]        (default: 20 seconds)
"""
import collections
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time

import net_harness as net
from fault_proxy import FaultProxy

CONTEXT = 8192
LENGTHS = [1900, 2, 3, 9, 31, 32, 33, 64, 100, 150, 257, 400, 512, 700, 1000, 1500]
N_PREDICT = 24
RATE = 1500                # tokens per second of a worker: slow enough that faults meet prompts
LOST_S = 2.0               # silence until a peer counts as lost
STALL_S = 10.0             # a prompt without news on a link that lives, before anything is measured
# What a request may take where two workers are tried, the second of them slow but alive, on a
# machine that does other things too; most of it is for the server's own pauses.
DEADLINE_S = 2 * (LOST_S + STALL_S) + 30


class Known:
    """Prompts and their answers without a worker; half of them go on where another one ended. In
    long runs so many that caches do not hold them all."""

    def __init__(self, baton, model, seed, minutes):
        plain = net.Server(baton, model, "-c", CONTEXT, "-np", 1, "-t", 1)
        self.prompts = []
        for i, n in enumerate(LENGTHS * max(1, min(8, int(minutes / 2)))):
            tokens = net.prompt(n, seed % 1000 + 50 + i)
            answer = self._add(plain, tokens)
            self._add(plain, tokens + answer["tokens"][:N_PREDICT // 2] + net.prompt(40 + 7 * (i % 20), i))
        net.end_all(plain)

    def _add(self, plain, tokens):
        begin = time.monotonic()
        answer = plain.complete(tokens, n_predict=N_PREDICT, where="local", n_probs=3)
        self.prompts.append((tokens, answer["tokens"], answer["completion_probabilities"],
                             time.monotonic() - begin))
        return answer


class Side:
    """A worker and the proxy before it."""

    def __init__(self, soak, index):
        self.soak, self.index = soak, index
        self.listen = f"127.0.0.1:{net.free_port()}"
        self.worker = None
        self.start()
        self.proxy = FaultProxy(self.listen)

    def start(self):
        self.worker = net.Worker(self.soak.baton, self.soak.model, "-c", 2 * CONTEXT, "-t", 1,
                                 "--n-prefill-chunk", 64, "--prefill-rate", RATE, "--drain-ms", 5000,
                                 *self.soak.key, listen=self.listen)


class Soak:
    def __init__(self, o):
        self.baton, self.seed = o.baton, o.seed
        self.model = net.model_or_skip(o.models, o.model)
        self.known = Known(o.baton, self.model, o.seed, o.minutes)
        self.key = ["--key-file", make_key()] if o.tls else []
        self.sides = [Side(self, i) for i in range(2)]
        self.server = net.Server(o.baton, self.model, "-c", CONTEXT, "-np", 4, "-t", 1,
                                 "--n-prefill-chunk", 64, "--prefill-min-tokens", 16, *self.key,
                                 workers=[s.proxy.address for s in self.sides])
        self.server.wait_ready(2)
        self.stop = threading.Event()
        self.problems = []
        self.counts = collections.Counter()
        self.slowest = 0.0
        self.n_clients, self.growth_kib = o.clients, o.growth_mib << 10

    def problem(self, text):
        self.problems.append(text)
        self.stop.set()

    # ---- clients ----

    def client(self, number):
        dice = random.Random(self.seed * 100 + number)
        while not self.stop.is_set():
            try:
                self.one_request(dice)
            except net.Failed as problem:
                self.problem(f"client {number}: {problem}")
            except Exception as problem:
                self.problem(f"client {number}: {type(problem).__name__}: {problem}")
            self.stop.wait(dice.uniform(0, 0.15))

    def one_request(self, dice):
        tokens, answer, probs, _ = dice.choice(self.known.prompts)
        kind = dice.choices(["whole", "stream", "leave"], [5, 4, 2])[0]
        n = dice.randint(1, N_PREDICT)
        body = {"prompt": tokens, "n_predict": n, "temperature": 0, "ignore_eos": True,
                "cache_prompt": dice.random() < 0.5, "n_probs": 3, "return_tokens": True,
                "stream": kind != "whole",
                "prefill": {"where": dice.choice(["auto", "remote", "remote", "local"]),
                            "policy": dice.choice(["fallback", "fallback", "fail"])}}
        begin = time.monotonic()
        leave_s = dice.uniform(0, 0.3) if kind == "leave" else None
        status, told = ask(self.server.port, body, leave_s)
        took = time.monotonic() - begin
        what = f"{len(tokens)} tokens, {body['prefill']}, {kind}"
        if kind == "leave":
            self.counts["left"] += 1
            return
        self.slowest = max(self.slowest, took)
        net.check(took < DEADLINE_S, f"{what}: {took:.1f} s")
        if body["prefill"]["policy"] == "fail" and status in (502, 503, 504):
            net.check(told["error"]["message"], f"{what}: {status} without a reason: {told}")
            self.counts["failed as asked"] += 1
            return
        net.check(status == 200, f"{what}: HTTP {status}: {told}")
        net.check(told["tokens"] == answer[:n], f"{what}: other tokens: {told['prefill']}")
        net.check(told["completion_probabilities"] == probs[:n],
                  f"{what}: other probabilities: {told['prefill']}")
        self.counts[told["prefill"]["place"]] += 1
        self.counts["fallbacks"] += told["prefill"]["fallback"]
        self.counts["retries"] += told["prefill"]["retries"]

    # ---- faults ----

    def fault(self, dice, side):
        """One fault from begin to end; its name."""
        proxy, worker = side.proxy, side.worker
        span = dice.uniform(0.3, 3.5)
        kind = dice.choice(["cut", "stall", "drop", "refuse", "flip", "rate", "delay", "offset",
                            "sigstop", "kill", "drain", "pause server", "doctor"])
        if kind == "cut":
            proxy.cut()
        elif kind == "stall":
            proxy.stall()
            self.pause(span)
            proxy.resume()
        elif kind == "drop":
            proxy.drop()
            self.pause(span)
            proxy.resume()
            proxy.cut()             # with bytes missing nothing can go on
        elif kind == "refuse":
            proxy.refuse()
            proxy.cut()
            self.pause(span)
            proxy.accept()
        elif kind == "flip":
            proxy.flip()
        elif kind == "rate":
            proxy.set_rate(dice.choice([8, 20, 80]))
            self.pause(span)
            proxy.set_rate(0)
        elif kind == "delay":
            proxy.set_delay(dice.choice([2, 10, 50]))
            self.pause(span)
            proxy.set_delay(0)
        elif kind == "offset":
            self.fault_at_offset(dice, proxy, span)
        elif kind == "sigstop":
            worker.signal(signal.SIGSTOP)
            self.pause(span)
            worker.signal(signal.SIGCONT)
        elif kind == "kill":
            worker.kill()
            self.pause(span / 2)
            side.start()
        elif kind == "drain":
            net.check(worker.end() == 0, f"drained worker: exit {worker.child.returncode}")
            side.start()
        elif kind == "doctor":      # no fault, but it comes at the wrong time
            done = subprocess.run([self.baton, "doctor", proxy.address, *self.key],
                                  capture_output=True, text=True, timeout=60)
            net.check(done.returncode in (0, 1) and not done.stderr, f"doctor: {done}")
        else:
            self.server.signal(signal.SIGSTOP)
            time.sleep(span)
            self.server.signal(signal.SIGCONT)
        return kind

    def fault_at_offset(self, dice, proxy, span):
        """The next connection meets it somewhere in its first bytes."""
        at = dice.randrange(1, dice.choice([400, 20000, 2000000]))
        n = dice.choice([1, 32, 1000])
        proxy.direction = dice.choice(["up", "down"])
        proxy.faults = dice.choice([{"cut": at}, {"truncate": at}, {"stall": at},
                                    {"flip": [(at, 1 << dice.randrange(8))]},
                                    {"duplicate": [(at, at + n)]}, {"omit": [(at, at + n)]},
                                    {"swap": [(at, at + n, at + 2 * n)]}])
        proxy.cut()
        self.pause(span)
        proxy.clear()
        proxy.resume()
        proxy.cut()

    def pause(self, seconds):
        self.stop.wait(seconds)

    def trouble(self, number):
        """Each side has its own troubles, so that both may be away at once."""
        dice = random.Random(self.seed * 100 + 50 + number)
        side = self.sides[number]
        while not self.stop.is_set():
            try:
                self.counts["fault: " + self.fault(dice, side)] += 1
            except net.Failed as problem:
                self.problem(f"side {number}: {problem}")
            self.pause(dice.uniform(0.1, 2.5))

    # ---- counters ----

    def quiet(self):
        """All healthy and at rest; descriptors, threads and memory of the three processes."""
        for side in self.sides:
            side.proxy.clear()
            side.proxy.resume()
            side.proxy.set_rate(0)
            side.proxy.set_delay(0)
        self.server.wait_ready(2, 40)
        self.server.wait_idle()
        net.wait_for("the server's pages", lambda: self.server.metric("baton_kv_pages_used") ==
                     self.server.metric("baton_kv_pages_cached"))
        for side in self.sides:
            side.worker.wait_idle()
            net.wait_for("a worker's pages", lambda s=side: (lambda w: w["kv_pages_used"] ==
                         w["kv_pages_cached"])(side.worker.status()))
        for worker in self.server.prefill()["workers"]:
            net.check(worker["n_in_flight"] == 0 and worker["n_waiting"] == 0, f"{worker}")
        processes = [self.server] + [s.worker for s in self.sides]
        net.resources(*processes)
        return [{"fd": p.count("fd"), "threads": p.count("task"), "rss": p.rss_kib(),
                 "pid": p.child.pid, "snapshots": self.snapshots_kib(p)} for p in processes]

    def snapshots_kib(self, process):
        """Of hybrids: kept states, which fill their room for long; of others 0."""
        if process is self.server:
            return int(process.metric("baton_snapshot_bytes")) >> 10
        return process.status().get("snapshot_bytes", 0) >> 10

    def compare(self, before, after):
        for name, b, a in zip(("server", "worker 1", "worker 2"), before, after):
            if a["pid"] != b["pid"]:
                b = dict(min((x for x in before[1:]), key=lambda x: x["rss"]), pid=a["pid"])
            net.check(a["fd"] <= b["fd"], f"{name}: descriptors {b['fd']}, then {a['fd']}")
            net.check(a["threads"] <= b["threads"], f"{name}: threads {b['threads']}, then "
                      f"{a['threads']}")
            kept = max(a["snapshots"] - b["snapshots"], 0)
            net.check(a["rss"] - b["rss"] - kept < self.growth_kib, f"{name}: {b['rss']} KiB, then "
                      f"{a['rss']}, of which {kept} are states kept since")

    def run_for(self, seconds, faults):
        self.stop.clear()
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(self.n_clients)]
        if faults:
            threads += [threading.Thread(target=self.trouble, args=(i,)) for i in range(2)]
        for t in threads:
            t.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.stop.is_set():
            self.stop.wait(1)
            net.check(self.server.alive(), f"the server ended with {self.server.child.returncode}")
        self.stop.set()
        for t in threads:
            t.join()
        net.check(not self.problems, "; ".join(self.problems[:3]))


def make_key():
    path = os.path.join(net.FOLDER, "soak-key")
    with open(path, "wb") as f:
        f.write(os.urandom(32))
    os.chmod(path, 0o600)
    return path


def ask(port, body, leave_s):
    """HTTP status and answer; of a stream all pieces joined. leave_s: goes away after so long."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S + 5)
    try:
        connection.request("POST", "/completion", json.dumps(body),
                           {"Content-Type": "application/json"})
        if leave_s is not None:
            time.sleep(leave_s)
            connection.sock.shutdown(socket.SHUT_RDWR)
            return 0, None
        response = connection.getresponse()
        data = response.read()
    finally:
        connection.close()
    if response.status != 200 or not body["stream"]:
        return response.status, json.loads(data)
    return join([json.loads(line[6:]) for line in data.decode().split("\n")
                 if line.startswith("data: ")])


def join(events):
    """A stream that ended in an error counts as its status."""
    tokens, probs = [], []
    for event in events:
        if "error" in event:
            return event["error"]["code"], event
        tokens += event.get("tokens", [])
        probs += event.get("completion_probabilities", [])
    net.check(events and events[-1].get("stop"), f"a stream without an end: {events[-1:]}")
    return 200, dict(events[-1], tokens=tokens, completion_probabilities=probs)


def main():
    parser = net.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=20 / 60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--tls", action="store_true", help="with a key on both sides")
    parser.add_argument("--growth-mib", type=int, default=8,
                        help="of one process after warming up; sanitizers keep what was freed")
    o = parser.parse_args()
    print(f"seed {o.seed}", flush=True)
    s = Soak(o)
    seconds = o.minutes * 60
    s.run_for(min(seconds / 5, 60), faults=False)
    before = s.quiet()
    s.run_for(seconds, faults=True)
    after = s.quiet()
    s.compare(before, after)
    net.end_all(s.server, *(side.worker for side in s.sides))
    for side in s.sides:
        side.proxy.close()
    faults = {k[7:]: n for k, n in sorted(s.counts.items()) if k.startswith("fault: ")}
    others = {k: n for k, n in sorted(s.counts.items()) if not k.startswith("fault: ")}
    for name, b, a in zip(("server", "worker 1", "worker 2"), before, after):
        print(f"{name}: descriptors {b['fd']} to {a['fd']}, threads {b['threads']} to "
              f"{a['threads']}, {b['rss']} to {a['rss']} KiB"
              + (", restarted" if a["pid"] != b["pid"] else ""))
    print(f"requests {others}\nfaults {faults}\nslowest answer {s.slowest:.1f} s")
    return f"{sum(faults.values())} faults"


if __name__ == "__main__":
    net.run(main)
