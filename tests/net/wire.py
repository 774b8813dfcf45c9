"""Frames of docs/wire.md by hand, for tests that speak to a program as a peer would that lies.

Checksums are XXH3-64 of the library that the program uses too, by ctypes; without it there is
nothing to be said, and the test is skipped. Standard library only.
"""
import ctypes
import ctypes.util
import socket
import struct
import sys
import threading

MAGIC = 0x4E544142
VERSION = (1, 1)
TYPES = {name: i + 1 for i, name in enumerate(
    ["HELLO", "WELCOME", "REJECT", "PREFILL", "TOKENS", "ROWS", "STATE", "CHUNK", "COMMIT", "CANCEL",
     "CANCELLED", "ERROR", "CREDIT", "PING", "PONG", "DRAIN", "VISIT", "FACTS", "PROBE", "SAMPLE"])}
NAMES = {number: name for name, number in TYPES.items()}


def _load():
    name = ctypes.util.find_library("xxhash")
    if not name:
        print("skipped: no libxxhash to make checksums with", flush=True)
        sys.exit(77)
    f = ctypes.CDLL(name).XXH3_64bits
    f.restype, f.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]
    return f


_xxh3 = _load()


def checksum(data):
    return _xxh3(bytes(data), len(data)) & 0xFFFFFFFF


def frame(kind, body=b"", stream=0, sequence=0, length=None, magic=MAGIC):
    """length: what the header says, if not the truth."""
    head = struct.pack("<IHHIIQI", magic, TYPES.get(kind, kind), 0, stream,
                       len(body) if length is None else length, sequence, checksum(body))
    return head + struct.pack("<I", checksum(head)) + body


def u32(*values):
    return struct.pack(f"<{len(values)}I", *values)


def u64(*values):
    return struct.pack(f"<{len(values)}Q", *values)


def text(s):
    data = s.encode()
    return u32(len(data)) + data


def split(data):
    """[(type name, stream, body)] of whole frames in the bytes of one direction."""
    frames, at = [], 0
    while at + 32 <= len(data):
        _, kind, _, stream, length, _, _ = struct.unpack_from("<IHHIIQI", data, at)
        if at + 32 + length > len(data):
            break
        frames.append((NAMES.get(kind, str(kind)), stream, bytes(data[at + 32:at + 32 + length])))
        at += 32 + length
    return frames


class Caller:
    """A connection to a worker; frames are numbered by themselves."""

    def __init__(self, address, timeout=10):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)
        self.sequence, self.data = 0, b""

    def send(self, kind, body=b"", stream=0, **more):
        self.socket.sendall(frame(kind, body, stream, sequence=self.sequence, **more))
        self.sequence += 1

    def frames(self, until=None):
        """What comes until a frame of that type, or (None) until the other side has ended."""
        while True:
            found = split(self.data)
            if until and any(f[0] == until for f in found):
                return found
            try:
                more = self.socket.recv(65536)
            except ConnectionError:
                more = b""
            if not more:
                return found
            self.data += more

    def ended(self, seconds=10):
        """Whether the other side ends the connection within so long."""
        self.socket.settimeout(seconds)
        try:
            self.frames()
            return True
        except TimeoutError:
            return False

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Liar:
    """Listens as a worker would; `say` gets each connection and then it is closed."""

    def __init__(self, say):
        self.say = say
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection):
        with connection:
            connection.settimeout(10)
            try:
                connection.recv(65536)
                self.say(connection)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except OSError:
                pass

    def close(self):
        self.listener.close()


def answer_hello_with_reject(connection, field, theirs, ours, sentence, status=15):
    body = u32(status) + text(field) + text(theirs) + text(ours) + text(sentence)
    connection.sendall(frame("REJECT", body))
