#!/usr/bin/env python3
"""What a service manager is told: READY only when it is so, STOPPING when it ends.

A socket of the test stands for systemd's, once with a path and once with an abstract name; a name
that leads nowhere, or is nonsense, changes nothing.
"""
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
        self.name, self.told, self.news = name, [], threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            text = self.socket.recv(4096).decode()
            with self.news:
                self.told.append(text)
                self.news.notify_all()

    def lines(self):
        return [line for text in list(self.told) for line in text.split("\n")]

    def wait(self, line):
        """Returns at once when it comes: a model may be loaded in a few milliseconds."""
        with self.news:
            came = self.news.wait_for(lambda: line in self.lines(), 30)
        net.check(came, f"waited 30 s for '{line}'; so far {self.told}")


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


def one_worker(baton, model, name):
    manager = Manager(name)
    worker = with_manager(name, lambda: net.Worker(baton, model, "-c", 512))
    manager.wait("READY=1")
    net.check(f"STATUS=listening on {worker.address}" in manager.lines(), f"{manager.told}")
    with socket.create_connection(("127.0.0.1", worker.port)):
        net.check("STOPPING=1" not in manager.lines(), f"{manager.told}")
    worker.signal(signal.SIGTERM)
    manager.wait("STOPPING=1")
    net.end_all(worker)
    check_order(manager)


def one_server(baton, model, name):
    """It listens before the model is loaded, and is ready only after that."""
    manager = Manager(name)
    server = with_manager(name, lambda: net.Server(baton, model, "-c", 512))
    manager.wait("READY=1")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/health")
    net.check(connection.getresponse().status == 200, "ready, but /health is not 200")
    connection.close()
    server.signal(signal.SIGTERM)
    manager.wait("STOPPING=1")
    net.end_all(server)
    check_order(manager)


def while_loading(baton, model, verb, *options):
    """SIGTERM as soon as it says that it loads: STOPPING, no READY after it, exit 0 at once. Loading
    may be over first; once in twenty it has to be caught."""
    caught = False
    for i in range(20):
        name = os.path.join(net.FOLDER, f"notify-loading-{verb}-{i}")
        manager = Manager(name)
        environment = dict(os.environ, NOTIFY_SOCKET=name)
        child = subprocess.Popen([baton, verb, "-m", model, "-t", "1", *options],
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
            net.check("still being loaded" in said or "loading the model" in said, said)
            caught = True
            break
    net.check(caught, f"{verb}: never met while loading; the last time took {seconds:.3f} s")
    return seconds


def names(kind):
    """A path, and where there is such a thing an abstract name."""
    yield os.path.join(net.FOLDER, "notify-" + kind)
    if sys.platform == "linux":
        yield f"@baton-test-{kind}-{os.getpid()}"


def workers(baton, model):
    for name in names("worker"):
        one_worker(baton, model, name)


def servers(baton, model):
    for name in names("server"):
        one_server(baton, model, name)


def stopped_while_loading(baton, model):
    seconds = (while_loading(baton, model, "serve", "--port", "0"),
               while_loading(baton, model, "worker", "--listen", "127.0.0.1:0"))
    return f"ended {1000 * max(seconds):.0f} ms after SIGTERM"


def nobody_listens(baton, model):
    for name in ("/nowhere/socket", "@baton-nobody-there", "nonsense", "@", "/" + "x" * 200):
        worker = with_manager(name, lambda: net.Worker(baton, model, "-c", 512))
        net.check(worker.end() == 0, f"NOTIFY_SOCKET={name}: exit {worker.child.returncode}")


CASES = [workers, servers, stopped_while_loading, nobody_listens]


def main():
    o = net.parser(__doc__, CASES).parse_args()
    return net.run_cases(o, CASES, o.baton, net.model_or_skip(o.models))


if __name__ == "__main__":
    net.run(main)
