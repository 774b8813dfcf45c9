#!/usr/bin/env python3
"""A prompt prefilled in another process: `make demo`, and with --stay `make up`.

Starts `baton worker` and `baton serve --prefill-device` on free loopback ports, sends one chat
request over HTTP, streams the answer, then says where the prompt was prefilled and whether a run
without any worker gives the same tokens. Only the standard library is used. Exit code 0 means: the
answer came, the prompt was prefilled by the worker, and the tokens are equal.
"""
import argparse
import atexit
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

STORY = """\
In a relay race four runners share one distance. The first explodes out of the blocks and never
thinks of the finish; the last sees only the finish and never the blocks. Between them travels a
hollow tube of aluminium, thirty centimetres long and fifty grams light, and the race is decided
less by the legs than by the hands. Coaches draw two marks on the track, twenty metres apart, and
inside them the tube must change its owner. A careful pair slows down, looks, and hands it over at a
trot: nothing is dropped and two tenths of a second are gone. A good pair does not slow down at all.
The incoming runner shouts, the outgoing one is already at full speed, reaches back without looking,
and feels the tube arrive in an open palm. For three or four strides both hold it. Nobody waits for
anybody; the giving is hidden inside the running.

Engineers who build machines that read and write know the same two marks. Reading a long question is
work for a strong arm: every word can be looked at together with every other, and a machine with many
multipliers does it in one great gulp. Writing the answer is work for a quick hand: one word at a
time, each depending on the one before, and for each of them the whole memory of the machine must be
walked through once. A box that is splendid at the first is often poor at the second. So two boxes
share the distance. The first reads the question, and what it has understood becomes a long row of
numbers, the notes that the second needs before it can write a single word. If the first finishes
reading and only then begins to send its notes, the second stands at the mark and waits. If the notes
leave as they are made, layer after layer, while the reading still goes on, then at the moment when
the last word has been read almost everything has already arrived. The giving is hidden inside the
running.

The club of Seefeld has won the valley's relay eleven times. Its oldest member, Marta Kofler, has
timed every exchange since 1974 with the same steel stopwatch. In her notebook there is a column for
the hundredths lost between the marks. The record is a zero, written in 1998, underlined twice."""

QUESTION = ("Here is a text.\n\n" + STORY +
            "\n\nIn three short sentences: what does the text say about handing over?")

READY_SECONDS = 120

children = []


def say(text=""):
    print(text, flush=True)


def stop_children():
    for child in children:
        if child.poll() is None:
            child.terminate()
    for child in children:
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class Progress:
    """Elapsed seconds after a line, shown once a step takes longer than two seconds."""

    def __init__(self, text):
        self.text = text
        self.done = threading.Event()

    def __enter__(self):
        self.begin = time.monotonic()
        print(f"{self.text} ...", end="", flush=True)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        return self

    def run(self):
        while not self.done.wait(2):
            print(f" {time.monotonic() - self.begin:.0f}s", end="", flush=True)

    def __exit__(self, kind, *_):
        self.done.set()
        self.thread.join()
        print(f" {'failed' if kind else 'done'} ({time.monotonic() - self.begin:.1f} s)", flush=True)


class Failure(Exception):
    pass


def tail_of(path):
    with open(path, errors="replace") as file:
        return "".join(file.readlines()[-15:])


def clean_environment():
    """Without options from variables: a BATON_API_KEY of the user would lock the demo out."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("BATON_", "LLAMA_ARG_"))}


def start(name, command, folder):
    """Starts a process and returns it with the port it says it listens on."""
    path = os.path.join(folder, name + ".log")
    child = subprocess.Popen(command, stdout=open(path, "wb"), stderr=subprocess.STDOUT,
                             stdin=subprocess.DEVNULL, env=clean_environment())
    child.log = path
    children.append(child)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with open(path, errors="replace") as file:
            match = re.search(r"listening on \S*?:(\d+)\b", file.read())
        if match:
            return child, int(match.group(1))
        if child.poll() is not None:
            raise Failure(f"baton {name} ended with {child.returncode}:\n{tail_of(path)}")
        time.sleep(0.05)
    raise Failure(f"baton {name} did not start listening within 120 s:\n{tail_of(path)}")


def request(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    data = json.dumps(body) if body is not None else None
    connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
    return connection.getresponse()


def wait_until_ready(server, port, worker):
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        for child in (server, worker):
            if child.poll() is not None:
                raise Failure(f"a process ended with {child.returncode}:\n{tail_of(child.log)}")
        try:
            if request(port, "GET", "/health").status == 200 and worker_ready(port):
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise Failure(f"server and worker did not find each other within {READY_SECONDS} s:\n"
                  f"{tail_of(server.log)}{tail_of(worker.log)}")


def worker_ready(port):
    response = request(port, "GET", "/v1/prefill")
    if response.status != 200:
        raise Failure(f"GET /v1/prefill: HTTP {response.status} {response.read().decode()}")
    answer = json.load(response)
    return any(w.get("state") == "ready" for w in answer.get("workers", []))


def ask(port, max_tokens):
    """Streams one chat answer; returns its token ids and the last chunk's timings and prefill."""
    response = request(port, "POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": QUESTION}], "stream": True, "temperature": 0,
        "max_tokens": max_tokens, "return_tokens": True, "prefill": {"where": "remote"},
        "stream_options": {"include_usage": True}})
    if response.status != 200:
        raise Failure(f"HTTP {response.status}: {response.read().decode(errors='replace')}")
    tokens, last = [], {}
    for line in response:
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise Failure(f"the server says: {event['error'].get('message')}")
        for choice in event.get("choices", []):
            print(choice.get("delta", {}).get("content") or "", end="", flush=True)
            tokens += choice.get("tokens") or []
        last.update({k: event[k] for k in ("timings", "prefill", "usage") if event.get(k)})
    say()
    return tokens, last


def local_tokens(baton, model, port, n):
    """The same prompt in a process that knows no worker."""
    prompt = json.load(request(port, "POST", "/apply-template", {
        "messages": [{"role": "user", "content": QUESTION}]}))["prompt"]
    ids = json.load(request(port, "POST", "/tokenize", {
        "content": prompt, "add_special": True, "parse_special": True}))["tokens"]
    run = subprocess.run([baton, "run", "-m", model, "--tokens", ",".join(map(str, ids)), "-n",
                          str(n), "--temp", "0", "--json"], capture_output=True, text=True,
                         env=clean_environment())
    if run.returncode != 0:
        raise Failure(f"baton run ended with {run.returncode}: {run.stderr.strip()}")
    return json.loads(run.stdout)["tokens"]


def report(last, equal):
    timings, prefill = last.get("timings", {}), last.get("prefill", {})
    place = prefill.get("place", "?")
    rows = [
        ("prompt prefilled", f"{place}" + (f", by the worker at {prefill['worker']}"
                                           if prefill.get("worker") else "")),
        ("why", prefill.get("reason", "")),
        ("prompt", f"{timings.get('prompt_n', 0)} tokens, "
                   f"{timings.get('prompt_per_second', 0):.0f} tokens/s"),
        ("answer", f"{timings.get('predicted_n', 0)} tokens, "
                   f"{timings.get('predicted_per_second', 0):.0f} tokens/s"),
        ("KV pushed", f"{prefill.get('bytes', 0) / 2**20:.2f} MiB in "
                      f"{prefill.get('transfer_ms', 0):.1f} ms, while the worker computed for "
                      f"{prefill.get('compute_ms', 0):.1f} ms"),
        ("exposed transfer", f"{prefill.get('exposed_ms', 0):.2f} ms"),
        ("purely local run", "gave the same tokens" if equal else "GAVE OTHER TOKENS"),
    ]
    say()
    for name, value in rows:
        say(f"  {name:18} {value}")
    return place


def demo(options, folder):
    listen = "127.0.0.1:0"
    with Progress("starting baton worker"):
        worker, worker_port = start("worker", [options.baton, "worker", "-m", options.model,
                                               "--listen", listen], folder)
    with Progress("starting baton serve"):
        server, port = start("serve", [options.baton, "serve", "-m", options.model, "--host",
                                       "127.0.0.1", "--port", str(options.port), "--prefill-device",
                                       f"127.0.0.1:{worker_port}"], folder)
        wait_until_ready(server, port, worker)
    say(f"\nasking about a text of {len(QUESTION.split())} words:\n")
    tokens, last = ask(port, options.max_tokens)
    with Progress("\nthe same without a worker"):
        local = local_tokens(options.baton, options.model, port, len(tokens))
    equal = local == tokens and len(tokens) > 0
    place = report(last, equal)
    if options.stay:
        stay(port, worker, server)
    if place != "remote":
        raise Failure("the prompt was not prefilled by the worker:\n" + tail_of(server.log))
    if not equal:
        raise Failure("the answer differs from the one without a worker")


def stay(port, worker, server):
    say(f"\nchat at http://127.0.0.1:{port}/   (Ctrl-C stops the server and the worker)")
    while True:
        time.sleep(0.3)
        for name, child in (("worker", worker), ("server", server)):
            if child.poll() is not None and not getattr(child, "told", False):
                say(f"the {name} ended with {child.returncode}:\n{tail_of(child.log)}")
                child.told = True
        if server.poll() is not None:
            raise Failure("the server is gone")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--baton", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--stay", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    atexit.register(stop_children)
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        try:
            demo(options, folder)
        except KeyboardInterrupt:
            say("\nstopping")
            return 0 if options.stay else 130
        except (Failure, OSError, ValueError, KeyError) as problem:
            print(f"\nerror: {problem}", file=sys.stderr)
            return 1
        finally:
            stop_children()
    return 0


if __name__ == "__main__":
    sys.exit(main())
