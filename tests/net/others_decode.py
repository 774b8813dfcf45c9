#!/usr/bin/env python3
"""A long prompt on a worker disturbs nobody: while it is prefilled there, four sequences decode
here.

Server and worker have a core each. The 99th percentile of the time between two tokens, as clients
see it, may be 1.3 times that without the prompt; /health and /metrics answer within 50 ms. Both are
compared in the same run, and three times should it fail, since other people's load looks the same.
The model is a real one where there is one (BATON_MODELS_DIR). --tokens N: of the long prompt.
"""
import argparse
import json
import os
import sys
import threading
import time

import net_harness as net
import rig
import shaped

N_STREAMS = 4
SLICE_MS = 4                # of the scheduler
IDLE_S = 4.0                # half before, half after
ANSWER_TOKENS = 150


class Stream(threading.Thread):
    """A client that reads one answer after the other and notes how long each token took. Answers
    are short, so that all are of about the same depth."""

    def __init__(self, server, seed):
        super().__init__(daemon=True)
        self.server, self.seed = server, seed
        self.gaps, self.problem, self.stop = [], None, False     # gaps: (when, seconds)

    def read_answer(self):
        body = {"prompt": net.prompt(8, self.seed), "n_predict": ANSWER_TOKENS, "temperature": 0,
                "ignore_eos": True, "stream": True, "prefill": {"where": "local"}}
        connection = self.server.connect()
        connection.request("POST", "/completion", json.dumps(body),
                           {"Content-Type": "application/json"})
        before = None
        for line in connection.getresponse():
            if line.startswith(b"data:"):
                now = time.monotonic()
                if before:
                    self.gaps.append((now, now - before))
                before = now
            if self.stop:
                break
        connection.close()

    def run(self):
        try:
            while not self.stop:
                self.read_answer()
        except Exception as problem:                  # shown by the test
            self.problem = repr(problem)


class Questions(threading.Thread):
    """Asks /health and /metrics all the while; the longest time to an answer."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.stop, self.worst = server, False, 0.0

    def run(self):
        while not self.stop:
            for path in ("/health", "/metrics"):
                begin = time.monotonic()
                self.server.request("GET", path)
                self.worst = max(self.worst, time.monotonic() - begin)
            time.sleep(0.05)


def gaps(streams, begin, end):
    """Milliseconds between two tokens, of those between begin and end."""
    return sorted(gap * 1000 for s in streams for at, gap in list(s.gaps) if begin <= at <= end)


def percentile(values, share):
    return values[min(len(values) - 1, int(share * len(values)))]


def one_comparison(p, streams, n):
    """(ratio of the 99th percentiles, worst answer in ms, words)"""
    begin = time.monotonic()
    time.sleep(IDLE_S / 2)
    idle = gaps(streams, begin, time.monotonic())
    questions = Questions(p.server)
    questions.start()
    begin = time.monotonic()
    told = p.ask(n)
    end = begin + told["total_ms"] / 1000
    questions.stop = True
    questions.join()
    busy = gaps(streams, begin, end)
    begin = time.monotonic()
    time.sleep(IDLE_S / 2)
    idle = sorted(idle + gaps(streams, begin, time.monotonic()))
    net.check(len(idle) > 100 and len(busy) > 100, f"{len(idle)} and {len(busy)} tokens only")
    # Tokens of a very small model come faster than a system deals out its cores: what one time
    # slice of another thread adds is no more than that.
    later = max(percentile(busy, 0.99) - SLICE_MS, 0)
    ratio = max(later, min(percentile(busy, 0.99), percentile(idle, 0.99))) / percentile(idle, 0.99)
    return ratio, questions.worst * 1000, (
        f"{n} tokens prefilled in {told['total_ms']:.0f} ms; between tokens: median "
        f"{percentile(idle, 0.5):.1f} -> {percentile(busy, 0.5):.1f} ms, 99th "
        f"{percentile(idle, 0.99):.1f} -> {percentile(busy, 0.99):.1f} ms, longest {idle[-1]:.1f} "
        f"-> {busy[-1]:.1f} ms; worst answer of /health and /metrics {questions.worst * 1000:.1f} "
        f"ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("baton")
    parser.add_argument("models")
    parser.add_argument("--tokens", type=int, default=2048)
    o = parser.parse_args()
    real = net.find_models(o.models, net.REAL[:1])
    model = next(iter(real.values()), None) or shaped.make_model(o.models)
    with rig.rig_or_skip(mtu=shaped.MTU) as r:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, -10)   # who measures must not wait itself
        except OSError:
            pass
        with shaped.Pair(r, o.baton, model, rate=0 if real else shaped.RATE,
                         context=o.tokens + 2000) as p:
            streams = [Stream(p.server, 60 + i) for i in range(N_STREAMS)]
            for s in streams:
                s.start()
            net.wait_for("all streams to run", lambda: all(len(s.gaps) > 5 for s in streams))

            def attempt():
                ratio, worst, words = one_comparison(p, streams, o.tokens)
                print(words, flush=True)
                bad = [s.problem for s in streams if s.problem]
                net.check(not bad, f"streams: {bad}")
                return (ratio > 1.3 or worst > 50) and words
            shaped.until_good(3, attempt)
            for s in streams:
                s.stop = True
            for s in streams:
                s.join(20)
    return "nobody notices"


if __name__ == "__main__":
    sys.exit(net.run(main))
