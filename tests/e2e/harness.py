"""What the HTTP tests share: one server of the real program, on tests/processes.py.

The program is BATON (an environment variable). The model is the tiny one that tools/mkmodel.py
makes, or SmolLM2 in BATON_MODELS_DIR when BATON_E2E_MODEL is "smollm2".
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tests"))

from processes import SKIP, HttpServer, chat, check, text_of             # noqa: E402, F401

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


class Server(HttpServer):
    """`baton serve` on a free port; a context manager that ends it and looks at how it ended."""

    def __init__(self, *options, ready=True):
        if not ready:
            self.says_ready = HttpServer.says_listening
        super().__init__(program(), "serve", ["-m", model(), "--port", "0", "-t", "1",
                                              "--chat-template", "chatml", *options])

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        code = self.end(hard=kind is not None)
        if kind is not None:
            print(self.text()[-4000:], file=sys.stderr)
        else:
            check(code == 0, f"exit code {code}:\n{self.text()[-4000:]}")

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
