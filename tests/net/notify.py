#!/usr/bin/env python3
"""What a service manager is told: READY only when it is so, STOPPING when it ends.

A socket of the test stands for systemd's, once with a path and once with an abstract name; a name
that leads nowhere, or is nonsense, changes nothing.
"""
import argparse
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import net_harness as net


class Manager:
    """Collects what it is told."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + name[1:] if name[0] == "@" else name)
        self.name, self.told = name, []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            self.told.append(self.socket.recv(4096).decode())

    def lines(self):
        return [line for text in list(self.told) for line in text.split("\n")]

    def wait(self, line):
        net.wait_for(f"'{line}'; so far {self.told}", lambda: line in self.lines(), 30)


def with_manager(name, start):
    os.environ["NOTIFY_SOCKET"] = name
    try:
        return start()
    finally:
        del os.environ["NOTIFY_SOCKET"]


def check_order(manager):
    lines = manager.lines()
    net.check(lines.count("READY=1") == 1 and lines.count("STOPPING=1") == 1, f"{manager.told}")
    net.check(lines.index("READY=1") < lines.index("STOPPING=1"), f"{manager.told}")
    net.check(any(x.startswith("STATUS=") for x in lines), f"{manager.told}")


def one_worker(o, model, name):
    manager = Manager(name)
    worker = with_manager(name, lambda: net.Worker(o.baton, model, "-c", 512))
    manager.wait("READY=1")
    net.check(f"STATUS=listening on {worker.address}" in manager.lines(), f"{manager.told}")
    with socket.create_connection(("127.0.0.1", worker.port)):
        net.check("STOPPING=1" not in manager.lines(), f"{manager.told}")
    worker.signal(signal.SIGTERM)
    manager.wait("STOPPING=1")
    net.check(worker.end() == 0, "worker")
    check_order(manager)


def one_server(o, model, name):
    """It listens before the model is loaded, and is ready only after that."""
    manager = Manager(name)
    server = with_manager(name, lambda: net.Server(o.baton, model, "-c", 512))
    manager.wait("READY=1")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/health")
    net.check(connection.getresponse().status == 200, "ready, but /health is not 200")
    connection.close()
    server.signal(signal.SIGTERM)
    manager.wait("STOPPING=1")
    net.check(server.end() == 0, "server")
    check_order(manager)


def while_loading(o, model, verb, options):
    """SIGTERM as soon as it says that it loads: STOPPING, no READY after it, exit 0 at once. Loading
    may be over first; once in twenty it has to be caught."""
    caught = False
    for i in range(20):
        name = os.path.join(net._folder, f"notify-loading-{verb}-{i}")
        manager = Manager(name)
        environment = dict(os.environ, NOTIFY_SOCKET=name)
        child = subprocess.Popen([o.baton, verb, "-m", model, "-t", "1", *options],
                                 env=environment, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True)
        manager.wait("STATUS=loading the model")
        begin = time.monotonic()
        child.send_signal(signal.SIGTERM)
        said = child.communicate(timeout=30)[0]
        seconds = time.monotonic() - begin
        net.check(child.returncode == 0, f"{verb}: exit {child.returncode}: {said}")
        manager.wait("STOPPING=1")
        lines = manager.lines()
        net.check(lines.count("STOPPING=1") == 1 and
                  "READY=1" not in lines[lines.index("STOPPING=1"):], f"{manager.told}")
        net.check("Sanitizer" not in said, said)
        if "READY=1" not in lines:
            net.check("still being loaded" in said, said)
            caught = True
            break
    net.check(caught, f"{verb}: never met while loading; the last time took {seconds:.3f} s")
    return seconds


def nobody_listens(o, model):
    for name in ("/nowhere/socket", "@baton-nobody-there", "nonsense", "@", "/" + "x" * 200):
        worker = with_manager(name, lambda: net.Worker(o.baton, model, "-c", 512))
        net.check(worker.end() == 0, f"NOTIFY_SOCKET={name}: exit {worker.child.returncode}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("baton")
    parser.add_argument("models")
    o = parser.parse_args()
    model = net.models_or_skip(o.models, ["tiny-llama"])["tiny-llama"]
    path = os.path.join(net._folder, "notify")
    one_worker(o, model, path + "-worker")
    one_server(o, model, path + "-server")
    if sys.platform == "linux":
        one_worker(o, model, f"@baton-test-worker-{os.getpid()}")
        one_server(o, model, f"@baton-test-server-{os.getpid()}")
    seconds = [while_loading(o, model, *way) for way in
               (("serve", ["--port", "0"]), ("worker", ["--listen", "127.0.0.1:0"]))]
    nobody_listens(o, model)
    return f"ended {1000 * max(seconds):.0f} ms after SIGTERM while loading"


if __name__ == "__main__":
    sys.exit(net.run(main))
