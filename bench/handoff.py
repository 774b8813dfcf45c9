#!/usr/bin/env python3
"""How much of a handoff hides behind computing, on cables of known speed and length.

    baton bench handoff [options]        (or bench/handoff.py --baton build/release/baton)

Starts a worker and a server in two network namespaces (Linux, root), each with a core of its own,
joined by a cable whose rate is shaped so that the load ratio r = prefill rate x bytes of a token /
link is what was asked for; the round trip comes from tools/fault_proxy.py. Parts:

  table    time to the first token for prompts x r x round trips, pushed and, beside it, with all
           sent at the end, against the floor that the arithmetic of docs/cli.md allows
  goodput  what a push carries over a shaped cable, against iperf3 on the same cable
  cpu      CPU seconds of worker and server per GB pushed, plain and TLS
  gap      time between the tokens of four sequences while a long prompt is prefilled elsewhere

Writes handoff.md, handoff.json and handoff.svg into --out; models that it makes are gone at the end.
Exit code 0; 1 with "error: ..." when a part failed, or where there can be no namespaces; 2 for wrong
options. Without --full a quick subset.
With --rate N the worker computes N tokens a second and no faster, so that figures do not hang on
this machine's speed; that is how the model with recurrent layers is run.
"""
import argparse
import datetime
import http.client
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "net"))

import net_harness as net                                                    # noqa: E402
import others_decode                                                         # noqa: E402
import rig                                                                   # noqa: E402
import shaped                                                                # noqa: E402
import handoff_report                                                        # noqa: E402

CHUNK = 512
PARTS = ["table", "hybrid", "goodput", "cpu", "gap"]


# ---- a pair that is measured ----

class Measured:
    """A pair on a cable through a proxy, and what its model costs without a limit."""

    def __init__(self, r, o, name, model, rate):
        self.rig, self.o, self.name, self.rate = r, o, name, rate
        self.pair = shaped.Pair(r, o.baton, model, rate=rate, delay_ms=0,
                                context=max(o.prompts) + 256)
        self.cost = {}

    def reference(self, n):
        """Computing, last token and bytes of a prompt of n tokens where the link costs nothing."""
        if n not in self.cost:
            self.rig.set_rate(None)
            self.pair.proxy.tell("delay 0")
            told = [self.pair.ask(n) for _ in range(self.repeat(n) + 1)][1:]
            self.cost[n] = {
                "prefill_ms": statistics.median(t["compute_ms"] for t in told),
                "last_ms": statistics.median(t["first_token_ms"] - t["total_ms"] for t in told),
                "bytes": told[0]["bytes"]}
        return self.cost[n]

    def token_bytes(self):
        """Bytes that one token adds, the state of recurrent layers left out."""
        few, many = min(self.o.prompts), max(self.o.prompts)
        a, b = self.reference(few), self.reference(many)
        return (b["bytes"] - a["bytes"]) / (many - few) if many > few else a["bytes"] / (few - 1)

    def repeat(self, n):
        return self.o.repeat if n <= 2048 else max(1, self.o.repeat // 2)

    def floor_ms(self, n, ratio, trip_ms, prefill_ms, last_ms):
        """Nobody can be earlier: there and back, then computing or, from the first layer on, the
        link, whichever takes longer, then the last token."""
        c = self.reference(n)
        goodput = self.goodput(n, ratio)
        n_chunks = (n - 1 + CHUNK - 1) // CHUNK
        first_layer = prefill_ms / n_chunks / self.n_layers()
        return trip_ms + max(prefill_ms, first_layer + c["bytes"] / goodput * 1000) + last_ms

    def goodput(self, n, ratio):
        c = self.reference(n)
        return (n - 1) / c["prefill_ms"] * 1000 * self.token_bytes() / ratio

    def n_layers(self):
        if not hasattr(self, "layers"):
            said = subprocess.run([self.o.baton, "inspect", "--json", self.pair.model], check=True,
                                  capture_output=True, text=True)
            self.layers = json.loads(said.stdout)["layers"]["count"]
        return self.layers

    def cell(self, order, n, ratio, trip_ms):
        goodput = self.goodput(n, ratio)
        self.pair.goodput = goodput
        self.rig.set_rate(goodput * 8 / 1e6 / shaped.PAYLOAD)
        self.pair.proxy.tell(f"delay {trip_ms / 2}")
        if order == "push":
            self.pair.ask(min(self.o.prompts))      # the cable is another one: cuts hang on it
        told = [self.pair.ask(n) for _ in range(self.repeat(n))]
        told.sort(key=lambda t: t["first_token_ms"])
        middle = told[len(told) // 2]
        alone = middle["bytes"] / goodput * 1000
        usual = self.reference(n)
        row = {"model": self.name, "order": order, "tokens": n - 1, "ratio": ratio,
               "round_trip_ms": trip_ms, "link_mbit": goodput * 8 / 1e6,
               "first_token_ms": middle["first_token_ms"],
               "spread_ms": told[-1]["first_token_ms"] - told[0]["first_token_ms"],
               "n": len(told),
               "floor_ms": self.floor_ms(n, ratio, trip_ms, usual["prefill_ms"],
                                         usual["last_ms"]),
               # With the times that computing and the last token took in this very prompt: what is
               # left is handoff.
               "own_floor_ms": self.floor_ms(n, ratio, trip_ms, middle["compute_ms"],
                                             middle["first_token_ms"] - middle["total_ms"]),
               "compute_ms": middle["compute_ms"], "transfer_ms": middle["transfer_ms"],
               "alone_ms": alone, "exposed_ms": middle["exposed_ms"],
               "exposed_share": middle["exposed_ms"] / alone, "bytes": middle["bytes"]}
        row["over_floor"] = row["first_token_ms"] / row["floor_ms"] - 1
        row["over_own_floor"] = row["first_token_ms"] / row["own_floor_ms"] - 1
        print(f"{self.name:12} {order:5} {n - 1:5} tokens r {ratio:<4g} round trip {trip_ms:4g} "
              f"ms: first token {row['first_token_ms']:8.1f} ms, floor {row['floor_ms']:8.1f} "
              f"({100 * row['over_floor']:+5.1f} %, by its own computing "
              f"{100 * row['over_own_floor']:+5.1f} %), exposed "
              f"{100 * row['exposed_share']:5.1f} % of the bytes' {alone:.0f} ms", flush=True)
        return row


def table(r, o, name, model, rate):
    rows = []
    m = Measured(r, o, name, model, rate)
    with m.pair:
        for n in o.prompts:
            c = m.reference(n)
            print(f"{name:12} {n - 1} tokens without a limit: {c['prefill_ms']:.1f} ms "
                  f"({(n - 1) / c['prefill_ms'] * 1000:.0f} tokens/s), {c['bytes']} bytes, last "
                  f"token {c['last_ms']:.1f} ms", flush=True)
        for order in ("push", "bulk"):
            m.pair.start_server(order)
            middle = o.round_trips[len(o.round_trips) // 2]
            for trip in o.round_trips if order == "push" else [middle]:
                for n in o.prompts:
                    for ratio in o.ratios:
                        rows.append(m.cell(order, n, ratio, trip))
    return rows


# ---- goodput and CPU ----

def iperf(r, seconds):
    """Payload bytes a second from the worker's side to the server's."""
    server = r.server.popen(["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
    try:
        net.wait_for("iperf3 to listen", lambda: ":5201" in r.server.run("ss", "-ltn"), 10)
        said = r.worker.run("iperf3", "-c", r.server.host, "-t", str(seconds), "-O", "1", "-J")
    finally:
        server.kill()
        server.wait()
    return json.loads(said)["end"]["sum_received"]["bits_per_second"] / 8


def pushed_again(pair, tokens):
    """A prompt that the worker has in its cache: nothing is computed, all is sent at once."""
    told = pair.server.complete(tokens, n_predict=1)["prefill"]
    net.check(told["place"] == "remote", f"{told}")
    return told


def goodput(r, o, model):
    n = 8193 if o.full else 4097
    rows = []
    with shaped.Pair(r, o.baton, model, rate=0, context=n + 256) as p:
        tokens = net.prompt(n, 77)
        pushed_again(p, tokens)
        for mbit in (100, 1000) if not o.full else (100, 1000, 2500):
            r.set_rate(mbit)
            pushed_again(p, tokens)
            told = sorted((pushed_again(p, tokens) for _ in range(3)),
                          key=lambda t: t["total_ms"])[1]
            ours = told["bytes"] / told["total_ms"] * 1000
            theirs = iperf(r, 4)
            rows.append({"link_mbit": mbit, "bytes": told["bytes"], "push_bytes_per_s": ours,
                         "iperf3_bytes_per_s": theirs, "share": ours / theirs})
            print(f"goodput on {mbit} Mbit/s: push {ours * 8 / 1e6:.1f}, iperf3 "
                  f"{theirs * 8 / 1e6:.1f} Mbit/s: {100 * ours / theirs:.1f} %", flush=True)
        r.set_rate(None)
    return rows


def cpu(r, o, model):
    """CPU seconds per GB of rows, from the worker's cache over a cable without a limit."""
    n, times = 4097, 16 if o.full else 6
    rows = []
    with tempfile.NamedTemporaryFile("w", suffix=".key") as key:
        key.write("0123456789abcdef" * 4 + "\n")
        key.flush()
        for kind in ("plain", "TLS"):
            options = ("--key-file", key.name) if kind == "TLS" else ()
            with shaped.Pair(r, o.baton, model, rate=0, context=n + 256, worker=options,
                             server=options) as p:
                tokens = net.prompt(n, 78)
                for _ in range(2):
                    pushed_again(p, tokens)
                pids = p.worker.child.pid, p.server.child.pid
                before = [rig.cpu_seconds(pid) for pid in pids]
                told = [pushed_again(p, tokens) for _ in range(times)]
                spent = [rig.cpu_seconds(pid) - b for pid, b in zip(pids, before)]
            n_bytes = sum(t["bytes"] for t in told)
            row = {"kind": kind, "bytes": n_bytes, "worker_s_per_gb": spent[0] / n_bytes * 1e9,
                   "server_s_per_gb": spent[1] / n_bytes * 1e9,
                   "bytes_per_s": n_bytes / sum(t["total_ms"] for t in told) * 1000}
            rows.append(row)
            print(f"cpu, {kind}: worker {row['worker_s_per_gb']:.2f} s, server "
                  f"{row['server_s_per_gb']:.2f} s per GB, at {row['bytes_per_s'] / 1e6:.0f} MB/s",
                  flush=True)
    return rows


# ---- other sequences ----

def gap(r, o, model):
    n = 8192 if o.full else 2048
    rows = []
    with shaped.Pair(r, o.baton, model, rate=0, context=n + 2000) as p:
        clients = others_decode.Clients(p.server)
        for _ in range(3 if o.full else 1):
            rows.append(others_decode.compare(p, clients, n))
            print(rows[-1]["words"], flush=True)
        clients.end()
    return rows


# ---- a pair that is there already ----

def said(answer):
    """The sentence of an error's answer, or all of it."""
    error = answer.get("error") if isinstance(answer, dict) else None
    return error.get("message", answer) if isinstance(error, dict) else answer


class Given:
    """A server somewhere, with workers of its own: whatever machines and link there are."""

    def __init__(self, address, api_key):
        self.host, self.port = address.rsplit(":", 1)
        self.headers = {"Content-Type": "application/json"}
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.host.strip("[]"), int(self.port), timeout=3600)
        try:
            connection.request(method, path, json.dumps(body) if body else None, self.headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException) as problem:
            raise net.Failed(f"http://{self.host}:{self.port}{path}: "
                             f"{getattr(problem, 'strerror', None) or problem}") from problem
        except ValueError as problem:
            raise net.Failed(f"http://{self.host}:{self.port}{path}: what answers there is no "
                             "baton serve") from problem
        finally:
            connection.close()
        net.check(response.status == 200, f"http://{self.host}:{self.port}{path}: "
                  f"{response.status}: {said(answer)}")
        return answer

    def ask(self, n, seed, where):
        answer = self.request("POST", "/completion", {
            "prompt": net.prompt(n, seed), "n_predict": 1, "temperature": 0, "cache_prompt": False,
            "prefill": {"where": where}})
        return dict(answer["prefill"], first_token_ms=answer["timings"]["first_token_ms"])


def given(o):
    """Each prompt there and here; the link is what it is."""
    server = Given(o.server, o.api_key)
    workers = server.request("GET", "/v1/prefill").get("workers") or []
    why = "; ".join(f"{w['address']} is {w['state']}" + (f": {w['reason']}" if w["reason"] else "")
                    for w in workers) or "it has none"
    net.check(any(w["state"] == "ready" for w in workers), f"no worker of {o.server} is ready: "
              f"{why}")
    rows, seed = [], int(time.time())
    for n in o.prompts:
        for _ in range(2):
            server.ask(n, seed := seed + 1, "remote")       # teaches both sides
        there = [server.ask(n, seed := seed + 1, "remote") for _ in range(o.repeat)]
        bad = [t for t in there if t["place"] != "remote"]
        net.check(not bad, f"a prompt of {n - 1} tokens was not prefilled there: "
                  f"{bad and bad[0]['reason']}")
        middle = sorted(there, key=lambda t: t["first_token_ms"])[len(there) // 2]
        here = server.ask(n, seed := seed + 1, "local")
        workers = server.request("GET", "/v1/prefill")["workers"]
        link = max(w["goodput_bytes_per_second"] for w in workers)
        row = {"tokens": n - 1, "worker": middle["worker"],
               "first_token_ms": middle["first_token_ms"],
               "local_ms": here["first_token_ms"], "compute_ms": middle["compute_ms"],
               "bytes": middle["bytes"], "exposed_ms": middle["exposed_ms"],
               "overlap_percent": middle["overlap_percent"], "link_bytes_per_s": link,
               "wire_type": middle["wire_type"]}
        row["ratio"] = middle["bytes"] / middle["compute_ms"] * 1000 / link if link else 0
        rows.append(row)
        print(f"{n - 1:5} tokens: first token {row['first_token_ms']:.1f} ms, here "
              f"{row['local_ms']:.1f}; computing {row['compute_ms']:.1f}, exposed "
              f"{row['exposed_ms']:.1f} ms, {row['overlap_percent']:.1f} % of sending hidden, r "
              f"{row['ratio']:.2f}", flush=True)
    return rows


# ---- all of it ----

class Parser(argparse.ArgumentParser):
    """Errors in the shape of all verbs."""

    def error(self, message):
        fail(f"{message}; baton bench handoff --help lists the options", 2)


def fail(text, code=1):
    print(f"error: {text}", file=sys.stderr, flush=True)
    sys.exit(code)


def numbers(p, option, text, kind, low, high, n_max=100):
    """Those of a list with commas, each once; None where the option is not given."""
    if text is None:
        return None
    try:
        found = [kind(x) for x in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(low <= x <= high for x in found) or len(found) > n_max:
        what = "whole number" if kind is int else "number"
        what = f"a {what}" if n_max == 1 else f"{what}s, with commas between,"
        p.error(f"{option} is '{text:.60}', but must be {what} from {low:.10g} to {high:.10g}")
    return list(dict.fromkeys(found))


def number(*arguments):
    found = numbers(*arguments, n_max=1)
    return found and found[0]


def parse():
    p = Parser(description=__doc__, prog="baton bench handoff", allow_abbrev=False,
               formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--baton", default=str(ROOT / "build" / "release" / "baton"))
    p.add_argument("-m", "--model", help="dense model (default: SmolLM2 from the cache, else a "
                   "random one that is cheap to compute)")
    p.add_argument("--rate", help="tokens a second of the dense model's worker at most (default: "
                   "as fast as it goes)")
    p.add_argument("--full", action="store_true", help="all of the table")
    p.add_argument("--part", help=f"only these: {', '.join(PARTS)}")
    p.add_argument("--r", help="load ratios")
    p.add_argument("--round-trips", help="ms")
    p.add_argument("--prompts", help="tokens that are handed over")
    p.add_argument("--repeat", help="prompts per cell; half as many of long ones")
    p.add_argument("--server", metavar="HOST:PORT", help="measure this server and its workers as "
                   "they are; nothing is started or shaped")
    p.add_argument("--api-key", default=os.environ.get("BATON_API_KEY"), help="of that server")
    p.add_argument("--out", help="folder (default: bench-handoff-DATE here)")
    o = p.parse_args()
    o.ratios = (numbers(p, "--r", o.r, float, 0.001, 1000) or
                ([0.1, 0.5, 1, 2, 5] if o.full else [0.5, 2]))
    o.round_trips = (numbers(p, "--round-trips", o.round_trips, float, 0, 10000) or
                     ([0.2, 2, 20] if o.full else [2]))
    o.prompts = [n + 1 for n in numbers(p, "--prompts", o.prompts, int, 1, 1000000) or
                 ([512, 2048, 8192] if o.full else [512, 2048])]
    o.repeat = number(p, "--repeat", o.repeat, int, 1, 1000) or (3 if o.full else 1)
    o.rate = number(p, "--rate", o.rate, float, 1, 1e9) or 0
    o.part = PARTS if o.part is None else o.part.split(",")
    if set(o.part) - set(PARTS):
        p.error(f"--part is '{','.join(o.part):.60}', but must be some of {', '.join(PARTS)}, with commas between")
    if o.server is not None:
        host, colon, port = o.server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            p.error(f"--server is '{o.server:.60}', but must be HOST:PORT")
    o.out = pathlib.Path(o.out or f"bench-handoff-{datetime.date.today()}")
    return o


def facts(o):
    version = subprocess.run([o.baton, "--version"], capture_output=True, text=True, check=True)
    return {"program": version.stdout.strip(),
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
                       f"Linux {platform.release()}",
            "load_before": os.getloadavg(), "full": o.full, "rate": o.rate, "dense": "",
            "failed": [], "given": [], "table": [], "goodput": [], "cpu": [], "gap": []}


def finish(found, o):
    found["load_after"] = os.getloadavg()
    plot = handoff_report.write(found, o.out)
    return f"wrote {o.out}/handoff.md and handoff.json{', handoff.svg' if plot else ''}"


def shaped_links(o, found):
    """All parts in turn; what fails leaves the others worth having."""
    many_rows = shaped.make_model(net.FOLDER)      # gone at the end
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    real = net.find_models(str(cache / "baton"), net.REAL[:1])
    dense = o.model or next(iter(real.values()), many_rows)
    found["dense"] = os.path.basename(dense)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)     # and of what is started: less of other loads
    except OSError:
        pass
    parts = {
        "table": lambda r: table(r, o, "dense", dense, o.rate),
        "hybrid": lambda r: table(r, o, "hybrid", shaped.make_model(net.FOLDER, "many-states"),
                                  shaped.RATE),
        "goodput": lambda r: goodput(r, o, many_rows),
        "cpu": lambda r: cpu(r, o, many_rows),
        "gap": lambda r: gap(r, o, dense),
    }
    with rig.Rig(mtu=shaped.MTU) as r:
        for name in o.part:
            try:
                found["table" if name == "hybrid" else name] += parts[name](r)
            except (net.Failed, rig.NotAllowed, OSError) as problem:
                found["failed"].append(f"{name}: {problem}")
                print(f"{name}: not measured", flush=True)
            r.set_rate(None)
            finish(found, o)


def prepare(folder):
    """Makes the folder and writes into it, before an hour is spent. Whether it is a new one."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(folder)) from problem
    return new


def measure(o):
    new = prepare(o.out)
    try:
        found = facts(o)
        if o.server:
            found["given"] = given(o)
        else:
            shaped_links(o, found)
        print(finish(found, o), flush=True)
    finally:
        if new and not any(o.out.iterdir()):        # nothing came of it
            o.out.rmdir()
    net.check(not found["failed"], "; ".join(found["failed"]))


def main():
    o = parse()
    try:
        measure(o)
    except rig.NotAllowed as problem:
        fail(f"no shaped links: {problem}; --server HOST:PORT measures a pair that is there")
    except net.Failed as problem:
        net.show_logs()
        fail(problem)
    except OSError as problem:
        fail(f"'{problem.filename}': {problem.strerror}" if problem.filename else problem)
    except subprocess.SubprocessError as problem:
        fail(problem)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
