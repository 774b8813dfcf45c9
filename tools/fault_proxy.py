#!/usr/bin/env python3
"""A TCP proxy that misbehaves on purpose, byte by byte: for tests of links.

    fault_proxy.py --target HOST:PORT [--listen 127.0.0.1:0] [faults]

Prints one JSON line, {"listening": "HOST:PORT"}, then obeys commands on standard input, one a line,
each answered by one JSON line: cut, stall, resume, drop, refuse, accept, delay MS, rate MBIT, flip,
clear, status, quit. Events ({"event": "cut", ...}) go to standard error. Ends at end of input.

Two directions: `up` is from the one who connects to the target, `down` the other way. Offsets count
the bytes of one direction of one connection as they came from their sender.

As a module: with FaultProxy(target, flip=[(100, 1)]) as p: connect to p.address, p.cut(), p.status().
Standard library only.
"""
import argparse
import collections
import json
import select
import socket
import struct
import sys
import threading
import time

READ_BYTES = 256 << 10
QUEUE_BYTES = 4 << 20          # taken in and not yet delivered, without a rate
TICK_S = 0.02


def split_address(text):
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def join_address(a):
    return ("[%s]:%d" if ":" in a[0] else "%s:%d") % (a[0], a[1])


class Edits:
    """What happens to the bytes of one direction. feed() gives what to forward and how it goes on."""

    def __init__(self, faults):
        self.offset = 0
        self.flips = sorted(faults.get("flip", []))
        self.swaps = list(faults.get("swap", []))
        self.duplicates = list(faults.get("duplicate", []))
        self.omits = list(faults.get("omit", []))
        self.stops = sorted((faults[kind], kind) for kind in ("cut", "stall", "truncate")
                            if faults.get(kind) is not None)
        self.saved = {}

    def _edges(self):
        """Every offset where something begins or ends, so that a piece lies in one range only."""
        for at, _ in self.stops:
            yield at
        for group in (self.swaps, self.duplicates, self.omits):
            for edges in group:
                yield from edges

    def _piece(self, piece):
        start, end = self.offset, self.offset + len(piece)
        self.offset = end
        piece = bytearray(piece)
        for at, mask in self.flips:
            if start <= at < end:
                piece[at - start] ^= mask
        for a, b in self.omits:
            if a <= start < b:
                return []
        for key in self.duplicates:
            if key[0] <= start < key[1]:
                self.saved[key] = self.saved.get(key, b"") + bytes(piece)
                if end == key[1]:
                    return [bytes(piece), self.saved.pop(key)]
        for key in self.swaps:
            if key[0] <= start < key[1]:
                self.saved[key] = self.saved.get(key, b"") + bytes(piece)
                return []
            if key[1] <= start and end == key[2]:
                return [bytes(piece), self.saved.pop(key, b"")]
        return [bytes(piece)]

    def feed(self, data):
        """(pieces to forward, None or the stop that was reached, bytes that were not looked at)."""
        out = []
        while True:
            if self.stops and self.offset >= self.stops[0][0]:
                return out, self.stops.pop(0)[1], data
            if not data:
                return out, None, b""
            edges = [e - self.offset for e in self._edges() if e > self.offset]
            n = min([len(data)] + edges)
            out += self._piece(data[:n])
            data = data[n:]


class Pump(threading.Thread):
    """One direction: takes from `source`, delivers to `sink` when the time has come."""

    def __init__(self, connection, name, source, sink, faults):
        super().__init__(daemon=True)
        self.connection, self.name_, self.source, self.sink = connection, name, source, sink
        self.proxy = connection.proxy
        self.edits = Edits(faults)
        self.changed = threading.Condition()
        self.queue = collections.deque()   # (time, bytes); bytes None: the end
        self.queued = 0
        self.free_at = 0.0                 # when the line has sent what it was given
        self.forwarded = 0
        self.stalled = False               # takes no more
        self.held = False                  # and delivers nothing either
        self.rest = b""
        self.delivery = threading.Thread(target=self.deliver, daemon=True)

    def capacity(self):
        rate, delay = self.proxy.rate, self.proxy.delay
        return QUEUE_BYTES if not rate else max(65536, int(rate * (delay + 0.02)))

    def enqueue(self, data):
        now, rate = time.monotonic(), self.proxy.rate
        step = max(1500, int(rate * 0.005)) if rate else READ_BYTES
        with self.changed:
            for i in range(0, len(data), step):
                piece = data[i:i + step]
                self.free_at = max(now, self.free_at) + (len(piece) / rate if rate else 0)
                self.queue.append((self.free_at + self.proxy.delay, piece))
                self.queued += len(piece)
            self.changed.notify_all()

    def finish(self):
        with self.changed:
            self.queue.append((self.free_at + self.proxy.delay, None))
            self.changed.notify_all()

    def wait_for_room(self):
        with self.changed:
            while not self.connection.dead and (self.stalled or self.queued > self.capacity()):
                self.changed.wait(TICK_S)
        return not self.connection.dead

    def take(self):
        """Bytes, b"" at the end, None for nothing yet."""
        if self.rest:
            data, self.rest = self.rest, b""
            return data
        ready, _, _ = select.select([self.source], [], [], TICK_S)
        try:
            return self.source.recv(READ_BYTES) if ready else None
        except BlockingIOError:
            return None

    def run(self):
        self.delivery.start()
        try:
            while self.wait_for_room():
                data = self.take()
                if data is None:
                    continue
                if self.proxy.dropping:
                    if data == b"":
                        return
                    continue
                if data == b"":
                    self.finish()
                    return
                if self.proxy.flip_next:
                    self.proxy.flip_next = False
                    data = bytes([data[0] ^ 1]) + data[1:]
                pieces, stop, self.rest = self.edits.feed(data)
                for piece in pieces:
                    self.enqueue(piece)
                if stop and not self.stop(stop):
                    return
        except (OSError, ValueError):
            self.connection.end()

    def stop(self, kind):
        self.proxy.tell(event=kind, connection=self.connection.number, direction=self.name_,
                        offset=self.edits.offset)
        if kind == "stall":
            self.stalled = True
            return True
        if kind == "cut":
            self.drain()
            self.connection.end(reset=True)
        else:
            self.finish()
        return False

    def drain(self):
        """What came before the cut is delivered."""
        with self.changed:
            while self.queue and not self.connection.dead:
                self.changed.wait(TICK_S)

    def next(self):
        with self.changed:
            while not self.connection.dead:
                wait = self.queue[0][0] - time.monotonic() if self.queue else TICK_S
                if self.queue and wait <= 0 and not self.held:
                    return self.queue[0][1]
                self.changed.wait(min(max(wait, 0.0002), TICK_S))
        return None

    def send(self, data):
        """Never blocked for long inside one call: a socket in use cannot be reset."""
        data = memoryview(data)
        while data and not self.connection.dead:
            _, ready, _ = select.select([], [self.sink], [], TICK_S)
            if ready:
                try:
                    n = self.sink.send(data[:READ_BYTES])
                except BlockingIOError:
                    continue
                self.forwarded += n
                data = data[n:]

    def deliver(self):
        try:
            while True:
                data = self.next()
                if data is None:
                    break
                self.send(data)
                with self.changed:
                    self.queue.popleft()
                    self.queued -= len(data)
                    self.changed.notify_all()
            if not self.connection.dead:
                self.sink.shutdown(socket.SHUT_WR)
                with self.changed:
                    self.queue.clear()
                self.connection.half_done(self)
        except (OSError, ValueError):
            self.connection.end()


class Connection:
    def __init__(self, proxy, number, client, server):
        self.proxy, self.number = proxy, number
        self.sockets = [client, server]
        self.dead = False
        self.lock = threading.Lock()
        self.ended = set()
        down, up = (proxy.faults_of(number, d) for d in ("down", "up"))
        self.pumps = {"up": Pump(self, "up", client, server, up),
                      "down": Pump(self, "down", server, client, down)}

    def start(self):
        for p in self.pumps.values():
            p.start()

    def half_done(self, pump):
        self.ended.add(pump)
        if len(self.ended) == 2:
            self.end()

    def end(self, reset=False):
        with self.lock:
            if self.dead:
                return
            self.dead = True
        for s in self.sockets:
            try:
                if reset:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()

    def stall(self, on):
        for p in self.pumps.values():
            p.stalled = p.held = on

    def status(self):
        return {"number": self.number, "open": not self.dead,
                "up": self.pumps["up"].forwarded, "down": self.pumps["down"].forwarded}


class FaultProxy:
    """faults: cut, stall, truncate (offsets); flip [(offset, mask)]; duplicate, omit [(from, to)];
    swap [(a, b, c)]: [a, b) changes places with [b, c). direction: up, down or both; connection: the
    number (1, 2, ...) that they apply to, 0: every one."""

    def __init__(self, target, listen="127.0.0.1:0", delay_ms=0, rate_mbit=0, direction="down",
                 connection=0, drop=False, log=None, **faults):
        self.target = split_address(target)
        self.delay, self.rate = delay_ms / 1e3, rate_mbit * 1e6 / 8
        self.direction, self.connection, self.faults = direction, connection, faults
        self.dropping, self.flip_next = drop, False
        self.log, self.connections, self.lock = log, [], threading.Lock()
        self.closing = False
        self.wanted = split_address(listen)
        self.listener = None
        self.accept()

    # ---- commands ----

    def accept(self):
        """Listens (again)."""
        if self.listener:
            return
        family = socket.AF_INET6 if ":" in self.wanted[0] else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(self.wanted)
        listener.listen(128)
        self.wanted = listener.getsockname()[:2]
        self.address = join_address(self.wanted)
        self.listener = listener
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def refuse(self):
        """New connections are refused; those there stay."""
        listener, self.listener = self.listener, None
        if listener:
            try:
                listener.shutdown(socket.SHUT_RDWR)    # wakes accept
            except OSError:
                pass
            listener.close()

    def cut(self):
        """Resets every connection."""
        for c in self._all():
            c.end(reset=True)

    def stall(self):
        """Stops forwarding; connections stay open."""
        for c in self._all():
            c.stall(True)

    def resume(self):
        self.dropping = False
        for c in self._all():
            c.stall(False)

    def drop(self):
        """Swallows every byte from now on."""
        self.dropping = True

    def flip(self):
        """Damages the first byte that is read next."""
        self.flip_next = True

    def clear(self):
        """New connections meet no faults."""
        self.faults, self.dropping, self.flip_next = {}, False, False

    def set_delay(self, ms):
        self.delay = ms / 1e3

    def set_rate(self, mbit):
        self.rate = mbit * 1e6 / 8

    def status(self):
        return {"listening": self.address, "accepting": self.listener is not None,
                "connections": [c.status() for c in self._all()]}

    def close(self):
        self.closing = True
        self.refuse()
        for c in self._all():
            c.end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- inside ----

    def _all(self):
        with self.lock:
            return list(self.connections)

    def tell(self, **event):
        if self.log:
            self.log.write(json.dumps(event) + "\n")
            self.log.flush()

    def faults_of(self, number, direction):
        fits = self.connection in (0, number) and self.direction in ("both", direction)
        return self.faults if fits else {}

    def _serve(self, listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if self.listener is not listener:
                client.close()
                return
            threading.Thread(target=self._open, args=(client,), daemon=True).start()

    def _open(self, client):
        try:
            server = socket.create_connection(self.target, 10)
        except OSError as e:
            self.tell(event="target", error=str(e))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            return
        for s in (client, server):
            s.setblocking(False)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.lock:
            c = Connection(self, len(self.connections) + 1, client, server)
            self.connections.append(c)
        c.start()


# ---- command line ----

def numbers(count, default_last=None):
    def parse(text):
        parts = [int(p, 0) for p in text.replace(":", "-").split("-")]
        if len(parts) == count - 1 and default_last is not None:
            parts.append(default_last)
        if len(parts) != count or (default_last is None and parts != sorted(set(parts))):
            raise argparse.ArgumentTypeError("expected %d rising numbers: %r" % (count, text))
        return tuple(parts)
    return parse


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--target", required=True, metavar="HOST:PORT")
    p.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT")
    p.add_argument("--delay-ms", type=float, default=0, help="in each direction")
    p.add_argument("--rate-mbit", type=float, default=0, help="in each direction; 0: no limit")
    p.add_argument("--direction", choices=("up", "down", "both"), default="down",
                   help="of the faults below (default: down)")
    p.add_argument("--connection", type=int, default=0, help="of the faults below; 0: every one")
    p.add_argument("--cut-after", type=int, dest="cut", metavar="BYTES", help="then reset")
    p.add_argument("--stall-after", type=int, dest="stall", metavar="BYTES",
                   help="then forward nothing, stay open")
    p.add_argument("--truncate", type=int, metavar="BYTES", help="then say the end")
    p.add_argument("--flip", type=numbers(2, 1), action="append", default=[],
                   metavar="OFFSET[:MASK]")
    p.add_argument("--duplicate", type=numbers(2), action="append", default=[], metavar="FROM-TO")
    p.add_argument("--omit", type=numbers(2), action="append", default=[], metavar="FROM-TO")
    p.add_argument("--swap", type=numbers(3), action="append", default=[], metavar="A-B-C",
                   help="[A, B) changes places with [B, C)")
    p.add_argument("--drop", action="store_true", help="accept, and swallow every byte")
    return p.parse_args()


def obey(proxy, line):
    words = line.split()
    if words[0] in ("delay", "rate") and len(words) == 2:
        (proxy.set_delay if words[0] == "delay" else proxy.set_rate)(float(words[1]))
    elif len(words) == 1 and words[0] in ("cut", "stall", "resume", "drop", "refuse", "accept",
                                          "flip", "clear"):
        getattr(proxy, words[0])()
    elif words != ["status"]:
        return {"ok": False, "error": "unknown command: " + line}
    return dict(proxy.status(), ok=True)


def main():
    arguments = vars(parse_arguments())
    with FaultProxy(log=sys.stderr, **arguments) as proxy:
        print(json.dumps({"listening": proxy.address}), flush=True)
        for line in sys.stdin:
            if line.strip() == "quit":
                break
            if line.strip():
                try:
                    answer = obey(proxy, line.strip())
                except (OSError, ValueError) as e:
                    answer = {"ok": False, "error": str(e)}
                print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
