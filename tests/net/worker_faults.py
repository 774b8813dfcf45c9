#!/usr/bin/env python3
"""What a server does when a worker is absent, wrong, cut, hung, slow, lying, leaving or replaced.

In every case the answer must be the one without a worker, the server must live, the reason must be
told in the answer and in /v1/prefill, and the worker must be used again when it is well. Each
function below is one case; --only NAME runs one.
"""
import json
import os
import signal
import socket
import subprocess
import threading
import time

import net_harness as net
from fault_proxy import FaultProxy

LONG = 2500                # tokens; fewer where the program is slow (sanitizers)
LONG_MIN = 500
CONTEXT = 3 * LONG
LOST_S = 2.0               # four heartbeats


class Bench:
    """The program, the models, and answers without a worker."""

    def __init__(self, baton, models):
        self.baton = baton
        self.models = net.models_or_skip(models, net.FAMILIES)
        self.more = net.find_models(models, ["tinyq-llama-q4_0", "tinyq-llama-q8_0"])
        self.model = self.models.get("tiny-llama") or next(iter(self.models.values()))
        self.plain = net.Server(baton, self.model, "-c", CONTEXT, "-np", 2)
        self.known = {}
        self.serial = 0
        self.long, self.local_s = LONG, None
        while self.local_s is None or (self.local_s > 1.5 and self.long > LONG_MIN):
            self.long = self.long if self.local_s is None else max(self.long // 2, LONG_MIN)
            begin = time.monotonic()
            self.want(self.prompt())
            self.local_s = time.monotonic() - begin

    def want(self, tokens):
        key = (len(tokens), tokens[0], tokens[-1])
        if key not in self.known:
            self.known[key] = net.facts(self.plain.complete(tokens, where="local"))
        return self.known[key]

    def prompt(self, n=None):
        """A new one each time, so that nobody has it in a cache."""
        self.serial += 1
        return net.prompt(n or self.long, 1000 + self.serial)

    def worker(self, *options, model=None, **more):
        return net.Worker(self.baton, model or self.model, "-c", CONTEXT, "-t", 1,
                          "--n-prefill-chunk", 32, *options, **more)

    def server(self, *options, workers):
        return net.Server(self.baton, self.model, "-c", CONTEXT, "-np", 4, *options,
                          workers=workers)

    def expect(self, server, places, tokens=None, **options):
        """One right answer, prefilled in one of these places; what it says of it."""
        tokens = tokens or self.prompt()
        answer = server.complete(tokens, **options)
        told = answer["prefill"]
        net.check(net.facts(answer) == self.want(tokens), f"another answer: {told}")
        net.check(told["place"] in places, f"prefilled {told['place']}: {told}")
        net.check(told["reason"], f"no reason: {told}")
        n = len(tokens)
        net.check(told["n_remote"] + told["n_local"] + told["n_cached"] == n, f"{n} tokens: {told}")
        return told

    def pair(self, *server_options, worker_options=(), proxy=None):
        worker = self.worker(*worker_options)
        through = FaultProxy(worker.address, **proxy) if proxy is not None else None
        address = through.address if through else worker.address
        server = self.server(*server_options, workers=[address])
        server.wait_ready()
        return worker, server, through

    def done(self, *processes):
        net.end_all(*(p for p in processes if isinstance(p, net.Process)))
        for p in processes:
            if isinstance(p, FaultProxy):
                p.close()


# ---- cases ----

def nobody_there(b):
    server = b.server(workers=[f"127.0.0.1:{net.free_port()}"])
    net.wait_for("a reason", lambda: server.worker()["reason"])
    state = server.worker()
    net.check(state["state"] == "connecting" and "refused" in state["reason"], f"{state}")
    told = b.expect(server, ["local"], where="auto")
    net.check(told["fallback"] and "no worker is ready" in told["reason"], f"{told}")
    for where in ("auto", "remote"):
        status, answer = server.try_complete(b.prompt(), where=where, policy="fail")
        net.check(status == 502 and "no worker is ready" in answer["error"]["message"],
                  f"policy fail: {status} {answer}")
    told = b.expect(server, ["local"], where="local")
    net.check(not told["fallback"], f"asked for local: {told}")
    told = b.expect(server, ["local"], tokens=b.prompt(20), where="auto", policy="fail")
    net.check(not told["fallback"], f"too short to go: {told}")
    net.check(server.prefill()["n_fallbacks"] == 1 and server.prefill()["n_failed"] >= 1,
              f"{server.prefill()}")
    b.done(server)


def no_room(b):
    """A prompt longer than any worker takes is no passing failure, and no worker's loss."""
    worker, server, _ = b.pair(worker_options=("-c", 256))
    before = server.metric("baton_prefill_fallbacks_total")
    for where in ("auto", "remote"):
        status, answer = server.try_complete(b.prompt(400), where=where, policy="fail")
        error = answer["error"]
        net.check(status == 400 and error["type"] == "prefill_too_long_error" and
                  "399 tokens" in error["message"] and "room for 256" in error["message"],
                  f"policy fail: {status} {answer}")
    net.check(server.metric("baton_prefill_fallbacks_total") == before, "a failure is no fallback")
    told = b.expect(server, ["local"], tokens=b.prompt(400), where="auto")
    net.check(told["fallback"] and "room for 399 tokens" in told["reason"], f"{told}")
    state = server.prefill()
    net.check((state["n_fallbacks"], state["n_failed"]) == (1, 2), f"{state}")
    net.check(server.metric("baton_prefill_fallbacks_total") == before + 1, "the metric says less")
    net.check(state["workers"][0]["n_fallbacks"] == 0, f"no worker was tried: {state}")
    b.expect(server, ["remote"], tokens=b.prompt(200))
    b.done(server, worker)


def another_model(b):
    others = [(dict(model=m), f) for m, f in
              [(b.models.get("tiny-qwen3"), "geometry"), (b.models.get("tiny-gemma3"), "geometry")]
              if m]
    others += [(dict(options=["-ctk", "f32"]), "type_k"),
               (dict(options=["-ctv", "q8_0"]), "type_v")]
    for other, field in others:
        worker = b.worker(*other.get("options", []), model=other.get("model"))
        server = b.server(workers=[worker.address])
        net.wait_for("refusal", lambda: server.worker()["state"] == "refused")
        net.check(f"'{field}'" in server.worker()["reason"], f"{field}: {server.worker()}")
        told = b.expect(server, ["local"], tokens=b.prompt(200))
        net.check(told["fallback"] and field in told["reason"], f"{told}")
        b.done(server, worker)


def another_quantisation(b):
    """Equal shapes and tokenizer, other weights."""
    if len(b.more) < 2:
        raise net.Skipped("a model is missing")
    worker = b.worker(model=b.more["tinyq-llama-q4_0"])
    server = net.Server(b.baton, b.more["tinyq-llama-q8_0"], "-c", 1024, workers=[worker.address])
    net.wait_for("refusal", lambda: server.worker()["state"] == "refused")
    net.check("'weights'" in server.worker()["reason"], f"{server.worker()}")
    b.done(server, worker)


def cut_everywhere(b):
    """The connection is reset at each sixteenth of what the worker sends."""
    worker, server, proxy = b.pair(proxy={})
    before = proxy.status()["connections"][-1]["down"]
    b.expect(server, ["remote"])
    size = proxy.status()["connections"][-1]["down"] - before
    kept = []
    for i in range(16):
        server.reconnect(proxy, cut=size * i // 16 + 600)
        told = b.expect(server, ["local", "mixed"])
        net.check(told["fallback"], f"cut at {i}/16: {told}")
        kept.append(told["n_remote"])
        server.reconnect(proxy)
        b.expect(server, ["remote"], tokens=b.prompt(100))
    # Never more than had been sent; most of it, though a reset throws away what the kernel of the
    # sender still held.
    for i in range(16):
        net.check(kept[i] <= b.long * i // 16 + 32, f"kept {kept}")
    net.check(sum(kept) > sum(b.long * i // 16 for i in range(16)) // 2, f"kept {kept}")
    worker.wait_idle()
    b.done(server, worker, proxy)
    return f"tokens kept: {kept}"


def flipped_bytes(b):
    """One damaged byte, anywhere: noticed, counted, never answered from."""
    worker, server, proxy = b.pair(proxy={})
    for i in range(24):                # of the rows' first eighth: they have 768 bytes a token
        corrupt = server.worker()["n_corrupt"]
        server.reconnect(proxy, flip=[(600 + b.long * 4 * i + i, 1 << i % 8)])
        told = b.expect(server, ["local", "mixed"])
        net.check(told["fallback"], f"flip {i}: {told}")
        net.check(server.worker()["n_corrupt"] > corrupt, f"flip {i}: not counted: {told}")
    server.reconnect(proxy)
    b.expect(server, ["remote"])
    b.done(server, worker, proxy)


def hung_worker(b):
    """SIGSTOP: silence is noticed by heartbeat, and the worker is used again after SIGCONT."""
    worker, server, _ = b.pair(worker_options=["--prefill-rate", b.long])    # two seconds each
    times = []
    for i in range(3):
        tokens = b.prompt(2 * b.long)
        b.want(tokens)
        begin = time.monotonic()
        client = net.Task(server.complete, tokens)
        # At its beginning, after a quarter, after half of it.
        left_max = (2 - i / 2) * b.long
        net.wait_for("rows", lambda: 0 < server.worker()["tokens_in_flight"] <= left_max)
        worker.signal(signal.SIGSTOP)
        got = client.done()
        times.append(time.monotonic() - begin)
        net.check(net.facts(got) == b.want(tokens), f"hung {i}: another answer")
        net.check(got["prefill"]["fallback"], f"hung {i}: {got['prefill']}")
        net.check(times[-1] < 2 * LOST_S + 6 * b.local_s, f"{times[-1]:.1f} s")
        net.wait_for("the loss to be seen", lambda: server.worker()["state"] != "ready", 5)
        told = b.expect(server, ["local"], tokens=b.prompt(300))
        net.check(told["fallback"], f"{told}")
        worker.signal(signal.SIGCONT)
        net.wait_for("the worker to be back", lambda: server.worker()["state"] == "ready")
        b.expect(server, ["remote"], tokens=b.prompt(300))
    worker.wait_idle()
    b.done(server, worker)
    return f"seconds per answer {['%.1f' % t for t in times]}"


def stalled_link(b):
    worker, server, proxy = b.pair(proxy={})
    tokens = b.prompt()
    client = net.Task(server.complete, tokens)
    net.wait_for("rows", lambda: 0 < server.worker()["tokens_in_flight"] < b.long - 100, 20)
    proxy.stall()
    begin = time.monotonic()
    got = client.done()
    net.check(net.facts(got) == b.want(tokens), "another answer")
    took = time.monotonic() - begin
    net.check(took < 2 * LOST_S + 3 * b.local_s, f"noticed after {took:.1f} s")
    net.wait_for("the worker to drop the prompt", lambda: worker.status()["in_flight"] == 0, 10)
    net.wait_for("the worker to be back", lambda: server.worker()["state"] == "ready")
    b.expect(server, ["remote"])
    b.done(server, worker, proxy)


def slow_link_is_not_dead(b):
    """8 Mbit/s and 25 ms each way: everything takes long, nothing is lost."""
    worker, server, proxy = b.pair(proxy={"rate_mbit": 8, "delay_ms": 25})
    begin = time.monotonic()
    told = b.expect(server, ["remote"])
    took = time.monotonic() - begin
    state = server.worker()
    net.check(state["n_lost"] == 0 and state["n_connects"] == 1, f"{state}")
    bound = told["bytes"] * 8 / 8e6
    net.check(took > 0.8 * bound, f"{took:.2f} s for {told['bytes']} bytes: the link was not slow")
    b.done(server, worker, proxy)
    return f"{told['bytes']} bytes in {took:.2f} s, link bound {bound:.2f} s"


def round_trips_do_not_add_up(b):
    """100 ms round trip and 80 chunks: the pushing costs a few round trips, not one per chunk."""
    times = {}
    for delay in (0, 50):
        worker, server, proxy = b.pair(proxy={"delay_ms": delay})
        b.expect(server, ["remote"])
        times[delay] = min(b.expect(server, ["remote"])["total_ms"] for _ in range(3))
        b.done(server, worker, proxy)
    more, n_chunks = times[50] - times[0], b.long // 32
    # The promise is two round trips; the rest is for a machine that does other things too.
    net.check(more < 200 + 200, f"{more:.0f} ms more for a round trip of 100 ms: {times}")
    net.check(more < n_chunks * 100 / 4, f"{n_chunks} chunks, {more:.0f} ms more")
    return f"{times[0]:.0f} ms without, {times[50]:.0f} ms with 100 ms round trip"


def replaced_by_another_model(b):
    other = b.models.get("tiny-qwen3")
    if not other:
        raise net.Skipped("a model is missing")
    listen = f"127.0.0.1:{net.free_port()}"
    worker = b.worker(listen=listen)
    server = b.server(workers=[listen])
    server.wait_ready()
    b.expect(server, ["remote"])
    worker.kill()
    worker = b.worker(model=other, listen=listen)
    net.wait_for("refusal", lambda: server.worker()["state"] == "refused")
    told = b.expect(server, ["local"])
    net.check(told["fallback"] and "geometry" in told["reason"], f"{told}")
    worker.kill()
    worker = b.worker(listen=listen)
    net.wait_for("the right worker", lambda: server.worker()["state"] == "ready", 30)
    b.expect(server, ["remote"])
    b.done(server, worker)


def two_servers_one_worker(b):
    worker = b.worker("--n-prefill", 2)
    servers = [b.server(workers=[worker.address]) for _ in range(2)]
    lengths = [90, 300, b.long // 3, b.long // 2, b.long]
    for n in lengths:
        b.want(net.prompt(n, 4000 + n))
    for s in servers:
        s.wait_ready()
    clients = [net.Task(b.expect, s, ["remote"], net.prompt(n, 4000 + n)) for n in lengths
               for s in servers]
    for c in clients:
        c.done()
    status = worker.wait_idle()
    net.check(status["peers"] == 2 and status["prompts"] == len(clients), f"{status}")
    b.done(*servers, worker)


def short_prompt_overtakes_long_ones(b):
    """With --n-prefill 4 a short prompt does not wait for three long ones before it."""
    room = ["-c", 8 * LONG]
    worker, server, _ = b.pair(*room, worker_options=[*room, "--n-prefill", 4])
    alone = b.expect(server, ["remote"], tokens=b.prompt(64))["total_ms"]
    long_ones = [b.prompt(2 * b.long) for _ in range(3)]
    for t in long_ones:
        b.want(t)

    def client(tokens):
        b.expect(server, ["remote"], tokens=tokens)
        return time.monotonic()

    clients = [net.Task(client, t) for t in long_ones]
    net.wait_for("three prompts in work", lambda: server.worker()["n_in_flight"] == 3, 5)
    short = net.prompt(64, 9999)
    answer = server.complete(short)
    short_end = time.monotonic()
    n_before = sum(c.done() < short_end for c in clients)
    net.check(net.facts(answer) == b.want(short), "another answer")
    net.check(n_before <= 1, f"the short prompt waited for {n_before} long ones")
    b.done(server, worker)
    behind = answer["prefill"]["total_ms"]
    return f"short prompt: {alone:.1f} ms alone, {behind:.1f} ms behind three"


def slots_are_kept(b):
    """--n-prefill 1 on the server: the worker gets one prompt at a time, others wait here."""
    worker, server, _ = b.pair("--n-prefill", 1)
    stop, prompts = threading.Event(), [net.prompt(1000, 5000 + i) for i in range(4)]

    def watch():
        most = 0
        while not stop.is_set():
            most = max(most, worker.status()["running"], server.worker()["n_in_flight"])
        return most

    for tokens in prompts:
        b.want(tokens)
    watcher = net.Task(watch)
    for client in [net.Task(b.expect, server, ["remote"], tokens) for tokens in prompts]:
        client.done()
    stop.set()
    net.check(watcher.done() == 1, f"{watcher.told} prompts at once")
    b.done(server, worker)


def leave_early(server, tokens, seconds):
    """A client that goes away after so long."""
    body = json.dumps({"prompt": tokens, "n_predict": 200, "temperature": 0, "ignore_eos": True,
                       "cache_prompt": False, "stream": True, "prefill": {"where": "remote"}})
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.sendall((f"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                   f"Content-Type: application/json\r\n"
                   f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
        time.sleep(seconds)


def clients_that_leave(b, times=40):
    """Cancelled while queued, computing, transferring, decoding: both sides are as before."""
    worker, server, _ = b.pair(worker_options=["--n-prefill", 2])
    begin = time.monotonic()
    b.expect(server, ["remote"])
    span = time.monotonic() - begin

    def counts():
        worker.wait_idle()
        server.wait_idle()
        net.wait_for("the worker's pages to be free", lambda: (lambda w: w["kv_pages_used"] ==
                     w["kv_pages_cached"])(worker.status()))
        net.wait_for("the server's pages to be free", lambda: server.metric("baton_kv_pages_used")
                     == server.metric("baton_kv_pages_cached"))
        return net.resources(worker, server)

    before = counts()
    for i in range(times):
        leave_early(server, b.prompt(), span * 1.2 * i / times)
        if i % 10 == 0:
            t0 = time.monotonic()
            worker.wait_idle()
            net.check(time.monotonic() - t0 < 1.0 + b.local_s / 4, "the worker went on")
    # Several at once, more than there are slots: some are cancelled while they wait for one.
    for client in [net.Task(leave_early, server, b.prompt(), 0.02 * i) for i in range(6)]:
        client.done()
    after = net.wait_for("counters to return", lambda: (lambda c: all(
        x is None or x <= y for x, y in zip(c, before)) and c)(counts()), 20)
    state = server.worker()
    net.check(state["n_in_flight"] == 0 and state["n_waiting"] == 0 and state["n_lost"] == 0,
              f"{state}")
    net.check(worker.status()["cancelled"] >= 3, f"nothing was cancelled: {worker.status()}")
    b.expect(server, ["remote"])
    b.done(server, worker)
    return f"descriptors and threads of both before {before}, after {after}"


def drained_worker(b):
    """SIGTERM: what is in work is finished, no more is taken, exit 0, the server goes on alone."""
    worker, server, _ = b.pair()
    tokens = b.prompt()
    b.want(tokens)
    client = net.Task(server.complete, tokens)
    net.wait_for("a prompt in work", lambda: worker.status()["in_flight"] == 1, 5)
    worker.signal(signal.SIGTERM)
    got = client.done()
    net.check(net.facts(got) == b.want(tokens), "another answer")
    net.check(got["prefill"]["place"] == "remote", f"{got['prefill']}")
    net.wait_for("the worker to end", lambda: not worker.alive(), 10)
    net.check(worker.child.returncode == 0, f"exit {worker.child.returncode}")
    told = b.expect(server, ["local"])
    net.check(told["fallback"], f"{told}")
    b.done(server)


def second_worker_takes_over(b):
    workers = [b.worker() for _ in range(2)]
    # Slow links, so that the prompt is still on its way when the worker goes.
    proxies = [FaultProxy(w.address, rate_mbit=16) for w in workers]
    server = b.server(workers=[p.address for p in proxies])
    server.wait_ready(2)
    tokens = b.prompt()
    b.want(tokens)
    client = net.Task(lambda: server.complete(tokens, policy="fail"))

    def busy():
        return [i for i in (0, 1) if server.worker(i)["n_in_flight"]
                and server.worker(i)["tokens_in_flight"] < b.long - 200]
    first = net.wait_for("a prompt in work", busy, 5)[0]
    workers[first].kill()
    got = client.done()
    told = got["prefill"]
    net.check(net.facts(got) == b.want(tokens), f"another answer: {told}")
    net.check(told["place"] == "remote" and told["retries"] == 1, f"{told}")
    net.check(told["worker"] == proxies[1 - first].address, f"{told}")
    net.check(proxies[first].address in told["reason"] and f"of {b.long - 1} tokens" in
              told["reason"] and "did the rest" in told["reason"] and not told["fallback"], f"{told}")
    net.check(0 < told["compute_ms"] <= told["total_ms"], f"{told}")
    net.check(server.worker(1 - first)["n_tokens"] < b.long - 100, "the second began at zero")
    b.done(server, workers[1 - first], *proxies)


def delta_only(b):
    """The second turn sends only what the server does not have."""
    worker, server, _ = b.pair()
    n = b.long * 4 // 5
    tokens = b.prompt(n)
    first = server.complete(tokens, cache=True)
    net.check(first["prefill"]["place"] == "remote", f"{first['prefill']}")
    more = tokens + first["tokens"] + net.prompt(200, 31)
    second = server.complete(more, cache=True)
    told = second["prefill"]
    net.check(net.facts(second) == net.facts(b.plain.complete(more, where="local")), f"{told}")
    net.check(told["place"] == "remote" and told["n_cached"] >= n - 100, f"{told}")
    per_token = first["prefill"]["bytes"] / first["prefill"]["n_remote"]
    net.check(told["bytes"] == told["n_remote"] * per_token, f"{told}")
    net.check(told["n_remote"] <= 320, f"{told}")
    b.done(server, worker)


def one_shot(b):
    """baton run with a worker gives what it gives without one."""
    worker = b.worker()
    tokens = ",".join(map(str, b.prompt(700)))
    command = [b.baton, "run", "-m", b.model, "--tokens", tokens, "-n", "12", "--temp", "0",
               "--json", "--ignore-eos"]
    answers = []
    for more in ([], ["--prefill-device", worker.address]):
        run = subprocess.run(command + more, capture_output=True, text=True, timeout=60)
        net.check(run.returncode == 0, f"exit {run.returncode}: {run.stderr}")
        answers.append(json.loads(run.stdout))
    places = [a["prefill"]["place"] for a in answers]
    net.check(places == ["local", "remote"], f"{places}")
    net.check(answers[0]["tokens"] == answers[1]["tokens"] and len(answers[0]["tokens"]) == 12,
              f"{answers}")
    b.done(worker)


def keys(b):
    folder = os.path.dirname(b.plain.log)
    for name, byte in (("right", b"a"), ("wrong", b"b")):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(byte * 32)
        os.chmod(os.path.join(folder, name), 0o600)
    right, wrong = (os.path.join(folder, n) for n in ("right", "wrong"))
    try:
        worker = b.worker(listen="0.0.0.0:0")
        net.check(False, f"listens on every address without a key: {worker.address}")
    except net.Failed as refusal:
        net.check("--key-file" in str(refusal) and "exit" not in str(refusal), f"{refusal}")
    worker = b.worker("--key-file", right)
    server = b.server("--key-file", right, workers=[worker.address])
    server.wait_ready()
    b.expect(server, ["remote"])
    for options in (["--key-file", wrong], []):
        stranger = b.server(*options, workers=[worker.address])
        net.wait_for("a reason", lambda: stranger.worker()["reason"])
        net.check(stranger.worker()["state"] != "ready", f"{stranger.worker()}")
        b.expect(stranger, ["local"], tokens=b.prompt(100))
        b.done(stranger)
    b.expect(server, ["remote"])
    b.done(server, worker)


CASES = [nobody_there, no_room, another_model, another_quantisation, cut_everywhere, flipped_bytes,
         hung_worker, stalled_link, slow_link_is_not_dead, round_trips_do_not_add_up,
         replaced_by_another_model, two_servers_one_worker, short_prompt_overtakes_long_ones,
         slots_are_kept, clients_that_leave, drained_worker, second_worker_takes_over, delta_only,
         one_shot, keys]


def main():
    o = net.parser(__doc__, CASES).parse_args()
    return net.run_cases(o, CASES, Bench(o.baton, o.models))


if __name__ == "__main__":
    net.run(main)
