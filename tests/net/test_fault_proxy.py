#!/usr/bin/env python3
"""tools/fault_proxy.py does what it says: otherwise tests that stand on it prove nothing."""
import json
import os
import socket
import subprocess
import sys
import threading
import time
import unittest

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools")
sys.path.insert(0, TOOLS)
from fault_proxy import FaultProxy  # noqa: E402

DATA = bytes(i * 7 % 251 for i in range(300000))


class Target:
    """Sends DATA to whoever connects, and keeps what it is told."""

    def __init__(self, data=DATA, hold=False):
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(16)
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.data, self.hold, self.got = data, hold, []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.talk, args=(s,), daemon=True).start()

    def talk(self, s):
        try:
            s.sendall(self.data)
            if not self.hold:
                s.shutdown(socket.SHUT_WR)
            received = b""
            while True:
                piece = s.recv(65536)
                if not piece:
                    break
                received += piece
            self.got.append(received)
        except OSError:
            self.got.append(None)
        s.close()


def connect(address):
    host, port = address.rsplit(":", 1)
    s = socket.create_connection((host, int(port)), 5)
    s.settimeout(5)
    return s


def read_all(s):
    """(bytes, how it ended)"""
    out = b""
    try:
        while True:
            piece = s.recv(65536)
            if not piece:
                return out, "end"
            out += piece
    except ConnectionResetError:
        return out, "reset"
    except socket.timeout:
        return out, "silence"


class Faults(unittest.TestCase):
    def through(self, timeout=5, **faults):
        with FaultProxy(Target().address, **faults) as p:
            with connect(p.address) as s:
                s.settimeout(timeout)
                return read_all(s)

    def test_forwards_both_ways(self):
        target = Target()
        with FaultProxy(target.address) as p:
            s = connect(p.address)
            s.sendall(DATA)
            s.shutdown(socket.SHUT_WR)
            self.assertEqual(read_all(s), (DATA, "end"))
            for _ in range(100):
                if target.got:
                    break
                time.sleep(0.02)
            self.assertEqual(target.got, [DATA])
            self.assertEqual(p.status()["connections"][0]["down"], len(DATA))

    def test_truncate(self):
        for n in (0, 1, 1000, 299999):
            self.assertEqual(self.through(truncate=n), (DATA[:n], "end"))

    def test_cut(self):
        got, how = self.through(cut=5000)
        self.assertEqual(how, "reset")
        self.assertTrue(DATA[:5000].startswith(got))   # a reset may overtake what it follows

    def test_stall(self):
        self.assertEqual(self.through(stall=70000, timeout=0.3), (DATA[:70000], "silence"))

    def test_flip(self):
        got, how = self.through(flip=[(0, 1), (65536, 0x80), (299999, 3)])
        want = bytearray(DATA)
        want[0] ^= 1
        want[65536] ^= 0x80
        want[299999] ^= 3
        self.assertEqual((got, how), (bytes(want), "end"))

    def test_duplicate_omit_swap(self):
        self.assertEqual(self.through(duplicate=[(10, 100000)])[0],
                         DATA[:100000] + DATA[10:100000] + DATA[100000:])
        self.assertEqual(self.through(omit=[(10, 100000)])[0], DATA[:10] + DATA[100000:])
        self.assertEqual(self.through(swap=[(10, 100000, 100003)])[0],
                         DATA[:10] + DATA[100000:100003] + DATA[10:100000] + DATA[100003:])

    def test_other_direction_and_connection_are_left_alone(self):
        self.assertEqual(self.through(cut=10, direction="up"), (DATA, "end"))
        self.assertEqual(self.through(truncate=10, connection=2), (DATA, "end"))

    def test_delay(self):
        target = Target(b"x", hold=True)
        with FaultProxy(target.address, delay_ms=100) as p:
            before = time.monotonic()
            s = connect(p.address)
            self.assertEqual(s.recv(10), b"x")
            self.assertGreaterEqual(time.monotonic() - before, 0.1)
            self.assertLess(time.monotonic() - before, 0.4)

    def test_rate(self):
        before = time.monotonic()
        got, how = self.through(rate_mbit=8)             # 300 kB at 1 MB/s
        took = time.monotonic() - before
        self.assertEqual((got, how), (DATA, "end"))
        self.assertGreaterEqual(took, 0.29)
        self.assertLess(took, 0.8)

    def test_drop(self):
        self.assertEqual(self.through(drop=True, timeout=0.3), (b"", "silence"))

    def test_target_that_is_not_there(self):
        with FaultProxy("127.0.0.1:1") as p:
            self.assertEqual(read_all(connect(p.address))[1], "reset")


class Commands(unittest.TestCase):
    def setUp(self):
        self.target = Target(b"hello", hold=True)
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(TOOLS, "fault_proxy.py"), "--target",
             self.target.address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = json.loads(self.process.stdout.readline())["listening"]

    def tearDown(self):
        self.process.stdin.close()
        self.assertEqual(self.process.wait(5), 0)
        self.process.stdout.close()

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def test_cut_now(self):
        s = connect(self.address)
        self.assertEqual(s.recv(5), b"hello")
        self.assertTrue(self.say("cut")["ok"])
        self.assertEqual(read_all(s)[1], "reset")

    def test_stall_and_resume(self):
        s = connect(self.address)
        self.assertEqual(s.recv(5), b"hello")
        self.say("stall")
        s.sendall(b"abc")
        time.sleep(0.1)
        self.assertEqual(self.say("status")["connections"][0]["up"], 0)
        self.say("resume")
        for _ in range(50):
            if self.say("status")["connections"][0]["up"] == 3:
                break
            time.sleep(0.02)
        self.assertEqual(self.say("status")["connections"][0]["up"], 3)

    def test_refuse_and_accept(self):
        self.say("refuse")
        with self.assertRaises(ConnectionRefusedError):
            connect(self.address)
        self.say("accept")
        self.assertEqual(connect(self.address).recv(5), b"hello")

    def test_nonsense(self):
        self.assertFalse(self.say("dance")["ok"])
        self.assertFalse(self.say("delay soon")["ok"])


if __name__ == "__main__":
    unittest.main(verbosity=1, warnings="ignore")
