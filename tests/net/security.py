#!/usr/bin/env python3
"""A worker among strangers: its memory stays flat, and its server is served all the while.

Without a key it listens for this machine only. Connections that say nothing, that trickle, that
claim enormous lengths, repeat an old greeting, speak of streams and epochs that are not theirs, use
another key or none: each costs its own connection. Ten thousand at once cost no more, and a server
that comes while they hold on is let in.
"""
import http.client
import json
import os
import re
import resource
import socket
import threading
import time

import net_harness as net
import wire
import fault_proxy

FLAT_KIB = 4096            # strangers' buffers: 16 of 64 KiB, their threads' stacks as far as used
FIRST_FRAME_S = 5.0        # until a connection has to have said its first frame


class Ear(fault_proxy.Edits):
    """One direction of a connection through a proxy, and all that has been said in it."""

    heard = []                 # in the order in which they were opened: up, down, up, ...

    def __init__(self, faults):
        super().__init__(faults)
        self.said = bytearray()
        Ear.heard.append(self)

    def feed(self, data):
        self.said.extend(data)
        return super().feed(data)


class Bench:
    def __init__(self, o):
        self.o = o
        self.model = net.model_or_skip(o.models)
        self.worker = net.Worker(o.baton, self.model, "-c", 8192, "-t", 1)
        self.server = self.start_server(self.worker.address)
        self.want = net.facts(self.server.complete(net.prompt(300, 5), where="local"))
        self.serial = 0
        for _ in range(5):
            self.served()
        self.rss = self.worker.rss_kib()
        self.rest = [self.worker.count("fd"), self.worker.count("task")]

    def start_server(self, address, *options):
        server = net.Server(self.o.baton, self.model, "-c", 4096, *options, workers=[address])
        server.wait_ready()
        return server

    def served(self, server=None):
        """The legitimate server gets its rows, and they are right."""
        answer = (server or self.server).complete(net.prompt(300, 5), where="remote")
        net.check(answer["prefill"]["place"] == "remote", f"{answer['prefill']}")
        net.check(net.facts(answer) == self.want, "another answer")

    def flat(self, what):
        """Everything of the strangers is gone, and memory is as before."""
        self.served()
        net.wait_for(f"{what}: descriptors and threads to be given back", lambda: [
            self.worker.count("fd"), self.worker.count("task")] <= self.rest, FIRST_FRAME_S + 10)
        grown = self.worker.rss_kib() - self.rss
        net.check(grown < FLAT_KIB, f"{what}: {grown} KiB more")
        return grown


def no_key_no_network(b):
    for address in ("0.0.0.0:0", "[::]:0"):
        try:
            worker = net.Worker(b.o.baton, b.model, listen=address)
        except net.Failed as refusal:
            net.check("--key-file" in str(refusal), f"{refusal}")
            continue
        net.check(False, f"listens on {worker.address} without a key")


def half_open(b):
    """Connections that say nothing, all held at once; samples of memory meanwhile."""
    n = b.o.connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, n + 500), hard))
    n = min(n, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)
    held, most = [], 0
    for i in range(n):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", b.worker.port))
        held.append(s)
        if i % 500 == 0:
            most = max(most, b.worker.rss_kib() - b.rss)
        if i == n // 2:
            b.served()
    begin = time.monotonic()
    late = b.start_server(b.worker.address)         # while all of them are held
    waited = time.monotonic() - begin
    # Their places would be free after FIRST_FRAME_S anyway.
    net.check(waited < FIRST_FRAME_S - 1, f"a server that came then waited for {waited:.1f} s")
    b.served(late)
    b.served()
    most = max(most, b.worker.rss_kib() - b.rss)
    net.check(most < FLAT_KIB, f"{most} KiB more while {n} connections were held")
    net.end_all(late)
    for s in held:
        s.close()
    b.flat("half open")
    return f"{n} connections, {most} KiB at most; a server that came then was ready after " \
           f"{waited:.1f} s"


def flood(b):
    """Connections opened and dropped as fast as it goes, from another address of this machine; a
    server comes in the middle of it."""
    stop, count, seconds = threading.Event(), [0], b.o.seconds

    def attack(first):
        while not stop.is_set():
            s = socket.socket()
            try:
                s.bind((first, 0))
                s.settimeout(1)
                s.connect(("127.0.0.1", b.worker.port))
                s.sendall(b"\x00" * 20)
                count[0] += 1
            except OSError:
                pass
            s.close()

    attackers = [net.Task(attack, f"127.0.0.{i + 2}") for i in range(2)]
    begin = time.monotonic()
    late = b.start_server(b.worker.address)
    waited = time.monotonic() - begin
    while time.monotonic() - begin < seconds:
        b.served(late)
        b.served()
        net.check(b.worker.rss_kib() - b.rss < FLAT_KIB, f"{b.worker.rss_kib() - b.rss} KiB more")
    stop.set()
    for a in attackers:
        a.done()
    net.end_all(late)
    b.flat("flood")
    lines = b.worker.text().count("level=warn")
    net.check(lines < 10 * (seconds + 20), f"{lines} lines of warning for {count[0]} connections")
    return f"{count[0]} connections in {seconds} s, a server ready after {waited:.1f} s"


def slow_loris(b):
    """HELLO, a byte every now and then: let go after the time for the first frame."""
    hello = wire.frame("HELLO", bytes(200))
    begin = time.monotonic()
    callers = [wire.Caller(b.worker.address) for _ in range(8)]
    alive, at = list(callers), 0
    while alive and time.monotonic() - begin < 3 * FIRST_FRAME_S:
        for c in list(alive):
            try:
                c.socket.sendall(hello[at:at + 1])
                c.socket.settimeout(0.01)
                if c.socket.recv(4096) == b"":
                    alive.remove(c)
            except TimeoutError:
                pass
            except OSError:
                alive.remove(c)
        at += at < len(hello) - 20
        b.served()
        time.sleep(0.05)
    took = time.monotonic() - begin
    for c in callers:
        c.close()
    net.check(not alive, f"{len(alive)} of 8 are still there after {took:.1f} s")
    b.flat("slow loris")
    return f"let go after {took:.1f} s"


def bad_frames(b):
    """One connection each; all end, and the reason is told in the log."""
    cases = {
        "oversize": wire.frame("HELLO", b"", length=0xFFFFFFFF),
        "too large for a stranger": wire.frame("HELLO", b"", length=1 << 20),
        "cut short": wire.frame("HELLO", b"\x01\0\0\0"),
        "a text over its limit": wire.frame("HELLO", wire.u32(1, 1) + wire.u64(1) + wire.u32(1) +
                                            bytes(64) + wire.u32(1, 1, 3) + wire.u64(768) +
                                            wire.u32(0xFFFFFFF0)),
        "magic": wire.frame("HELLO", b"", magic=0x12345678),
        "no HELLO": wire.frame("PREFILL", bytes(64), stream=1),
        "ROWS from a server": wire.frame("ROWS", bytes(64), stream=1),
        "sequence": wire.frame("HELLO", bytes(64), sequence=7),
        "TLS without a key here": bytes.fromhex("16030100c8010000c40303") + bytes(200),
        "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    }
    for name, data in cases.items():
        for _ in range(20):
            with wire.Caller(b.worker.address) as c:
                c.socket.sendall(data)
                net.check(c.ended(3), f"{name}: the connection stays")
    b.flat("bad frames")


def record_greeting(b):
    """All that a real server says, from HELLO on, in one exchange."""
    deaf, fault_proxy.Edits = fault_proxy.Edits, Ear
    proxy = fault_proxy.FaultProxy(b.worker.address)
    server = b.start_server(proxy.address)
    b.served(server)
    net.end_all(server)
    proxy.close()
    fault_proxy.Edits = deaf
    return wire.split(bytes(Ear.heard[0].said))


def replay(b):
    """An old greeting gives a connection of one's own and nothing of the other's: no stream of it is
    open, and what it asked for in its epoch is asked for again, not answered from what was sent."""
    frames = record_greeting(b)
    kinds = [f[0] for f in frames]
    net.check(kinds[0] == "HELLO" and "PREFILL" in kinds and "TOKENS" in kinds, f"{kinds}")
    hello = frames[0][2]
    for what, more in {"CREDIT of a stream that it never opened": ("CREDIT", wire.u64(1 << 20), 1),
                       "TOKENS likewise": ("TOKENS", wire.u32(0, 1, 7), 1),
                       "CANCEL likewise": ("CANCEL", wire.u32(6), 3),
                       "a second HELLO": ("HELLO", hello, 0)}.items():
        with wire.Caller(b.worker.address) as c:
            c.send("HELLO", hello)
            net.check(c.frames("WELCOME"), what)
            c.send(*more[:2], stream=more[2])
            net.check(c.ended(3), f"{what}: the connection stays")
    prefill = next(f for f in frames if f[0] == "PREFILL")
    with wire.Caller(b.worker.address) as c:
        c.send("HELLO", hello)
        c.frames("WELCOME")
        body = prefill[2]
        c.send("PREFILL", body[:8] + wire.u64(4711) + body[16:], stream=1)
        told = c.frames("ERROR")
        net.check(any(f[0] == "ERROR" and b"epoch" in f[2] for f in told), f"another epoch: {told}")
        net.check(not any(f[0] == "ROWS" for f in told), "rows for another epoch")
    b.flat("replay")


def keys(b):
    """With a key: no key, another key, bytes that are no TLS, a greeting that stops in the middle."""
    paths = []
    for name in "right", "wrong":
        paths.append(os.path.join(net.FOLDER, "security-" + name))
        with open(paths[-1], "wb") as f:
            f.write(name.encode() * 8)
        os.chmod(paths[-1], 0o600)
    worker = net.Worker(b.o.baton, b.model, "-c", 8192, "-t", 1, "--key-file", paths[0])
    server = b.start_server(worker.address, "--key-file", paths[0])
    b.served(server)
    before = worker.rss_kib()
    refused = []
    for options in (["--key-file", paths[1]], []):
        stranger = net.Server(b.o.baton, b.model, "-c", 512, *options, workers=[worker.address])
        refused.append(net.wait_for("a reason", lambda: stranger.worker()["reason"]))
        net.check(stranger.worker()["n_connects"] == 0, f"{stranger.worker()}")
        net.end_all(stranger)
    net.check("keys differ" in refused[0] and "--key-file" in refused[1], f"{refused}")
    half = bytes.fromhex("16030101000100")
    held = []
    for i in range(200):
        c = wire.Caller(worker.address)
        c.socket.sendall(half if i % 2 else wire.frame("HELLO", bytes(200)))
        held.append(c)
        if i % 50 == 0:
            b.served(server)
    b.served(server)
    for c in held:
        c.close()
    # Of each stranger that holds a place TLS has a buffer of records.
    grown = worker.rss_kib() - before
    net.check(grown < FLAT_KIB + 16 * 512, f"{grown} KiB more")
    net.end_all(server, worker)
    return f"{grown} KiB for 200 strangers"


def cached(worker, n):
    """Of each prompt of n rows that the worker has sent: how many it did not have to compute. A
    prompt's line may come after its answer, which does not wait for it: so once there are no more."""
    count, text = -1, worker.text()
    while count != text.count("event=prompt_end"):
        count = text.count("event=prompt_end")
        time.sleep(0.1)
        text = worker.text()
    lines = re.findall(r"outcome=pushed .* tokens=(\d+) cached=(\d+) ", worker.text())
    return [int(c) for t, c in lines if int(t) == n]


def tenants(b):
    """What one server, or one API key of a server, has asked is not found by another's question:
    nothing about it shows in what is cached, nor in the time that depends on it."""
    keys = os.path.join(net.FOLDER, "security-api-keys")
    with open(keys, "w") as f:
        f.write("alpha\nbeta\n")
    os.chmod(keys, 0o600)
    told = []
    for share in (False, True):
        worker = net.Worker(b.o.baton, b.model, "-c", 8192, "-t", 1, "-v",
                            *(["--share-cache"] if share else []))
        ours, others = (b.start_server(worker.address) for _ in range(2))
        for server in (ours, ours, others, others):
            b.served(server)
        told.append(cached(worker, 299))
        for server in (ours, others):  # that use no cache find none there either, twice the same
            for _ in range(2):
                server.complete(net.prompt(300, 5), worker_cache=False)
        alone = cached(worker, 299)[4:]
        net.check(alone == [0] * 4, f"without cache_prompt {alone}, --share-cache {share}")
        if not share:
            told.append(api_keys(b, worker, keys))
        net.end_all(ours, others, worker)
    apart, with_keys, together = told
    net.check(apart[0] == 0 and apart[1] > 250 and apart[2] == 0 and apart[3] > 250, f"{apart}")
    net.check(together[0] == 0 and min(together[1:]) > 250, f"--share-cache: {together}")
    return f"cached of 299 at the worker: by server {apart}, by API key {with_keys}, " \
           f"with --share-cache {together}"


def api_keys(b, worker, path):
    server = net.Server(b.o.baton, b.model, "-c", 4096, "--api-key-file", path,
                        workers=[worker.address])
    there = len(cached(worker, 279))
    for i, (key, where) in enumerate([("alpha", "remote"), ("beta", "remote"), ("alpha", "local"),
                                      ("beta", "local")]):
        ready = f"event=worker_ready worker={worker.address}"
        net.wait_for("the worker", lambda: ready in server.text())
        body = {"prompt": net.prompt(280, 6), "n_predict": 1, "temperature": 0,
                "prefill": {"where": where}}
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("POST", "/completion", json.dumps(body),
                           {"Authorization": "Bearer " + key})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        n = answer["timings"]["cache_n"]
        # The first question of each is new to it, whoever has asked before; the second is not.
        net.check(n == 0 if i < 2 else n > 200, f"{key} finds {n} cached: {answer['prefill']}")
    net.end_all(server)
    found = cached(worker, 279)[there:]
    net.check(found == [0, 0], f"at the worker: {found}")
    return found


CASES = [no_key_no_network, half_open, flood, slow_loris, bad_frames, replay, keys, tenants]


def main():
    parser = net.parser(__doc__, CASES)
    parser.add_argument("--connections", type=int, default=10000)
    parser.add_argument("--seconds", type=float, default=4, help="of the flood")
    o = parser.parse_args()
    b = Bench(o)
    told = net.run_cases(o, CASES, b)
    net.end_all(b.server, b.worker)
    return f"{told}, {b.worker.text().count('level=warn')} lines of warning"


if __name__ == "__main__":
    net.run(main)
