"""Workers, cases and counters for the tests of this folder, on tests/processes.py.

A test is a program: test.py BATON MODELS [options]; BATON is the program under test, MODELS a
folder with tiny-llama-f32.gguf and so on (tests/golden). Exit code 77: something is missing.
Modules of tools/ (fault_proxy) can be imported once this one is.
"""
import argparse
import functools
import json
import os
import random
import re
import signal
import sys
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(HERE, "..", "..", "tools"), os.path.join(HERE, "..")]

from processes import (FOLDER, SKIP, Failed, HttpServer, Late, Process, check,       # noqa: E402
                       check_time, children, end_all, free_port, resources, wait_for, wait_still)

FAMILIES = ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3"]
HYBRIDS = ["hf-qwen35", "hf-qwen35-r3-i2", "hf-qwen35moe", "hf-qwen3next"]
REAL = ["smollm2-135m-instruct-q4_1", "gemma-3-270m-q4_k_m"]

class CasesFailed(Failed):
    """Each of them has been shown."""


class Skipped(Exception):
    """A case that cannot be run here; says why."""


class Worker(Process):
    def __init__(self, baton, model, *options, listen=None, within=None, cpu=None):
        self.n_told = 0
        listen = listen or (f"{within.host}:0" if within else "127.0.0.1:0")
        super().__init__(baton, "worker", ["-m", model, "--listen", listen, *options], within, cpu)

    def status(self):
        """Its counters, asked for by SIGUSR1."""
        def told():
            lines = re.findall(r"^\{.*\}$", self.text(), re.M)
            return lines if len(lines) > self.n_told else None
        self.signal(signal.SIGUSR1)
        lines = wait_for("the worker's counters", told)
        self.n_told = len(lines)
        return json.loads(lines[-1])

    def wait_idle(self, seconds=20):
        return wait_for("the worker to be idle", lambda: (lambda s: s["in_flight"] == 0 and
                        s["running"] == 0 and s["waiting"] == 0 and s)(self.status()), seconds)


class Server(HttpServer):
    def __init__(self, baton, model, *options, workers=(), within=None, cpu=None):
        more = ["--prefill-device", ";".join(workers)] if workers else []
        super().__init__(baton, "serve", ["-m", model, "--host", "127.0.0.1", "--port", 0,
                                          *options, *more], within, cpu)

    def prefill(self):
        return self.get("/v1/prefill")

    def worker(self, index=0):
        return self.prefill()["workers"][index]

    def wait_ready(self, n=1, seconds=20):
        return wait_for(f"{n} workers to be ready", lambda: self.prefill()["n_ready"] >= n, seconds)

    def reconnect(self, proxy, direction="down", **faults):
        """Cuts the connection through this proxy; returns when the next one is ready. That one has
        these faults, those behind it have none."""
        self.wait_ready()              # else the cut may meet one that comes by itself
        n = self.worker()["n_connects"]
        proxy.direction, proxy.faults = direction, faults
        proxy.cut()
        wait_for("a new connection", lambda: (lambda w: w["n_connects"] > n and
                 w["state"] == "ready")(self.worker()))
        proxy.faults = {}

    def try_complete(self, tokens, n_predict=8, where="remote", policy="fallback", cache=False,
                     n_probs=10, worker_cache=True, **more):
        """HTTP status and answer. The server's cache is not used, so that rows have to come."""
        body = {"prompt": tokens, "n_predict": n_predict, "temperature": 0, "ignore_eos": True,
                "cache_prompt": cache, "n_probs": n_probs, "return_tokens": True,
                "prefill": {"where": where, "policy": policy, "cache": worker_cache}, **more}
        status, data = self.request("POST", "/completion", body)
        return status, json.loads(data)

    def complete(self, tokens, **options):
        status, answer = self.try_complete(tokens, **options)
        check(status == 200, f"{len(tokens)} tokens, {options}: HTTP {status}: {answer}")
        return answer

    def wait_idle(self, seconds=20):
        wait_for("the server to be idle", lambda: self.metric("llamacpp:requests_processing") == 0,
                 seconds)


def facts(answer):
    """What has to be equal wherever the prompt was prefilled: tokens, and log-probabilities in all
    the digits that the server prints."""
    probs = answer.get("completion_probabilities")
    check(probs, "the answer has no probabilities")
    return json.dumps([answer["tokens"], answer["content"], probs])


def prompt(n, seed, vocabulary=500):
    r = random.Random(seed * 1000003 + n)
    return [r.randrange(vocabulary) for _ in range(n)]


class Task(threading.Thread):
    """f(*given), beside others from now on. done() waits; it returns, or fails, as f has."""

    def __init__(self, f, *given):
        super().__init__(daemon=True)
        self.f, self.given, self.told, self.problem = f, given, None, None
        self.start()

    def run(self):
        try:
            self.told = self.f(*self.given)
        except Exception as problem:                # for done()
            self.problem = problem

    def done(self):
        self.join()
        if self.problem:
            raise self.problem
        return self.told


class Background:
    """Clients that keep decoding, and whose answers must not change."""

    def __init__(self, server, n, n_predict=150):
        self.server, self.n_predict = server, n_predict
        self.stop, self.problem, self.n_done = threading.Event(), None, 0
        self.threads = [threading.Thread(target=self._run, args=(i,)) for i in range(n)]

    def _run(self, i):
        first = None
        try:
            while not self.stop.is_set():
                answer = self.server.complete(prompt(9 + i, 77 + i), n_predict=self.n_predict,
                                              where="local", n_probs=1)
                first = first or facts(answer)
                check(facts(answer) == first, f"background client {i} got another answer")
                self.n_done += 1
        except Exception as problem:                # shown by the test
            self.problem = problem

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for t in self.threads:
            t.join()
        if self.problem:
            raise Failed(f"background: {self.problem}")


def find_models(folder, names):
    """Paths of those that are there."""
    found = {}
    for name in names:
        for place in (folder, os.environ.get("BATON_MODELS_DIR") or folder):
            for suffix in ("-f32", ""):
                path = os.path.join(place, name + suffix + ".gguf")
                if os.path.exists(path):
                    found.setdefault(name, path)
    return found


def models_or_skip(folder, names):
    found = find_models(folder, names)
    if not found:
        print(f"skipped: none of {', '.join(names)} in {folder}")
        sys.exit(SKIP)
    return found


def model_or_skip(folder, name="tiny-llama"):
    return models_or_skip(folder, [name])[name]


# ---- programs and their cases ----

def parser(doc, cases=()):
    """For the command line of a test whose module says `doc` of itself, and that runs `cases`."""
    p = argparse.ArgumentParser(description=doc.split("\n")[0])
    p.add_argument("baton")
    p.add_argument("models")
    if cases:
        p.add_argument("--only", choices=[c.__name__ for c in cases], help="one case")
        p.add_argument("--times", type=int, default=1, help="run all so often")
    return p


def again_if_late(case, tries=3):
    """The case, up to so many times while nothing is wrong with it but a time (Late): a wrong
    answer, an error or a complaint of a sanitizer fails at once. What it started is ended."""
    @functools.wraps(case)
    def tried(*given):
        for k in range(1, tries + 1):
            n = len(children)
            try:
                told = case(*given)
            except Late as problem:
                print(f"{case.__name__}: attempt {k} of {tries} is late: {problem}", flush=True)
                if k == tries:
                    raise
                for child in children[n:]:
                    check(child.end() in (0, -signal.SIGKILL),
                          f"{child.command[1]}: exit {child.child.returncode} in a late attempt")
            else:
                if k > 1:
                    print(f"{case.__name__}: attempt {k} of {tries} is in time", flush=True)
                return told
    return tried


def show_logs(children=children):
    """The end of each of the last six."""
    for child in children[-6:]:
        lines = child.text().splitlines()[-12:]
        print(f"--- {' '.join(child.command[1:])}\n" + "\n".join(lines), flush=True)


def run_cases(o, cases, *given):
    """Runs each case, a function of `given`, as the command line o wants it, and prints a line of
    what it says. One that fails is shown with its logs and does not keep others from running."""
    chosen = [c for c in cases if o.only in (None, c.__name__)] * o.times
    failed = []
    for case in chosen:
        begin, n, troubled = time.monotonic(), len(children), []
        try:
            told = case(*given) or "ok"
        except Skipped as why:
            told = f"skipped: {why}"
        except Exception as problem:
            told, troubled = f"FAILED: {problem}", children[n:]
            failed.append(case.__name__)
            if not isinstance(problem, Failed):
                traceback.print_exc()
        print(f"{case.__name__}: {told} ({time.monotonic() - begin:.1f} s)", flush=True)
        show_logs(troubled)
        for child in troubled:
            child.end(hard=True)
    if failed:
        raise CasesFailed(f"{len(failed)} of {len(chosen)} cases: {', '.join(failed)}")
    return f"{len(chosen)} cases"


def run(main):
    """Runs main() and ends the program; shows the end of all logs when it fails."""
    begin = time.monotonic()
    try:
        print(f"{main() or 'ok'} ({time.monotonic() - begin:.1f} s)", flush=True)
    except Failed as problem:
        print(f"FAILED: {problem}", flush=True)
        show_logs([] if isinstance(problem, CasesFailed) else children)
        sys.exit(1)
    sys.exit(0)
