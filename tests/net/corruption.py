#!/usr/bin/env python3
"""One damaged byte, anywhere, and a cut, anywhere: never in an answer, always counted.

A proxy that understands frames damages one byte of one frame: of each kind that an exchange has, in
the header, the body's beginning, middle and end. The damage is noticed by the side that receives it,
counted there, and the answer is the one without a worker. With a key the bytes are TLS's, and so is
the notice. Then the link is cut at each sixteenth of what the worker sends: a stream must not show a
token that was made from less than what was committed, and under policy `fail` must not show any.

--all damages every byte of every kind of frame, of a body of rows two thousand (half an hour).
"""
import json
import os
import random
import struct
import threading

import net_harness as net
import soak
import wire
import fault_proxy

N_TOKENS = 200
N_TOKENS_CHUNKS = 700      # more than one piece, however fast the worker is
N_PREDICT = 6
HEADER = 32
ALL_MAX = 2000


class Aim:
    """What is to be damaged: byte `offset` of the next frame of that kind; -1: the last."""

    def __init__(self, kind=None, offset=0, mask=1):
        self.kind, self.offset, self.mask = kind, offset, mask
        self.hit = threading.Event()
        self.sizes = {}         # of whole frames of each kind, the smallest seen


class FrameEdits(fault_proxy.Edits):
    """Holds bytes back until a header is whole, so that it knows what it damages."""

    aim = Aim()

    def __init__(self, faults):
        super().__init__(faults)
        self.held, self.left, self.target = b"", 0, None

    def feed(self, data):
        self.held += data
        out = []
        while self.held:
            if self.left == 0:
                if len(self.held) < HEADER:
                    break
                self.left = self.size = self.begin(self.held)
            n = min(len(self.held), self.left)
            piece = bytearray(self.held[:n])
            at = self.size - self.left
            if self.target is not None and at <= self.target < at + n:
                piece[self.target - at] ^= FrameEdits.aim.mask
                FrameEdits.aim.hit.set()
                self.target = None
            self.held, self.left = self.held[n:], self.left - n
            pieces, stop, rest = super().feed(bytes(piece))
            out += pieces
            if stop:
                return out, stop, rest + self.held
        return out, None, b""

    def begin(self, data):
        """Size of the frame that begins here; decides whether it is the one."""
        _, kind, _, _, length, _, _ = struct.unpack_from("<IHHIIQI", data)
        aim, size = FrameEdits.aim, HEADER + length
        name = wire.NAMES.get(kind, str(kind))
        aim.sizes[name] = min(aim.sizes.get(name, size), size)
        if aim.kind == name and not aim.hit.is_set() and self.target is None:
            offset = aim.offset if aim.offset >= 0 else size + aim.offset
            self.target = offset if offset < size else None
        return size


class Bench:
    def __init__(self, o, *options):
        self.model = net.model_or_skip(o.models, o.model)
        self.worker = net.Worker(o.baton, self.model, "-c", 8192, "-t", 1, "--n-prefill-chunk", 32,
                                 *options)
        self.proxy = fault_proxy.FaultProxy(self.worker.address)
        self.server = net.Server(o.baton, self.model, "-c", 8192, "-np", 2, "-t", 1,
                                 "--n-prefill-chunk", 32, *options, workers=[self.proxy.address])
        self.server.wait_ready()
        self.serial = 0

    def prompt(self, n=N_TOKENS):
        """A new one each time, in nobody's cache, and its answer without a worker."""
        self.serial += 1
        tokens = net.prompt(n, self.serial)
        return tokens, net.facts(self.ask(tokens, "local"))

    def ask(self, tokens, where="remote"):
        return self.server.complete(tokens, n_predict=N_PREDICT, where=where, n_probs=3)

    def corrupt(self):
        return self.server.worker()["n_corrupt"], self.worker.status()["corrupt"]

    def settled(self):
        """Ready again, and nothing held for what has failed."""
        self.server.wait_ready()
        state = self.server.worker()
        net.check(state["n_in_flight"] == 0 and state["n_waiting"] == 0, f"{state}")

    def clean(self):
        self.settled()
        self.worker.wait_idle()
        self.server.wait_idle()
        net.wait_for("pages", lambda: self.server.metric("baton_kv_pages_used") ==
                     self.server.metric("baton_kv_pages_cached"))
        net.wait_for("pages there", lambda: (lambda w: w["kv_pages_used"] == w["kv_pages_cached"])(
            self.worker.status()))

    def close(self):
        self.proxy.close()
        net.end_all(self.server, self.worker)


def one_flip(b, kind, offset, mask):
    tokens, want = b.prompt(N_TOKENS_CHUNKS if kind == "CHUNK" else N_TOKENS)
    before = b.corrupt()
    aim = FrameEdits.aim = Aim(kind, offset, mask)
    what = f"byte {offset} of {kind}, mask {mask}"
    if kind in ("HELLO", "WELCOME"):
        b.proxy.cut()           # the next greeting meets it, and the prompt what comes of that
    answer = b.ask(tokens)
    told = answer["prefill"]
    net.check(net.facts(answer) == want, f"{what}: another answer: {told}")
    net.check(aim.hit.wait(3), f"{what}: no such frame in 3 s")
    net.wait_for(f"{what}: to be counted; before {before}",
                 lambda: sum(b.corrupt()) > sum(before), 5)
    if kind in ("PREFILL", "TOKENS", "ROWS", "CHUNK", "COMMIT"):
        net.check(told["place"] != "remote" and told["fallback"] and told["reason"],
                  f"{what}: {told}")
    FrameEdits.aim = Aim()
    b.settled()


def flips(o):
    """A calm exchange shows the sizes, then every kind is damaged."""
    calm, fault_proxy.Edits = fault_proxy.Edits, FrameEdits
    FrameEdits.aim = Aim()
    b = Bench(o)
    for n in (N_TOKENS_CHUNKS, N_TOKENS, N_TOKENS):
        tokens, want = b.prompt(n)
        answer = b.ask(tokens)
        net.check(net.facts(answer) == want and answer["prefill"]["place"] == "remote", "calm")
    kinds = ["HELLO", "WELCOME", "PREFILL", "TOKENS", "ROWS", "CHUNK", "COMMIT", "PING", "PONG"]
    net.wait_for("a frame of each kind", lambda: all(k in FrameEdits.aim.sizes for k in kinds), 5)
    sizes = dict(FrameEdits.aim.sizes)
    n = 0
    for kind in kinds:
        size, dice = sizes[kind], random.Random(o.seed + len(kind))
        some = [0, 5, 6, 9, 13, 17, 25, 30, HEADER, (HEADER + size) // 2, -1]
        beats = kind in ("PING", "PONG")        # each costs up to half a second of waiting
        rows = range(HEADER, size) if size < ALL_MAX else dice.sample(range(HEADER, size), ALL_MAX)
        offsets = [*range(HEADER), *rows] if o.all else some[::4] if beats else some
        for offset in offsets:
            if offset < size:
                one_flip(b, kind, offset, 1 << dice.randrange(8))
                n += 1
        b.clean()
    b.close()
    fault_proxy.Edits = calm
    return f"{n} bytes damaged in {len(kinds)} kinds of frames"


def flips_of_tls(o):
    """Bytes behind the handshake (some 500), in either direction, that a calm exchange has too."""
    path = os.path.join(net.FOLDER, "corruption-key")
    with open(path, "wb") as f:
        f.write(os.urandom(32))
    os.chmod(path, 0o600)
    b = Bench(o, "--key-file", path)
    tokens, want = b.prompt()
    size = {"up": 1 << 30, "down": 1 << 30}
    for _ in range(3):
        b.server.reconnect(b.proxy)
        b.ask(tokens)
        seen = b.proxy.status()["connections"][-1]
        size = {way: min(n, seen[way]) for way, n in size.items()}
    dice, n = random.Random(o.seed), 60 if o.all else 12
    for i in range(n):
        before = sum(b.corrupt())
        way = ["down", "up"][i % 3 == 2]
        at = dice.randrange(1000, size[way])
        b.server.reconnect(b.proxy, way, flip=[(at, 1 << dice.randrange(8))])
        answer = b.ask(tokens)
        net.check(net.facts(answer) == want, f"another answer: {answer['prefill']}")
        net.wait_for(f"byte {at} {way} of {size} to be counted", lambda: sum(b.corrupt()) > before)
        b.server.wait_ready()
    b.clean()
    b.close()
    return f"{n} bytes damaged under TLS, of {size}"


def stream(b, tokens, policy):
    body = {"prompt": tokens, "n_predict": N_PREDICT, "temperature": 0, "ignore_eos": True,
            "cache_prompt": False, "n_probs": 3, "return_tokens": True, "stream": True,
            "prefill": {"where": "remote", "policy": policy}}
    return soak.ask(b.server.port, body, None)


def cuts(o):
    """At each sixteenth of what the worker sends; what is sent before a prompt is left whole."""
    b = Bench(o)
    tokens, want = b.prompt()
    before = b.proxy.status()["connections"][-1]["down"]
    b.ask(tokens)
    size = b.proxy.status()["connections"][-1]["down"] - before
    places = []
    for i in range(16 * (4 if o.all else 1)):
        for policy in ("fallback", "fail"):
            tokens, want = b.prompt()
            b.server.reconnect(b.proxy, cut=450 + size * (i % 16) // 16 + i)
            status, told = stream(b, tokens, policy)
            if policy == "fail":
                net.check(status in (502, 503, 504) and "tokens" not in told, f"cut {i}: {told}")
            else:
                net.check(status == 200 and told["tokens"] == json.loads(want)[0] and
                          told["completion_probabilities"] == json.loads(want)[2],
                          f"cut {i}: {told}")
                places.append(told["prefill"]["n_remote"])
                net.check(told["prefill"]["fallback"], f"cut {i}: {told['prefill']}")
            b.settled()
        b.clean()
    b.close()
    net.check(places[0] == 0 and max(places) > 0, f"{places}")
    return f"cut {len(places)} times each way, tokens kept {places[:16]}"


CASES = [flips, cuts, flips_of_tls]


def main():
    parser = net.parser(__doc__, CASES)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="tiny-llama")
    o = parser.parse_args()
    return net.run_cases(o, CASES, o)


if __name__ == "__main__":
    net.run(main)
