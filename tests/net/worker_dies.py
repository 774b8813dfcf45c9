#!/usr/bin/env python3
"""kill -9 of the worker at random moments of a long prefill.

Each time the answer must be the one without a worker, the server must live, other clients must not
notice, and the worker must be used again once it is back, without a restart of the server.
"""
import random
import time

import net_harness as net


def main():
    parser = net.parser(__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--tokens", type=int, default=3000)
    o = parser.parse_args()
    print(f"seed {o.seed}")
    dice = random.Random(o.seed)
    model = net.model_or_skip(o.models, o.model)
    listen = f"127.0.0.1:{net.free_port()}"

    def start_worker():
        # Slow on purpose, so that the moments spread over the whole prefill.
        return net.Worker(o.baton, model, "-c", 2 * o.tokens, "-t", 1, "--n-prefill-chunk", 32,
                          listen=listen)

    worker = start_worker()
    server = net.Server(o.baton, model, "-c", 2 * o.tokens, "-np", 4, workers=[worker.address])
    server.wait_ready()
    tokens = net.prompt(o.tokens, 5)
    want = net.facts(server.complete(tokens, where="local"))
    begin = time.monotonic()
    first = server.complete(tokens)
    span = time.monotonic() - begin
    told = first["prefill"]
    net.check(net.facts(first) == want and told["place"] == "remote", f"{told}")

    places = {}
    with net.Background(server, 1, n_predict=40):
        for i in range(o.times):
            # Another prompt each time, since the worker has the last one in its cache.
            tokens = net.prompt(o.tokens, 100 + i)
            client = net.Task(server.complete, tokens)
            time.sleep(dice.uniform(0, 1.05 * span))
            worker.kill()
            got = client.done()
            net.check(server.alive(), f"kill {i}: the server is gone")
            told = got["prefill"]
            places[told["place"]] = places.get(told["place"], 0) + 1
            net.check(told["place"] == "remote" or told["fallback"], f"kill {i}: {told}")
            worker = start_worker()
            server.wait_ready()
            want = net.facts(server.complete(tokens, where="local"))
            net.check(net.facts(got) == want, f"kill {i}: another answer; {told}")
    tokens = net.prompt(o.tokens, 5)
    last = server.complete(tokens)
    net.check(last["prefill"]["place"] == "remote", f"after {o.times} kills: {last['prefill']}")
    status = server.prefill()
    net.check(status["n_fallbacks"] == o.times - places.get("remote", 0), f"counters: {status}")
    server.wait_idle()
    net.end_all(server, worker)
    return f"{o.times} kills, {o.times} right answers, prefilled: {places}"


if __name__ == "__main__":
    net.run(main)
