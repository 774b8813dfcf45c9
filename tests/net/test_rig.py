#!/usr/bin/env python3
"""The rig of the tests (rig.py) does what it says: rates, counters, cable, wall, cleaning up."""
import shutil
import signal
import socket
import subprocess
import sys
import time

import net_harness as net
import rig


def listener(side):
    with side.inside():
        s = socket.socket()
    s.bind((side.host, 0))
    s.listen()
    return s


def connect(side, address, timeout=2.0):
    with side.inside():
        s = socket.socket()
    s.settimeout(timeout)
    s.connect(address)
    return s


def pour(sink, n_bytes):
    """Sends n_bytes from the worker's side to the server's."""
    def send():
        s, _ = sink.accept()
        with s:
            s.sendall(bytes(n_bytes))
    return net.Task(send)


def transfer(r, n_bytes):
    """Seconds that n_bytes take, and the bytes that the server's end has counted meanwhile."""
    door = listener(r.worker)
    with rig.Meter(r.server) as meter:
        pouring = pour(door, n_bytes)
        s = connect(r.server, door.getsockname())
        got = 0
        while got < n_bytes:
            n = len(s.recv(1 << 20))
            net.check(n > 0, f"the end after {got} of {n_bytes} bytes")
            got += n
        seconds = time.monotonic() - meter.begin
        pouring.done()
        s.close()
    door.close()
    return seconds, meter.bytes


def check_rates(r):
    for mbit, n_bytes in ((20, 2_500_000), (200, 12_500_000)):
        r.set_rate(mbit)
        seconds, counted = transfer(r, n_bytes)
        reached = n_bytes * 8 / seconds / 1e6
        # Headers take 66 of 1514 bytes; a noisy machine may lose more, nothing may add.
        net.check(0.75 * mbit < reached < 1.02 * mbit, f"{reached:.1f} Mbit/s of {mbit}")
        net.check(n_bytes <= counted <= 1.1 * n_bytes, f"{counted} bytes counted for {n_bytes}")
    r.set_rate(None)
    seconds, _ = transfer(r, 50_000_000)
    net.check(seconds < 2, f"{seconds:.1f} s without a limit")


def outcome(r, address):
    try:
        connect(r.server, address, 0.5).close()
        return "connected"
    except socket.timeout:
        return "silence"
    except ConnectionRefusedError:
        return "refused"
    except OSError as e:
        return f"error {e.errno}"


def check_cuts(r):
    door = listener(r.worker)
    address = door.getsockname()
    net.check(outcome(r, address) == "connected", "the cable is in and nothing blocks")
    r.worker.unplug()
    net.check(outcome(r, address) != "connected", "the cable is out")
    r.worker.plug_in()
    net.check(net.wait_for("the cable", lambda: outcome(r, address) == "connected", 5), "cable in")
    if shutil.which("iptables"):
        r.worker.block("DROP")
        net.check(outcome(r, address) == "silence", "DROP is silent")
        r.worker.unblock()
        r.worker.block("REJECT", port=address[1])
        net.check(outcome(r, address) == "refused", "REJECT refuses")
        r.worker.unblock()
    net.check(outcome(r, address) == "connected", "nothing blocks any more")
    door.close()


def check_sides(r):
    door = listener(r.worker)
    try:
        socket.create_connection(door.getsockname(), 0.3).close()
        raise net.Failed("the worker's side is reached from outside")
    except OSError:
        pass
    door.close()


def check_crash():
    """What a killed test leaves, namespaces and processes, the next one takes away."""
    program = ("import rig, subprocess, sys, time; r = rig.Rig();"
               "p = r.worker.popen(['sleep', '600']);"
               "print(r.worker.namespace, p.pid, flush=True); time.sleep(600)")
    child = subprocess.Popen([sys.executable, "-c", program], cwd=sys.path[0], text=True,
                             stdout=subprocess.PIPE)
    namespace, _ = child.stdout.readline().split()
    rig.sweep()
    net.check(namespace in rig._namespaces(), "a living test's namespace was taken away")
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    inside = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    net.check(inside.stdout.strip(), "the process inside should have survived its parent")
    rig.sweep()
    net.check(namespace not in rig._namespaces(), "a dead test's namespace is still there")


def main():
    with rig.rig_or_skip() as r:
        check_rates(r)
        check_cuts(r)
        check_sides(r)
        names = [s.namespace for s in r.sides]
    net.check(not set(names) & set(rig._namespaces()), "the rig has not cleaned up")
    check_crash()
    return "rates, counters, cable, wall, cleaning up"


if __name__ == "__main__":
    net.run(main)
