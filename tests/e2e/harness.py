"""What the HTTP tests share: a server of the real program, requests, event streams.

The program is BATON (an environment variable). The model is the tiny one that tools/mkmodel.py
makes, or SmolLM2 in BATON_MODELS_DIR when BATON_E2E_MODEL is "smollm2".
"""
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SKIP = 77
SMOLLM2 = "smollm2-135m-instruct-q4_1.gguf"


def skip(why):
    print("skipped:", why)
    sys.exit(SKIP)


def program():
    path = os.environ.get("BATON")
    if not path or not os.path.exists(path):
        skip("BATON does not name the program")
    return path


def has_sanitizer():
    """Sanitizers keep freed memory for a while, so that its size says nothing."""
    data = pathlib.Path(program()).read_bytes()
    return b"__asan_init" in data or b"__tsan_init" in data


def is_tiny():
    return os.environ.get("BATON_E2E_MODEL", "tiny") == "tiny"


def model():
    """The path of the model; the tiny one is made once per build folder."""
    if not is_tiny():
        folder = os.environ.get("BATON_MODELS_DIR")
        path = pathlib.Path(folder or "", SMOLLM2)
        if not folder or not path.exists():
            skip(f"BATON_MODELS_DIR has no {SMOLLM2}")
        return str(path)
    folder = pathlib.Path(os.environ.get("BATON_E2E_DIR", tempfile.gettempdir()))
    path = folder / "e2e-tiny-llama.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        making = folder / f"e2e-tiny-llama.{os.getpid()}.gguf"
        run = subprocess.run([sys.executable, str(ROOT / "tools/mkmodel.py"), "tiny-llama",
                              str(making)], capture_output=True, text=True)
        if run.returncode != 0:
            if "numpy" in run.stderr:
                skip("making the model needs numpy")
            sys.exit(run.stderr)
        making.replace(path)
    return str(path)


class Server:
    """`baton serve` on a free port; a context manager that ends it and looks at how it ended."""

    def __init__(self, *options, ready=True):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)
        command = [program(), "serve", "-m", model(), "--port", "0", "-t", "1",
                   "--chat-template", "chatml", *options]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        self.port = int(self.wait_for(r"listening on \S*?:(\d+)\b").group(1))
        if ready:
            self.wait_for(r"^ready on ")

    def wait_for(self, pattern, seconds=120):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            text = self.text()
            match = re.search(pattern, text, re.MULTILINE)
            if match:
                return match
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{text}")
            time.sleep(0.02)
        self.process.kill()
        self.process.wait()
        raise AssertionError(f"no {pattern!r} after {seconds} s:\n{self.text()}")

    def text(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = "none within 30 s of SIGTERM"
        text = self.text()
        self.log.close()
        os.unlink(self.log.name)
        if kind is None and code != 0:
            raise AssertionError(f"exit code {code}:\n{text[-4000:]}")
        if kind is not None:
            print(text[-4000:], file=sys.stderr)

    # ---- requests ----

    def open(self, method, path, body=None, headers=None, timeout=120):
        """A connection and its answer, not read yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        return connection, connection.getresponse()

    def ask(self, method, path, body=None, headers=None):
        """(status, headers, bytes)"""
        connection, answer = self.open(method, path, body, headers)
        data = answer.read()
        connection.close()
        return answer.status, answer.headers, data

    def post(self, path, body):
        """The JSON of a 200."""
        status, _, data = self.ask("POST", path, body)
        assert status == 200, (status, data[:500])
        return json.loads(data)

    def get(self, path):
        status, _, data = self.ask("GET", path)
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

    # ---- the process, from outside ----

    def metrics(self):
        status, _, data = self.ask("GET", "/metrics")
        assert status == 200
        found = {}
        for line in data.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                found[name] = float(value)
        return found

    def wait_idle(self, seconds=5):
        until = time.monotonic() + seconds
        while True:
            m = self.metrics()
            if m["llamacpp:requests_processing"] + m["llamacpp:requests_deferred"] == 0:
                return m
            assert time.monotonic() < until, "requests are left running"
            time.sleep(0.02)

    def resources(self):
        """(threads, descriptors, resident KiB); None for what the system does not tell."""
        base = pathlib.Path("/proc", str(self.process.pid))
        if not base.exists():
            return None
        status = (base / "status").read_text()
        number = lambda name: int(re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE).group(1))
        return number("Threads"), len(os.listdir(base / "fd")), number("VmRSS")

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
