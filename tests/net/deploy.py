#!/usr/bin/env python3
"""What deploy/ and docs/deploying.md say is so: names of metrics, options and kernel settings.

A dashboard over a metric that is no more, a unit with an option of last year, a page that names a
command which nobody understands: nobody notices until the day it is needed.
"""
import json
import os
import plistlib
import re
import shutil
import subprocess
import sys

import net_harness as net

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
DEPLOY = os.path.join(ROOT, "deploy")
METRIC = re.compile(r"\b(?:baton_[a-z0-9_]+|llamacpp:[a-z0-9_]+)\b")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def served_series(o, model):
    """{metric: labels} of a server that has had a remote and a local prompt."""
    worker = net.Worker(o.baton, model, "-c", 2048)
    server = net.Server(o.baton, model, "-c", 2048, workers=[worker.address])
    server.wait_ready()
    for where in ("remote", "local"):
        server.complete(net.prompt(100, 1), n_predict=4, where=where)
    _, text = server.request("GET", "/metrics")
    net.end_all(server, worker)
    series = {}
    for name, labels in re.findall(r"^([a-z0-9_:]+)(?:\{(.*)\})? \S+$", text.decode(), re.M):
        series.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return series


def dashboard(o):
    series = served_series(o, net.model_or_skip(o.models))
    told = json.loads(read("deploy", "grafana", "baton.json"))
    expressions = [t["expr"] for p in told["panels"] for t in p["targets"]]
    net.check(len(expressions) > 20, f"{len(expressions)} expressions")
    names = set()
    for expression in expressions + [v["query"] for v in told["templating"]["list"]]:
        found = METRIC.findall(expression) if "(" in expression or "{" in expression else []
        for name in found:
            net.check(name in series, f"'{name}' is not in /metrics: {expression}")
        names.update(found)
        # Prometheus itself adds `instance`.
        for group in re.findall(r"by \(([^)]*)\)", expression):
            for label in re.split(r",\s*", group):
                net.check(all(label in series[n] for n in found), f"no label {label}: {expression}")
    for panel in told["panels"]:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                net.check(any(label in series[n] for n in METRIC.findall(target["expr"])),
                          f"no label {label}: {target}")
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in told["panels"]]
    net.check(len(set(places)) == len(places), "two panels in one place")
    return f"{len(names)} metrics"


def option_names(o, verb):
    text = subprocess.run([o.baton, verb, "--help"], capture_output=True, text=True).stdout
    return set(re.findall(r"\bBATON_[A-Z_]+\b", text)), set(re.findall(r"(?<![\w-])-{1,2}[a-z][\w-]*",
                                                                     text))


def units(o):
    for name, verb in (("baton-worker", "worker"), ("baton-serve", "serve")):
        known, _ = option_names(o, verb)
        text = read("deploy", "systemd", name + ".service")
        text += read("deploy", "systemd", name + ".env")
        used = set(re.findall(r"\bBATON_[A-Z_]+(?==)", text))
        net.check(used and used <= known, f"{name}: {used - known} are no options of {verb}")
        for must in ("Type=notify", "NoNewPrivileges=yes", "ProtectSystem=strict",
                     "CapabilityBoundingSet=\n", "SystemCallFilter=@system-service"):
            net.check(must in text, f"{name}: no {must}")
        if shutil.which("systemd-analyze"):
            path = os.path.join(DEPLOY, "systemd", name + ".service")
            done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True,
                                  text=True)
            lines = [line for line in done.stderr.split("\n") if name in line
                     and "is not executable" not in line]
            net.check(not lines, "\n".join(lines))


def daemon(o):
    with open(os.path.join(DEPLOY, "launchd", "baton.serve.plist"), "rb") as f:
        told = plistlib.load(f)
    known, _ = option_names(o, told["ProgramArguments"][1])
    net.check(set(told["EnvironmentVariables"]) <= known, f"{told['EnvironmentVariables']}")
    net.check(told["Label"] == "baton.serve" and told["RunAtLoad"] is True, f"{told}")


def kernel_settings(o):
    pairs = re.findall(r"^([\w.]+) = (.+)$", read("deploy", "sysctl", "90-baton.conf"), re.M)
    net.check(len(pairs) == 5, f"{pairs}")
    for name, value in pairs:
        path = "/proc/sys/" + name.replace(".", "/")
        # Containers do not have those of net.core.
        if sys.platform == "linux" and (os.path.exists(path) or not name.startswith("net.core")):
            with open(path, encoding="utf-8") as f:
                net.check(len(f.read().split()) == len(value.split()), f"{name} = {value}")


def page(o):
    """Commands of the page are commands, options are options of their verbs, files are there."""
    text = read("docs", "deploying.md")
    for path in re.findall(r"\bdeploy/[\w./-]+\w", text):
        net.check(os.path.exists(os.path.join(ROOT, path)), f"docs/deploying.md: no {path}")
    verbs = {v: option_names(o, v)[1] for v in ("serve", "worker", "run", "doctor", "inspect")}
    n = 0
    for verb, rest in re.findall(r"\bbaton (serve|worker|run|doctor|inspect)\b([^\n`#|]*)", text):
        for option in re.findall(r"(?<=\s)-{1,2}[a-z][\w-]*", rest):
            net.check(option in verbs[verb], f"docs/deploying.md: {option} of baton {verb}")
            n += 1
    anywhere = set().union(*verbs.values())
    for option in re.findall(r"`(--[a-z][\w-]*)[^`]*`", text):
        net.check(option in anywhere, f"docs/deploying.md: {option}")
        n += 1
    for name in re.findall(r"\bBATON_[A-Z_]+\b", text):
        net.check(any(name in option_names(o, v)[0] for v in verbs), f"docs/deploying.md: {name}")
    return f"{n} options"


CASES = [dashboard, units, daemon, kernel_settings, page]


def main():
    o = net.parser(__doc__, CASES).parse_args()
    return net.run_cases(o, CASES, o)


if __name__ == "__main__":
    net.run(main)
