#!/usr/bin/env python3
"""Sending hides behind computing, on a cable of known speed between two namespaces.

  hidden     r = 0.5: what is exposed, against chunks that leave as a whole and against all at the
             end; the cost of the small last chunk
  link       r = 2: the first token comes as early as the link allows
  far away   50 ms of round trip cost no more than two of them, whatever the number of chunks
  memory     what both sides hold does not depend on the length of the prompt
  truth      reported bytes are those of the interface, reported rates no faster than the cable

Limits are formulas over bytes, rates and round trips of the same run. --full: longer prompts.
"""
import json
import os
import re
import tempfile
import time

import net_harness as net
import rig
import shaped

CHUNK = 512
LAYERS = 16


def round_trip_ms(pair):
    return pair.server.worker()["round_trip_ms"]


# ---- hidden ----

def settle(pair, n):
    """The first prompts teach worker and server the rates that cuts are made by."""
    for _ in range(2):
        pair.ask(n)


def exposed_by(pair, order, n, times):
    """The least of some: what the order costs without other people's noise."""
    pair.start_server(order)
    if order == "push":
        settle(pair, n)
    told = [pair.ask(n) for _ in range(times)]
    return min(t["exposed_ms"] for t in told), min(t["total_ms"] for t in told)


def hidden(r, o, model):
    n = 8193 if o.full else 2049
    with shaped.Pair(r, o.baton, model, r=0.5, context=8448 if o.full else 4352) as p:
        alone = p.link_ms((n - 1) * p.token_bytes)
        last = p.link_ms(CHUNK * p.token_bytes)
        push, push_total = exposed_by(p, "push", n, 3)
        layers, _ = exposed_by(p, "layers", n, 1)
        chunks, chunks_total = exposed_by(p, "chunks", n, 2)
        bulk, bulk_total = exposed_by(p, "bulk", n, 1)
        trip = round_trip_ms(p)
        text = (f"r 0.5, {n - 1} tokens, sending alone {alone:.0f} ms; exposed: push {push:.2f}, "
                f"layers {layers:.2f}, chunks {chunks:.1f}, bulk {bulk:.0f} ms; totals "
                f"{push_total:.0f}, {chunks_total:.0f}, {bulk_total:.0f} ms")
        net.check(push <= 1.15 * last + trip, f"more than the last chunk is exposed: {text}")
        net.check(push <= 0.03 * alone + trip, f"more than 3 % is exposed: {text}")
        # Uncut chunks leave the last one exposed, which is a fact of arithmetic; more is noise.
        net.check(chunks >= 0.9 * last, f"chunks expose less than their last one: {text}")
        net.check(push * 5 <= min(chunks, last), f"cutting and layers hide too little: {text}")
        ideal = (n - 1) / p.rate * 1000 + last
        net.check(push_total <= 1.03 * min(chunks_total, ideal), f"cutting costs too much: {text}")
        gain = alone - last / LAYERS
        net.check(bulk_total - push_total >= 0.9 * gain,
                  f"bulk should be {gain:.0f} ms later: {text}")
        return text


# ---- link ----

def link(r, o, model):
    n = 1025
    with shaped.Pair(r, o.baton, model, r=2) as p:
        pair_bound = p.link_ms((n - 1) * p.token_bytes)
        settle(p, n)

        @net.again_if_late
        def first_token():
            told = p.ask(n)
            limit = 1.1 * pair_bound + round_trip_ms(p)
            text = (f"r 2, {n - 1} tokens: first token after {told['first_token_ms']:.0f} ms, the "
                    f"link alone takes {pair_bound:.0f}, allowed are {limit:.0f}")
            net.check_time(told["first_token_ms"] <= limit, text)
            return text
        return first_token()


# ---- far away ----

def far(r, o, model):
    n, chunk, trip, texts = 1025, 64, 50, []
    for ratio in (0.5, 2):
        with shaped.Pair(r, o.baton, model, r=ratio, delay_ms=0,
                         server=("--n-prefill-chunk", chunk)) as p:
            settle(p, n)
            near = min(p.ask(n)["first_token_ms"] for _ in range(3))
            p.proxy.tell(f"delay {trip / 2}")
            time.sleep(1)
            later = min(p.ask(n)["first_token_ms"] for _ in range(3))
            text = f"r {ratio}, {n // chunk} chunks: first token {near:.0f} ms, with a round " \
                   f"trip of {trip} ms {later:.0f} ms"
            net.check(later - near <= 2 * trip, text)
            texts.append(text)
    return "; ".join(texts)


# ---- memory ----

def reset_peak(process):
    with open(f"/proc/{process.child.pid}/clear_refs", "w") as f:
        f.write("5")


def peak_kib(process):
    with open(f"/proc/{process.child.pid}/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+)", f.read()).group(1))


def growth_while_pushed(p, tokens):
    """KiB by which worker and server grow at most while a prompt that the worker has cached, all of
    it at once, goes over a slow cable. Pages are touched already: the same prompt came before."""
    p.rig.set_rate(None)
    for _ in range(2):
        p.server.complete(tokens, n_predict=1)
    p.set_ratio(1)
    before = []
    for process in (p.worker, p.server):
        before.append(process.rss_kib())
        reset_peak(process)
    told = p.server.complete(tokens, n_predict=1)["prefill"]
    net.check(told["place"] == "remote" and told["compute_ms"] < 0.2 * told["transfer_ms"],
              f"the worker should have had it: {told}")
    return [peak_kib(x) - b for x, b in zip((p.worker, p.server), before)], told["bytes"]


def memory(r, o, model):
    lengths = (1024, 32768 if o.full else 6656)    # 104 MiB of rows, and 512
    # A fast link for the way there, then 4,000 tokens a second, 64 MiB/s.
    with shaped.Pair(r, o.baton, model, rate=4000, context=lengths[-1] + 256) as p:
        grown = {}
        for n in lengths:
            grown[n], n_bytes = growth_while_pushed(p, net.prompt(n, 31))
            print(f"{n} tokens, {n_bytes >> 20} MiB: worker grows by {grown[n][0]} KiB, server by "
                  f"{grown[n][1]} KiB", flush=True)
        # The window of 16 MiB, one chunk, and a MiB for frames, batches and the allocator.
        limit = (16 << 10) + CHUNK * shaped.TOKEN_BYTES // 1024 + 1024
        for n, (worker, server) in grown.items():
            net.check(worker <= limit and server <= limit,
                      f"{n} tokens: {worker} and {server} KiB more, at most {limit}")
        net.check(all(b - a <= 4096 for a, b in zip(grown[lengths[0]], grown[lengths[1]])),
                  f"memory grows with the prompt: {grown}")


# ---- truth ----

def histogram_count(server, name):
    return server.metric(name + "_count")


def read_timelines(folder, n, n_bytes, n_prompts):
    """Both sides' files are JSON, and say of the last prompt what its report does."""
    for side, name, field, want in (("server", "rows", "bytes", n_bytes),
                                    ("worker", "rows", "bytes", n_bytes),
                                    ("worker", "step", "n", n)):
        with open(os.path.join(folder, side + ".json")) as f:
            events = json.load(f)
        prompts = [e for e in events if e["name"] == "prompt"]
        net.check(len(prompts) == n_prompts, f"{side}: {len(prompts)} prompts in the timeline")
        last = max(prompts, key=lambda e: e["ts"])
        end = last["ts"] + last["dur"]
        inside = [e for e in events if e["name"] == name and last["ts"] <= e["ts"] <= end]
        total = sum(e["args"][field] for e in inside)
        net.check(total == want, f"{side}: {field} of {name} are {total}, not {want}")


def truth(r, o, model):
    with tempfile.TemporaryDirectory() as folder:
        told = check_figures(r, o.baton, model, folder)
        read_timelines(folder, told["n_remote"], told["bytes"], 3)


def check_figures(r, baton, model, folder):
    n = 1025
    traces = [("--trace-handoff", os.path.join(folder, side + ".json"))
              for side in ("worker", "server")]
    with shaped.Pair(r, baton, model, r=2, worker=traces[0], server=traces[1]) as p:
        settle(p, n)
        names = [f"baton_prefill_{x}_seconds" for x in ("queue", "compute", "transfer", "exposed",
                                                       "import")]
        before = [histogram_count(p.server, name) for name in names]
        counted = p.server.metric("baton_prefill_received_bytes_total")
        with rig.Meter(r.server) as meter:
            told = p.ask(n)
        net.check(told["bytes"] == (n - 1) * p.token_bytes, f"bytes: {told}")
        net.check(told["bytes"] <= meter.bytes <= 1.02 * told["bytes"],
                  f"{told['bytes']} bytes reported, {meter.bytes} on the interface")
        rate = told["bytes"] / told["transfer_ms"] * 1000
        # From the first rows put in place to the commit; the first frame came before.
        allowed = p.goodput * (1 + (1 << 20) / told["bytes"])
        net.check(rate <= allowed,
                  f"{rate:.0f} bytes/s reported, the cable carries {p.goodput:.0f}")
        goodput = p.server.worker()["goodput_bytes_per_second"]
        net.check(0.8 * p.goodput <= goodput <= 1.03 * p.goodput,
                  f"goodput {goodput:.0f}, the cable carries {p.goodput:.0f}")
        for field in ("queue_ms", "compute_ms", "transfer_ms", "exposed_ms", "import_ms",
                      "overlap_percent", "first_token_ms", "reason", "retries", "wire_type"):
            net.check(told.get(field) is not None, f"no {field} in {told}")
        net.check(told["first_token_ms"] >= told["total_ms"] >= told["transfer_ms"], f"{told}")
        # At r = 2 half of sending is hidden.
        net.check(35 <= told["overlap_percent"] <= 60, f"overlap: {told}")
        after = [histogram_count(p.server, name) for name in names]
        net.check([a - b for a, b in zip(after, before)] == [1] * len(names), f"{before} {after}")
        net.check(p.server.metric("baton_prefill_received_bytes_total") - counted == told["bytes"],
                  "the counter and the report differ")
        local = p.server.complete(net.prompt(100, 3), where="local")["prefill"]
        net.check(local["place"] == "local" and local["bytes"] == 0 and local["wire_type"] is None,
                  f"{local}")
        print(f"{told['bytes']} bytes reported, {meter.bytes} on the interface; "
              f"{rate / p.goodput:.3f} of the cable's rate, goodput {goodput / p.goodput:.3f}")
        return told


CASES = [hidden, link, far, memory, truth]


def main():
    parser = net.parser(__doc__, CASES)
    parser.add_argument("--full", action="store_true")
    o = parser.parse_args()
    model = shaped.make_model(o.models)
    with rig.rig_or_skip(mtu=shaped.MTU) as r:
        return net.run_cases(o, CASES, r, o, model)


if __name__ == "__main__":
    net.run(main)
