"""Processes of the real program, HTTP to them, and waiting: what tests/e2e and tests/net stand on.

Standard library only. A process writes to a file in FOLDER, which is shown when a test fails; all
processes end with the test. Exit code 77 (SKIP): something that the test needs is missing.
"""
import atexit
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

SKIP = 77

children = []
FOLDER = tempfile.mkdtemp(prefix="baton-test-")       # of this run; gone at its end


@atexit.register
def _clean_up():
    for child in children:
        child.end(hard=True)
    if not os.environ.get("BATON_NET_KEEP"):
        for name in os.listdir(FOLDER):
            os.unlink(os.path.join(FOLDER, name))
        os.rmdir(FOLDER)


class Failed(Exception):
    pass


class Late(Failed):
    """Nothing is wrong but a time, which may be another program's fault: looked at again."""


def check(condition, text):
    if not condition:
        raise Failed(text)


def check_time(condition, text):
    if not condition:
        raise Late(text)


def wait_for(what, predicate, seconds=20.0):
    """Until predicate() is true; its value. Failed if it takes too long."""
    end = time.monotonic() + seconds
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > end:
            raise Failed(f"waited {seconds:.0f} s for: {what}")
        time.sleep(0.01)


def wait_still(what, value, seconds=20.0, still=0.3):
    """value() once it has been the same for so long: threads, descriptors end after the answer."""
    last, since = value(), time.monotonic()

    def same():
        nonlocal last, since
        now = value()
        if now != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since > still
    wait_for(f"{what} to stay as they are", same, seconds)
    return last


def resources(*processes):
    """Descriptors and threads of each, once they stay as they are. Nothing is asked meanwhile: a
    question is a thread and a descriptor itself."""
    return wait_still("descriptors and threads", lambda: [
        p.count(c) for p in processes for c in ("fd", "task")])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    """One baton process; its output goes to a file that is shown when the test fails."""

    says_ready = r"listening on (\S+?:\d+)"

    def __init__(self, baton, verb, options, within=None, cpu=None):
        """within: a side of a rig (rig.py) to run in; cpu: the only core that it may use."""
        self.log = os.path.join(FOLDER, f"{verb}-{len(children)}.log")
        self.out = open(self.log, "ab")
        self.within = within
        self.command = [baton, verb, *map(str, options)]
        before = within.prefix() if within else []
        if cpu is not None:
            before = ["taskset", "-c", str(cpu), *before]
        self.child = subprocess.Popen(before + self.command, stdin=subprocess.DEVNULL,
                                      stdout=self.out, stderr=subprocess.STDOUT)
        children.append(self)
        self.address = wait_for(f"{verb} to listen", self._address, 60)

    @property
    def process(self):
        return self.child

    def wait_for(self, pattern, seconds=120):
        """A match of the pattern in what the process has written."""
        def found():
            match = re.search(pattern, self.text(), re.MULTILINE)
            if not match and not self.alive():
                raise Failed(f"ended with {self.child.returncode}:\n{self.text()}")
            return match
        return wait_for(repr(pattern), found, seconds)

    def _address(self):
        match = re.search(self.says_ready, self.text())
        if not match and self.child.poll() is not None:
            raise Failed(f"{' '.join(self.command)} ended with {self.child.returncode}:\n"
                         f"{self.text()}")
        return match and match.group(1)

    def text(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    @property
    def port(self):
        return int(self.address.rsplit(":", 1)[1])

    def alive(self):
        return self.child.poll() is None

    def signal(self, number):
        self.child.send_signal(number)

    def kill(self):
        self.child.kill()
        self.child.wait()

    def end(self, hard=False, seconds=30):
        """Exit code of an orderly end."""
        if self.alive():
            try:
                self.child.send_signal(signal.SIGCONT)
                self.child.terminate()
                self.child.wait(2 if hard else seconds)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        self.out.close()
        if not hard:
            check("Sanitizer" not in self.text(), f"{self.command[1]}: a sanitizer complains:\n"
                  + self.text()[-6000:])
        return self.child.returncode

    def count(self, what):
        """Open descriptors ('fd') or threads ('task'); None where the system does not tell."""
        try:
            return len(os.listdir(f"/proc/{self.child.pid}/{what}"))
        except OSError:
            return None

    def rss_kib(self):
        with open(f"/proc/{self.child.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))


def end_all(*processes):
    """Fails unless each of them ends in order, though all are ended."""
    codes = [(p.command[1], p.end()) for p in processes]
    check(all(code == 0 for _, code in codes), f"exit codes: {codes}")


class HttpServer(Process):
    """`baton serve`, wherever it runs."""

    says_listening = r"listening on (\S+?:\d+)"
    says_ready = r"ready on http://(\S+?:\d+)"

    def connect(self, timeout=300):
        """An open http.client connection, made on the server's side."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with self.within.inside() if self.within else contextlib.nullcontext():
            connection.connect()
        return connection

    def open(self, method, path, body=None, headers=None, timeout=120):
        """A connection and its answer, not read yet."""
        connection = self.connect(timeout)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        return connection, connection.getresponse()

    def ask(self, method, path, body=None, headers=None, timeout=120):
        """(status, headers, bytes)"""
        connection, answer = self.open(method, path, body, headers, timeout)
        with contextlib.closing(connection):
            return answer.status, answer.headers, answer.read()

    def request(self, method, path, body=None, timeout=300):
        """(status, bytes)"""
        status, _, data = self.ask(method, path, body, {"Content-Type": "application/json"},
                                   timeout)
        return status, data

    def get(self, path):
        status, data = self.request("GET", path)
        check(status == 200, f"GET {path}: {status} {data[:200]}")
        return json.loads(data)

    def post(self, path, body):
        """The JSON of a 200."""
        status, _, data = self.ask("POST", path, body)
        assert status == 200, (status, data[:500])
        return json.loads(data)

    def error(self, method, path, body=None, headers=None):
        """(status, the error object) of a request that must fail."""
        status, _, data = self.ask(method, path, body, headers)
        assert status >= 400, (status, data[:500])
        return status, json.loads(data)["error"]

    def stream(self, path, body):
        """All events of a stream, checked against its grammar."""
        status, headers, data = self.ask("POST", path, dict(body, stream=True))
        assert status == 200, (status, data[:500])
        assert headers["Content-Type"].startswith("text/event-stream"), headers
        assert headers["Cache-Control"] == "no-cache"
        assert headers["X-Accel-Buffering"] == "no"
        return events(data)

    def metrics(self):
        status, _, data = self.ask("GET", "/metrics")
        assert status == 200
        found = {}
        for line in data.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                found[name] = float(value)
        return found

    def metric(self, name):
        """Sum over the labels of one metric."""
        _, data = self.request("GET", "/metrics")
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", data.decode(), re.M)
        check(found, f"no metric {name}")
        return sum(map(float, found))

    def raw(self, text, timeout=20):
        """Sends bytes as they are, gives all that comes back."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            s.sendall(text)
            data = b""
            while True:
                part = s.recv(65536)
                if not part:
                    return data
                data += part


def events(data):
    """JSON objects of an event stream, with "[DONE]" as the text it is; comments are dropped."""
    assert data.endswith(b"\n\n"), data[-100:]
    found = []
    for block in data.decode("utf-8").split("\n\n")[:-1]:
        if block.startswith(":"):
            assert "\n" not in block
            continue
        assert block.startswith("data: ") and "\n" not in block, block
        found.append("[DONE]" if block == "data: [DONE]" else json.loads(block[6:]))
    return found


def text_of(found, index=0):
    """What a stream's events say, for one choice, in any of the shapes."""
    parts = []
    for event in found:
        if event == "[DONE]":
            continue
        assert "error" not in event, event
        for choice in event.get("choices", [event]):
            if choice.get("index", 0) == index:
                delta = choice.get("delta", choice)
                parts.append(delta.get("content") or delta.get("text") or "")
    return "".join(parts)


def chat(text, **more):
    return dict(messages=[{"role": "user", "content": text}], **more)
