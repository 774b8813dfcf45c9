#!/usr/bin/env python3
"""Standard descriptors that are full or closed: neither stops the server nor its end."""
import http.client
import os
import re
import select
import signal
import subprocess
import sys

import harness

COMMAND = ["serve", "--port", "0", "-t", "1", "--chat-template", "chatml"]
END_S = 30


def command(*options):
    return [harness.program(), *COMMAND, "-m", harness.model(), *options]


def read_until(fd, pattern, seconds=120):
    text = ""
    while not (match := re.search(pattern, text)):
        assert select.select([fd], [], [], seconds)[0], f"no {pattern!r}: {text}"
        part = os.read(fd, 65536).decode(errors="replace")
        assert part, f"the output ended: {text}"
        text += part
    return match


def ask(port, times):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(times):
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
    connection.close()


def a_full_pipe_stops_nothing():
    """What the pipe and the queue do not hold is dropped, counted, and reported later."""
    out, into = os.pipe()
    server = subprocess.Popen(command("-v"), stdout=into, stderr=into, stdin=subprocess.DEVNULL)
    os.close(into)
    try:
        port = int(read_until(out, r"ready on http://\S*?:(\d+)").group(1))
        # A line has more than 60 bytes; a pipe takes 64 KiB, the queue 256 lines.
        ask(port, 2000)
        assert int(read_until(out, r"event=log_dropped n=(\d+)").group(1)) > 0
        ask(port, 2000)
        server.send_signal(signal.SIGTERM)
        assert server.wait(END_S) == 0, server.returncode
    finally:
        server.kill()
        server.wait()
        os.close(out)


def closed_descriptors_are_opened():
    """Nothing that the server opens may become its standard output."""
    server = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&-', "sh", *command()],
                              stderr=subprocess.PIPE, text=True)
    try:
        # Nothing says that it is ready now; so it is asked to end, and must do that in order.
        while os.path.basename(os.readlink(f"/proc/{server.pid}/exe")) != "baton":
            assert server.poll() is None, server.returncode
        links = []
        while len(links) < 3:          # the first thing that it does
            links = [n for n in "012" if os.path.exists(f"/proc/{server.pid}/fd/{n}")]
            assert server.poll() is None, server.returncode
        links = [os.readlink(f"/proc/{server.pid}/fd/{n}") for n in links]
        server.send_signal(signal.SIGTERM)
        said = server.communicate(timeout=END_S)[1]
        assert links[:2] == ["/dev/null"] * 2, links
        # SIGTERM before the handler is in place ends it too.
        assert server.returncode in (0, -signal.SIGTERM), (server.returncode, said)
        assert "error" not in said, said
    finally:
        server.kill()
        server.wait()


def main():
    a_full_pipe_stops_nothing()
    if os.path.exists("/proc/self/fd"):
        closed_descriptors_are_opened()
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
