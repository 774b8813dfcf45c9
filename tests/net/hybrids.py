#!/usr/bin/env python3
"""Models with recurrent layers: what a handoff carries beside rows, and what a second turn costs.

A recurrent state cannot be cut, so a later prompt begins at a snapshot or at nothing. After a remote
prefill the server must have the snapshots that a local one would have left: the second turn, the
same prompt again and an edited last message evaluate no more tokens than after a local prefill, and
at most one snapshot interval more than a model without states would. When the worker is lost in the
middle the state is as if it had never been asked, and answers are those of a server without workers.
"""
import json

import net_harness as net
from fault_proxy import FaultProxy

EVERY = 256
CONTEXT = 8192
ANSWER = 100


def serve(baton, model, *options, workers=()):
    server = net.Server(baton, model, "-c", CONTEXT, "-np", 4, "--chat-template", "chatml",
                        "--snapshot-every", EVERY, *options, workers=workers)
    if workers:
        server.wait_ready(len(workers))
    return server


def work(baton, model, *options):
    return net.Worker(baton, model, "-c", CONTEXT, "-t", 1, "--n-prefill-chunk", 64,
                      "--snapshot-every", EVERY, *options)


def evaluated(answer, n):
    return n - answer["timings"]["cache_n"]


class Turns:
    """The same turns on a server: facts and evaluated tokens, by name."""

    def __init__(self, server, where):
        self.server, self.where = server, where
        self.facts, self.cost, self.length = {}, {}, {}

    def tokens(self, name, tokens, where=None, n_predict=ANSWER):
        answer = self.server.complete(tokens, cache=True, where=where or self.where,
                                      n_predict=n_predict)
        self.facts[name] = net.facts(answer)
        self.cost[name] = evaluated(answer, len(tokens))
        return answer

    def chat(self, name, messages, where=None, n_predict=ANSWER):
        body = {"messages": messages, "temperature": 0, "max_tokens": n_predict, "logprobs": True,
                "top_logprobs": 5, "ignore_eos": True, "cache_prompt": True,
                "prefill": {"where": where or self.where}}
        status, data = self.server.request("POST", "/v1/chat/completions", body)
        net.check(status == 200, f"{name}: HTTP {status}: {data[:300]}")
        answer = json.loads(data)
        choice = answer["choices"][0]
        self.facts[name] = json.dumps([choice["message"]["content"], choice["logprobs"]])
        n = answer["usage"]["prompt_tokens"]
        self.length[name] = n
        self.cost[name] = evaluated(answer, n)
        return choice["message"]["content"], answer

    def run(self):
        first = net.prompt(700, 7)
        told = self.tokens("first", first)["prefill"]
        net.check(told["place"] == self.where, f"{told}")
        self.tokens("again", first, "local")
        answer = self.tokens("first, once more", first, "local")["tokens"]
        self.tokens("second turn", first + answer + net.prompt(60, 8), "local")

        # Parts from the first far from its end, where no border is.
        self.tokens("edited inside", first[:600] + net.prompt(100, 9), "local")

        text = " ".join(f"word{i}" for i in range(90))
        system = {"role": "system", "content": "You are " + text}
        question = {"role": "user", "content": "What is " + text}
        reply, whole = self.chat("chat", [system, question])
        net.check(whole["prefill"]["place"] == self.where, f"{whole['prefill']}")
        self.chat("chat again", [system, question], "local")
        self.chat("chat edited", [system, {"role": "user", "content": "Why is " + text}], "local")
        self.chat("chat edited late", [system, {"role": "user", "content": question["content"]
                                                + " now?"}], "local")
        self.chat("chat second", [system, question, {"role": "assistant", "content": reply},
                                  {"role": "user", "content": "And then?"}], "local")
        self.chat("chat forgetful", [system, question, {"role": "assistant", "content": "Yes."},
                                     {"role": "user", "content": "And then?"}], "local")


def turns(baton, name, model):
    """Costs after a remote prefill against those after a local one."""
    local = Turns(serve(baton, model), "local")
    local.run()
    worker = work(baton, model)
    remote = Turns(serve(baton, model, workers=[worker.address]), "remote")
    remote.run()
    for turn, facts in local.facts.items():
        net.check(remote.facts[turn] == facts, f"{name}: {turn}: another answer")
    later = [t for t in local.cost if t not in ("first", "chat")]
    for turn in later:
        here, there = local.cost[turn], remote.cost[turn]
        net.check(there <= here, f"{name}: {turn}: {there} tokens after a remote prefill, {here} "
                  "after a local one")
    # A model without states would evaluate one token, and what is new.
    net.check(local.cost["edited inside"] <= 100 + EVERY, f"{name}: {local.cost}")
    net.check(local.cost["again"] <= 1 + EVERY and local.cost["second turn"] <= 61 + EVERY,
              f"{name}: {local.cost}")
    net.check(local.cost["chat again"] <= 1 + EVERY, f"{name}: {local.cost}")
    net.end_all(local.server, remote.server, worker)
    return {t: (local.cost[t], remote.cost[t]) for t in later}


def lost_at_each_stage(baton, name, model):
    """The connection is cut at each sixteenth of what the worker sends: rows, states, COMMIT and
    the snapshots behind it."""
    plain = Turns(serve(baton, model), "local")
    worker = work(baton, model)
    proxy = FaultProxy(worker.address)
    server = Turns(serve(baton, model, workers=[proxy.address]), "remote")

    def ask(turns, i):
        text = " ".join(f"{i}th{k}" for k in range(70))
        return turns.chat(str(i), [{"role": "system", "content": text},
                                   {"role": "user", "content": text}], n_predict=6)[1]["prefill"]

    def received():
        return proxy.status()["connections"][-1]["down"]

    before = received()
    net.check(ask(server, 99)["place"] == "remote", "not remote")
    worker.wait_idle()
    net.wait_for("snapshots", lambda: server.server.metric("baton_snapshots") >= 3)
    size = received() - before
    places = []
    for i in range(17):
        server.server.reconnect(proxy, cut=size * i // 16 + 600)
        told = ask(server, i)
        ask(plain, i)
        net.check(server.facts[str(i)] == plain.facts[str(i)], f"{name}: cut {i}: {told}")
        net.check(told["place"] == "remote" or (told["fallback"] and told["n_remote"] == 0),
                  f"{name}: cut {i}: {told}")
        places.append(told["place"])
    n_local = places.count("local")
    net.check(n_local >= 4 and "remote" in places[-8:] and set(places[:4]) == {"local"},
              f"{name}: {places}")
    server.server.reconnect(proxy)
    worker.wait_idle()
    net.end_all(plain.server, server.server, worker)
    proxy.close()
    return f"{n_local} local, {len(places) - n_local} committed before"


def another_worker_goes_on(baton, name, model):
    """A second worker takes the prompt over: rows from where the first stood, and the whole state."""
    plain = serve(baton, model)
    workers = [work(baton, model) for _ in range(2)]
    server = serve(baton, model, workers=[w.address for w in workers])
    tokens = net.prompt(6000, 3)
    want = net.facts(plain.complete(tokens, where="local"))
    client = net.Task(server.complete, tokens)

    def busy():
        return [i for i in (0, 1) if server.worker(i)["n_in_flight"]
                and server.worker(i)["tokens_in_flight"] < 5500]
    first = net.wait_for("a prompt in work", busy, 10)[0]
    workers[first].kill()
    got = client.done()
    told = got["prefill"]
    net.check(net.facts(got) == want, f"{name}: another answer: {told}")
    net.check(told["place"] == "remote" and told["retries"] == 1, f"{name}: {told}")
    net.end_all(plain, server, workers[1 - first])


def a_prefix_without_snapshots(baton, name, model):
    """Rows that are known without a state are computed once more; the older ones must make room, or
    answers would end for want of pages."""
    server = net.Server(baton, model, "-c", 2048, "-np", 1, "--snapshot-bytes", 0)
    for i in range(3):
        answer = server.complete(net.prompt(1200, 5), cache=True, where="local", n_predict=400,
                                 n_probs=0)
        net.check(answer["tokens_predicted"] == 400, f"{name}: {i}: {answer['tokens_predicted']}")
    net.end_all(server)


def snapshots_are_bounded(baton, name, model):
    """Many prompts: memory for snapshots stays under its limit on both machines."""
    limit = 400_000
    worker = work(baton, model, "--snapshot-bytes", limit)
    server = serve(baton, model, "--snapshot-bytes", limit, workers=[worker.address])
    most = 0
    for i in range(12):
        server.complete(net.prompt(600, 200 + i), cache=True, n_predict=20)
        most = max(most, server.metric("baton_snapshot_bytes"))
        net.check(server.metric("baton_snapshot_bytes") <= limit, f"{name}: over the limit")
    net.check(most > limit / 2, f"{name}: only {most} bytes of snapshots were ever kept")
    net.end_all(server, worker)
    return int(most)


def main():
    parser = net.parser(__doc__)
    parser.add_argument("--only", help="one model")
    o = parser.parse_args()
    found = net.models_or_skip(o.models, [o.only] if o.only else net.HYBRIDS)
    for name, model in found.items():
        costs = turns(o.baton, name, model)
        print(f"{name}: evaluated after local, remote prefill: {costs}", flush=True)
        print(f"{name}: cut at each sixteenth: {lost_at_each_stage(o.baton, name, model)}",
              flush=True)
    name, model = next(iter(found.items()))
    another_worker_goes_on(o.baton, name, model)
    a_prefix_without_snapshots(o.baton, name, model)
    print(f"{name}: snapshots up to {snapshots_are_bounded(o.baton, name, model)} bytes")
    return f"{len(found)} models"


if __name__ == "__main__":
    net.run(main)
