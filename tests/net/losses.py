#!/usr/bin/env python3
"""Workers that are lost while they prefill: how soon it is seen, what is kept, who else notices.

A killed worker and a wall that refuses are seen at once, a wall that swallows and a pulled cable by
heartbeat. Local prefill goes on from the last complete chunk, a worker that comes back as another
process is used again and nothing of the old one is, and each policy does what it says.
"""
import re
import signal
import statistics
import time

import net_harness as net
import rig
from fault_proxy import FaultProxy
from streams import Leaver, Streams

CHUNK = 32
TOKENS = 2500
LOST_S = 2.0               # four heartbeats
SLACK_S = 1.0              # for a machine that does other things too


class Bench:
    def __init__(self, baton, models):
        self.baton = baton
        self.models = models
        self.model = net.model_or_skip(models)
        self.other = net.find_models(models, ["tiny-qwen3"]).get("tiny-qwen3")
        self.plain = net.Server(baton, self.model, "-c", 3 * TOKENS, "-np", 2)
        self.serial = 0
        self.known = {}

    def prompt(self, n=TOKENS):
        self.serial += 1
        return net.prompt(n, 7000 + self.serial)

    def want(self, tokens):
        """The answer without a worker."""
        key = (len(tokens), tokens[0], tokens[-1])
        if key not in self.known:
            self.known[key] = net.facts(self.plain.complete(tokens, where="local"))
        return self.known[key]

    def worker(self, *options, **more):
        return net.Worker(self.baton, self.model, "-c", 3 * TOKENS, "-t", 1, "--n-prefill-chunk",
                          CHUNK, *options, **more)

    def server(self, *options, workers, **more):
        return net.Server(self.baton, self.model, "-c", 6 * TOKENS, "-np", 6, "-t", 1, *options,
                          workers=workers, **more)


class Asked(net.Task):
    """One prompt under way; after done() there are status, answer and the moment of the end."""

    def __init__(self, server, tokens, **options):
        self.tokens = tokens
        super().__init__(lambda: server.try_complete(tokens, **options))

    def run(self):
        super().run()
        self.end = time.monotonic()

    def done(self):
        self.status, self.answer = super().done()


def wait_rows(server, tokens, least=300):
    """Until so many rows have come and many are still to come."""
    def some():
        w = server.worker()
        return 0 < w["tokens_in_flight"] < len(tokens) - least
    net.wait_for("rows", some)


def slow_way(address):
    """To a worker; a prompt's rows take about a second, so that a loss finds them on their way."""
    return FaultProxy(address, rate_mbit=16)


def check_kept(told, n):
    """Local prefill went on where complete chunks ended, not from zero."""
    net.check(told["fallback"] and told["place"] == "mixed", f"{told}")
    net.check(told["n_remote"] >= CHUNK and told["n_remote"] % CHUNK == 0, f"{told}")
    net.check(told["n_local"] == n - told["n_remote"] and told["n_cached"] == 0, f"{told}")


# ---- killed ----

@net.again_if_late
def killed(b, times=5):
    """kill -9: seen in less than a second, by policy `fail` too; other streams go on as before."""
    listen = f"127.0.0.1:{net.free_port()}"

    def start():                       # two seconds a prompt, so that the kill finds it at work
        return b.worker("--link-buffer", 65536, "--prefill-rate", TOKENS // 2, listen=listen)

    worker = start()
    proxy = slow_way(listen)
    server = b.server(workers=[proxy.address])
    server.wait_ready()
    seen, during = [], []
    with Streams(server, 2) as streams:
        begin = time.monotonic()
        time.sleep(1.5)
        windows = [streams.longest(begin + 0.3 * i, begin + 0.3 * (i + 1)) for i in range(5)]
        for i in range(times):
            tokens = b.prompt()
            policy = "fail" if i % 2 == 0 else "fallback"
            asked = Asked(server, tokens, policy=policy)
            wait_rows(server, tokens)
            moment = time.monotonic()
            worker.kill()
            net.wait_for("the loss to be seen", lambda: server.worker()["state"] != "ready", 5)
            seen.append(time.monotonic() - moment)
            asked.done()
            if policy == "fail":
                # Nothing is prefilled here meanwhile, so the others must not notice anything.
                net.check(asked.status in (502, 504), f"{asked.status}: {asked.answer}")
                net.check(asked.end - moment < 1 + SLACK_S, f"{asked.end - moment:.2f} s")
                time.sleep(0.3)
                during.append(streams.longest(moment, moment + 0.3))
            else:
                net.check(net.facts(asked.answer) == b.want(tokens), "another answer")
                check_kept(asked.answer["prefill"], TOKENS)
            worker = start()
            server.wait_ready()
    net.check_time(max(seen) < 1.0, f"seen after {max(seen):.2f} s")
    # Both are the longest of a window of the same length; the median of several, because one hiccup
    # of the machine is longer than a hundred gaps.
    gap, normal = statistics.median(during), statistics.median(windows)
    net.check_time(gap <= 2 * max(normal, 0.005), f"longest gap {gap * 1000:.1f} ms, else "
              f"{normal * 1000:.1f} ms")
    net.end_all(server, worker)
    proxy.close()
    return (f"seen after {max(seen) * 1000:.0f} ms at most; longest gap of others "
            f"{gap * 1000:.1f} ms, else {normal * 1000:.1f} ms")


def restarted(b):
    """Another process at the same address: used again at once, and known to have an empty cache."""
    listen = f"127.0.0.1:{net.free_port()}"
    worker = b.worker("--link-buffer", 65536, listen=listen)
    proxy = slow_way(listen)
    server = b.server(workers=[proxy.address])
    server.wait_ready()
    tokens = b.prompt()
    net.check(server.complete(tokens)["prefill"]["place"] == "remote", "not remote")
    told = server.complete(tokens + net.prompt(100, 1))["prefill"]
    net.check(told["forecast"]["workers"][0]["n_known"] > TOKENS - 100, f"{told}")
    asked = Asked(server, b.prompt())
    wait_rows(server, asked.tokens)
    worker.kill()
    worker = b.worker("--link-buffer", 65536, listen=listen)
    asked.done()
    net.check(net.facts(asked.answer) == b.want(asked.tokens), "another answer")
    server.wait_ready()
    more = tokens + net.prompt(100, 2)
    answer = server.complete(more)
    told = answer["prefill"]
    net.check(net.facts(answer) == b.want(more), "another answer")
    net.check(told["place"] == "remote" and told["forecast"]["workers"][0]["n_known"] == 0, f"{told}")
    state = server.worker()
    net.check(state["n_connects"] == 2 and state["n_late_frames"] == 0, f"{state}")
    net.end_all(server, worker)
    proxy.close()


# ---- lost in silence ----

def cut_off(b, r, how):
    """`how`() cuts the worker off while rows are on their way; what came of it."""
    worker = b.worker("--insecure", within=r.worker)
    server = b.server(workers=[worker.address], within=r.server)
    server.wait_ready()
    r.set_rate(6)
    tokens = b.prompt()
    asked = Asked(server, tokens)
    wait_rows(server, tokens)
    moment = time.monotonic()
    how()
    net.wait_for("the loss to be seen", lambda: server.worker()["state"] != "ready", 10)
    seen = time.monotonic() - moment
    asked.done()
    net.check(net.facts(asked.answer) == b.want(tokens), f"another answer: {asked.answer['prefill']}")
    check_kept(asked.answer["prefill"], TOKENS)
    r.server.unblock()
    r.worker.unblock()
    r.server.plug_in()
    r.set_rate(None)
    net.wait_for("the worker to be back", lambda: server.worker()["state"] == "ready", 15)
    told = server.complete(b.prompt(400))["prefill"]
    net.check(told["place"] == "remote", f"{told}")
    net.end_all(server, worker)
    return seen, asked.answer["prefill"]["n_remote"]


def swallowed(b):
    seen, kept = with_rig(lambda r: cut_off(b, r, lambda: r.server.block("DROP")))
    net.check(seen < LOST_S + SLACK_S, f"seen after {seen:.2f} s")
    return f"seen after {seen:.2f} s, {kept} of {TOKENS} tokens kept"


def unplugged(b):
    seen, kept = with_rig(lambda r: cut_off(b, r, lambda: r.server.unplug()))
    net.check(seen < LOST_S + SLACK_S, f"seen after {seen:.2f} s")
    return f"seen after {seen:.2f} s, {kept} of {TOKENS} tokens kept"


def refused(b):
    # The worker's machine answers the server's next packet with a reset.
    seen, kept = with_rig(lambda r: cut_off(b, r, lambda: r.worker.block("REJECT")))
    net.check(seen < 1.0, f"seen after {seen:.2f} s")
    return f"seen after {seen:.2f} s, {kept} of {TOKENS} tokens kept"


def with_rig(body):
    try:
        r = rig.Rig()
    except rig.NotAllowed as problem:
        raise net.Skipped(str(problem))
    with r:
        return body(r)


# ---- buffers that are used again ----

def stale_pages(b, rounds=4):
    """The worker has pages for little more than one prompt, the link is slow, and every second
    client leaves while its rows are on the way: its pages hold another prompt at once."""
    n = 300
    worker = b.worker("-c", str(3 * n), "--n-prefill", "2")
    with FaultProxy(worker.address, rate_mbit=24) as proxy:
        server = b.server(workers=[proxy.address])
        server.wait_ready()
        prompts = [b.prompt(n) for _ in range(3)]
        for tokens in prompts:
            b.want(tokens)

        def stay():
            for i in range(10 * rounds):
                if i >= rounds and worker.status()["cancelled"] >= 5:
                    return i
                answer = server.complete(prompts[i % 3])
                net.check(net.facts(answer) == b.want(prompts[i % 3]) and
                          answer["prefill"]["place"] == "remote",
                          f"another prompt's rows: {answer['prefill']}")
            raise net.Failed(f"hardly any were cancelled: {worker.status()}")

        staying, n_left = net.Task(stay), 0
        while staying.is_alive():
            client = Leaver(server, net.prompt(2 * n, 100 + n_left))
            time.sleep(0.02 + 0.02 * (n_left % 8))     # at any moment of its transfer
            client.leave()
            n_left += 1
        n_stayed = staying.done()
        net.check(server.worker()["n_corrupt"] == 0, f"{server.worker()}")
        worker.wait_idle()
        net.end_all(server, worker)
    return f"{n_stayed} remote answers right, {n_left} clients left meanwhile"


# ---- policies ----

def counters(server):
    p = server.prefill()
    return (p["n_fallbacks"], p["n_failed"], server.metric("baton_prefill_fallbacks_total"),
            len(re.findall(r"event=prefill_fallback ", server.text())),
            len(re.findall(r"event=prefill_failed ", server.text())))


def expect_policy(b, server, policy, tokens, asked=None, before=None):
    """Which counters moved, and that the answer is right or an error with the reason."""
    before = before or counters(server)
    asked = asked or Asked(server, tokens, policy=policy)
    asked.done()
    moved = [int(y - x) for x, y in zip(before, counters(server))]
    if policy == "fail":
        message = asked.answer["error"]["message"]
        net.check(asked.status in (502, 504), f"{asked.status}: {asked.answer}")
        net.check(moved == [0, 1, 0, 0, 1], f"{policy}: {moved}")
        return message
    told = asked.answer["prefill"]
    net.check(asked.status == 200 and net.facts(asked.answer) == b.want(tokens), f"{told}")
    net.check(told["fallback"] and told["reason"], f"{told}")
    net.check(moved[:4] == [1, 0, 1, 1], f"{policy}: {moved}")
    return told["reason"]


def policies(b):
    """Absent, refusing and dying workers, per request and by the server's option."""
    listen = f"127.0.0.1:{net.free_port()}"
    server = b.server(workers=[listen])
    strict = b.server("--prefill-policy", "fail", workers=[listen])
    for policy in ("fallback", "fail"):
        reason = expect_policy(b, server, policy, b.prompt(300))
        net.check("no worker is ready" in reason and listen in reason, reason)
    net.wait_for("a reason", lambda: strict.worker()["reason"])
    status, answer = strict.try_complete(b.prompt(300), policy=None)
    net.check(status in (502, 504) and "no worker is ready" in answer["error"]["message"],
              f"{status} {answer}")
    status, answer = strict.try_complete(b.prompt(300), policy="fallback")
    net.check(status == 200 and answer["prefill"]["fallback"], f"{status} {answer}")
    # What is kept here by decision is no fallback, whatever the policy.
    status, answer = strict.try_complete(b.prompt(20), where="auto", policy="fail")
    net.check(status == 200 and not answer["prefill"]["fallback"], f"{status} {answer}")
    if b.other:
        worker = net.Worker(b.baton, b.other, "-c", TOKENS, listen=listen)
        net.wait_for("refusal", lambda: server.worker()["state"] == "refused")
        for policy in ("fallback", "fail"):
            reason = expect_policy(b, server, policy, b.prompt(300))
            net.check("geometry" in reason, reason)
        worker.end()
    for policy in ("fallback", "fail"):
        worker = b.worker(listen=listen)
        net.wait_for("the worker", lambda: server.worker()["state"] == "ready", 15)
        asked = None
        while not asked or not asked.is_alive():   # until the kill finds it on its way
            net.wait_for("the worker", lambda: server.worker()["state"] == "ready", 15)
            before = counters(server)
            asked = Asked(server, b.prompt(), policy=policy)
            while asked.is_alive() and server.worker()["tokens_in_flight"] in (0, TOKENS - 1):
                pass
        worker.kill()
        reason = expect_policy(b, server, policy, asked.tokens, asked, before)
        net.check(re.search(r"gave \d+ of \d+ tokens, then: ", reason), reason)
    net.end_all(server, strict)


def hedged(b):
    """Policy `hedge`: a worker in time is left alone; one that is late, hung or killed costs little
    more than prefilling here."""
    worker = b.worker("--link-buffer", 65536)
    with FaultProxy(worker.address) as proxy:
        server = b.server(workers=[proxy.address])
        server.wait_ready()
        for n in (400, TOKENS, 900, TOKENS):       # both sides are measured
            for where in ("remote", "local"):
                server.complete(b.prompt(n), where=where, n_predict=1)
        here_ms = server.complete(b.prompt(), where="local")["prefill"]["total_ms"]
        answers = [server.complete(b.prompt(), policy="hedge")["prefill"] for _ in range(5)]
        in_time = sum(not a["hedged"] and a["place"] == "remote" for a in answers)
        net.check(in_time >= 3 and not any(a["fallback"] for a in answers), f"{answers}")
        told = []

        def expect_here(what, after=lambda: None):
            before = server.prefill()
            asked = Asked(server, b.prompt(), policy="hedge")
            after()
            asked.done()
            prefill = asked.answer["prefill"]
            net.check(asked.status == 200 and net.facts(asked.answer) == b.want(asked.tokens),
                      f"{what}: another answer: {prefill}")
            net.check(prefill["place"] == "local" and prefill["hedged"] and not prefill["fallback"]
                      and prefill["n_remote"] == 0, f"{what}: {prefill}")
            state = net.wait_for("the prompt to be dropped", lambda: (lambda s: s["n_hedges_won_locally"] ==
                                 before["n_hedges_won_locally"] + 1 and s)(server.prefill()))
            net.check(state["n_hedged"] == before["n_hedged"] + 1 and
                      state["n_fallbacks"] == before["n_fallbacks"] and
                      state["n_cancelled"] == before["n_cancelled"] and
                      state["decisions"][0]["outcome"] == "hedge won locally", f"{what}: {state}")
            told.append(f"{what} {prefill['total_ms']:.0f} ms")
            return prefill["total_ms"]

        proxy.set_rate(2)                          # 8 s for this prompt
        late = expect_here("late")
        net.check(late < 2000, f"{late:.0f} ms")
        worker.wait_idle()
        proxy.set_rate(0)
        server.complete(b.prompt(300))
        hung = expect_here("hung", lambda: worker.signal(signal.SIGSTOP))
        net.check(hung < 1000 * LOST_S, f"{hung:.0f} ms: as long as the heartbeat takes")
        worker.signal(signal.SIGCONT)
        net.wait_for("the worker to be back", lambda: server.worker()["state"] == "ready", 10)
        net.check(server.metric("baton_prefill_hedges_won_locally_total") == 2, "metric")
        # Lost before it is late: a fallback like any other.
        asked = Asked(server, b.prompt(), policy="hedge")
        wait_rows(server, asked.tokens)
        worker.kill()
        asked.done()
        net.check(net.facts(asked.answer) == b.want(asked.tokens) and
                  asked.answer["prefill"]["fallback"], f"{asked.answer['prefill']}")
        net.end_all(server)
    return f"here {here_ms:.0f} ms; " + ", ".join(told)


def hedged_state(b):
    """The same with recurrent layers: whoever is first, the state is that of one side."""
    model = net.find_models(b.models, ["hf-qwen35"]).get("hf-qwen35")
    if not model:
        raise net.Skipped("no hybrid model")
    worker = net.Worker(b.baton, model, "-c", 2048, "-t", 1, "--link-buffer", 65536)
    places = {}
    with FaultProxy(worker.address) as proxy:
        server = net.Server(b.baton, model, "-c", 4096, "-np", 4, "-t", 1, workers=[proxy.address])
        server.wait_ready()
        vocabulary = server.get("/v1/models")["data"][0]["meta"]["n_vocab"]
        for i in range(8):                         # in time, late, in time, ...
            proxy.set_rate((0, 2)[i % 2])
            for k in range(2 if i % 2 == 0 else 0):
                server.complete(net.prompt(200 + 50 * k, 600 + i, vocabulary))
            tokens = net.prompt(300 + 40 * i, 500 + i, vocabulary)
            answer = server.complete(tokens, policy="hedge", cache=i >= 4)
            told = answer["prefill"]
            want = net.facts(server.complete(tokens, where="local"))
            net.check(net.facts(answer) == want, f"another answer: {told}")
            kind = told["place"] + (" hedged" if told["hedged"] else "")
            places[kind] = places.get(kind, 0) + 1
        net.check(places.get("local hedged"), f"{places}")
        net.check(any(p.startswith("remote") for p in places), f"{places}")
        net.end_all(server, worker)
    return f"{places}"


CASES = [killed, restarted, swallowed, unplugged, refused, stale_pages, policies, hedged,
         hedged_state]


def main():
    o = net.parser(__doc__, CASES).parse_args()
    return net.run_cases(o, CASES, Bench(o.baton, o.models))


if __name__ == "__main__":
    net.run(main)
