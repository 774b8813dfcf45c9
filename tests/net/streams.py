"""Clients that stream: when each token came, and who leaves in the middle. Standard library only."""
import contextlib
import http.client
import json
import socket
import threading
import time

import net_harness as net


class Stream(threading.Thread):
    """Decodes all the time, one answer after the other, and notes when tokens come."""

    def __init__(self, server, index, n_predict=1200):
        super().__init__(daemon=True)
        self.server, self.index, self.n_predict = server, index, n_predict
        self.gaps = []                  # (when it ended, seconds), within one answer
        self.ended, self.problem, self.text = False, None, None

    def run(self):
        try:
            while not self.ended:
                self._answer()
        except Exception as problem:                # shown by the test
            self.problem = problem

    def _answer(self):
        body = json.dumps({"prompt": net.prompt(7 + self.index, 31), "n_predict": self.n_predict,
                           "temperature": 0, "ignore_eos": True, "stream": True,
                           "cache_prompt": False, "prefill": {"where": "local"}})
        text, last, rest = "", None, b""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
        connection.sock = connect(self.server)
        connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
        with contextlib.closing(connection.getresponse()) as response:
            while not self.ended and (data := response.read1(65536)):
                now = time.monotonic()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    text += json.loads(line[6:])["content"] if line.startswith(b"data: {") else ""
                if last is not None:
                    self.gaps.append((now, now - last))
                last = now
        connection.close()
        if not self.ended:
            net.check(self.text in (None, text), f"stream {self.index} got another answer")
            self.text = text

    def longest(self, begin, end):
        """The longest gap that touches these moments, in seconds."""
        return max((g for at, g in list(self.gaps) if at > begin and at - g < end), default=0.0)


class Streams:
    """Several, with a check at the end that none of them was disturbed."""

    def __init__(self, server, n):
        self.all = [Stream(server, i) for i in range(n)]

    def __enter__(self):
        for s in self.all:
            s.start()
        net.wait_for("streams to run", lambda: all(len(s.gaps) > 50 or s.problem
                                                   for s in self.all))
        return self

    def __exit__(self, *_):
        for s in self.all:
            s.ended = True
        for s in self.all:
            s.join()
            net.check(s.problem is None, f"stream {s.index}: {s.problem}")

    def longest(self, begin, end):
        return max(s.longest(begin, end) for s in self.all)


def connect(server):
    if server.within:
        with server.within.inside():
            return socket.create_connection(server.address.rsplit(":", 1), 60)
    return socket.create_connection(("127.0.0.1", server.port), 60)


def post(body, path="/completion"):
    return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}").encode()


class Leaver:
    """A client of one prompt that can go away at any moment."""

    def __init__(self, server, tokens, where="remote", n_predict=100, **prefill):
        self.socket = connect(server)
        self.socket.sendall(post(json.dumps({
            "prompt": tokens, "n_predict": n_predict, "temperature": 0, "ignore_eos": True,
            "cache_prompt": False, "stream": True, "prefill": {"where": where, **prefill}})))

    def leave(self):
        self.socket.close()
