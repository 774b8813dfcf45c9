#!/usr/bin/env python3
"""Remote prefill equals local prefill, bit for bit (promise 1 of docs/architecture.md).

For each model: one reference answer per prompt length, from a server without workers and with one
thread; then every chunk size, thread count and neighbourhood against it, prefilled by a worker.
Equal means: tokens, text and the log-probabilities of the ten likeliest tokens at each step, in all
their digits. The quick set takes each chunk size once; --full all combinations.
"""

import net_harness as net

CHUNKS = [1, 16, 64, 256, 512]
CONTEXT = 3072
N_PREDICT = 6


def lengths(chunk):
    """Around one chunk, whole chunks, and not; the longest that fits is full_context()."""
    few = {2, 3, chunk - 1, chunk, chunk + 1, 2 * chunk, 4 * chunk, 3 * chunk + 7}
    return sorted(n for n in few if n >= 2)


def n_predict(n):
    return min(N_PREDICT, CONTEXT - n)


class Reference:
    def __init__(self, baton, model):
        self.server = net.Server(baton, model, "-c", CONTEXT, "-np", 1, "-t", 1)
        self.facts = {}

    def __call__(self, n):
        if n not in self.facts:
            answer = self.server.complete(net.prompt(n, 1), n_predict=n_predict(n), where="local")
            net.check(answer["prefill"]["place"] == "local", f"reference: {answer['prefill']}")
            self.facts[n] = net.facts(answer)
        return self.facts[n]


def compare(server, reference, n, what):
    answer = server.complete(net.prompt(n, 1), n_predict=n_predict(n))
    told = answer["prefill"]
    net.check(told["place"] == "remote" and not told["fallback"], f"{what}: not remote: {told}")
    net.check(told["n_remote"] == n - 1 and told["bytes"] > 0, f"{what}: {told}")
    net.check(net.facts(answer) == reference(n), f"{what}: differs from the local answer")


def full_context(baton, model, worker, reference, options, what):
    """A prompt that leaves room for one token, in a context of that size."""
    server = net.Server(baton, model, "-c", CONTEXT, "-np", 1, *options, workers=[worker.address])
    server.wait_ready()
    compare(server, reference, CONTEXT - 1, f"{what}, all of the context")
    status, answer = server.try_complete(net.prompt(CONTEXT, 1), n_predict=1)
    net.check(status == 400, f"{what}: a prompt that fills the context: {status} {answer}")
    net.end_all(server)


def one_model(baton, name, model, full):
    reference = Reference(baton, model)
    n_compared = 0
    for threads in (1, 2):
        worker = net.Worker(baton, model, "-c", 2 * CONTEXT, "-t", threads)
        for i, chunk in enumerate(CHUNKS):
            if not full and i % 2 != threads - 1:
                continue
            server = net.Server(baton, model, "-c", 2 * CONTEXT, "-np", 4, "-t", threads,
                                "--n-prefill-chunk", chunk, workers=[worker.address])
            server.wait_ready()
            what = f"{name}, chunk {chunk}, {threads} threads"
            for n in lengths(chunk):
                compare(server, reference, n, f"{what}, {n} tokens")
                # The worker has it in its cache now, in part or whole: pushed from there.
                compare(server, reference, n, f"{what}, {n} tokens again")
                n_compared += 2
            with net.Background(server, 3) as others:
                for n in lengths(chunk):
                    if n < CONTEXT // 2:
                        compare(server, reference, n, f"{what}, {n} tokens, three others decode")
                        n_compared += 1
                net.wait_for("the others to decode",
                             lambda: others.n_done >= 3 or others.problem, 120)
            net.end_all(server)
            if full or chunk == 256:
                full_context(baton, model, worker, reference,
                             ["-t", threads, "--n-prefill-chunk", chunk], what)
                n_compared += 1
        net.end_all(worker)
    reference.server.end()
    return n_compared


def main():
    parser = net.parser(__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", help="one model")
    o = parser.parse_args()
    names = [o.only] if o.only else net.FAMILIES + net.HYBRIDS + (net.REAL if o.full else [])
    total = 0
    for name, model in net.models_or_skip(o.models, names).items():
        n = one_model(o.baton, name, model, o.full)
        print(f"{name}: {n} answers equal", flush=True)
        total += n
    return f"{total} answers equal"


if __name__ == "__main__":
    net.run(main)
