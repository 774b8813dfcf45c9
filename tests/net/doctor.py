#!/usr/bin/env python3
"""baton doctor against real workers and real obstacles.

Without namespaces: refused, names, keys, models, exit codes. With them: a machine that cannot be
reached, that does not answer, that is forbidden; a cable of known speed; and the commands that the
doctor gives are run and do fix what they were given for.
"""
import json
import os
import signal
import subprocess
import sys

import net_harness as net
import rig

TIMEOUT_MS = 1000


class Doctor:
    def __init__(self, baton, within=None):
        self.baton, self.within = baton, within

    def __call__(self, address, *options):
        """Exit code and what it found; its text form must tell the same problems."""
        command = [self.baton, "doctor", address, "--timeout-ms", TIMEOUT_MS, *options, "--json"]
        before = self.within.prefix() if self.within else []
        done = subprocess.run(before + [str(c) for c in command], capture_output=True, text=True,
                              timeout=60)
        net.check(done.returncode in (0, 1) and done.stdout, f"{command}: {done.returncode} "
                  f"{done.stderr}")
        told = json.loads(done.stdout)
        net.check(told["ok"] == (done.returncode == 0), f"exit {done.returncode}: {told}")
        states = {f["state"] for f in told["findings"]}
        net.check(told["ok"] == ("problem" not in states), f"{told}")
        return told

    def expect(self, address, name, state, text, *options, command=None, told=None):
        """The finding of this name; fails unless it is as said. `told`: of an earlier checkup."""
        told = told or self(address, *options)
        found = [f for f in told["findings"] if f["name"] == name]
        net.check(any(f["state"] == state and text in f["text"] for f in found),
                  f"{address}: no {state} '{name}' with '{text}': {told['findings']}")
        finding = next(f for f in found if f["state"] == state and text in f["text"])
        commands = [m["command"] for m in finding["fix"]]
        net.check(command is None or any(command in c for c in commands), f"{commands}")
        return told, finding


def here(o, models):
    doctor = Doctor(o.baton)
    closed = f"127.0.0.1:{net.free_port()}"
    doctor.expect(closed, "reach", "problem", "refused", command=f"--listen {closed}")
    doctor.expect("no-such-name.invalid:7070", "name", "problem", "no-such-name.invalid",
                  command="getent hosts")
    for bad in (["127.0.0.1"], [], ["a:1", "b:2"], ["a:99999"], [closed, "-ctk", "f16"],
                [closed, "-t", "1"]):
        done = subprocess.run([o.baton, "doctor", *bad], capture_output=True, text=True)
        net.check(done.returncode == 2 and done.stderr.startswith("error: "), f"{bad}: {done}")

    worker = net.Worker(o.baton, models["tiny-llama"], "-c", 512)
    told, _ = doctor.expect(worker.address, "model", "ok", "same model", "-m",
                            models["tiny-llama"])
    net.check(told["ok"] and told["reach"][0]["kind"] == "connected", f"{told}")
    figures = told["figures"]
    net.check(0 < figures["round_trip_ms_low"] <= figures["round_trip_ms"] <=
              figures["round_trip_ms_high"], f"{figures}")
    net.check(figures["goodput_bytes_per_second"] > 1e7 and figures["receive_buffer_bytes"] > 0
              and figures["send_buffer_bytes"] > 0 and figures["segment_bytes"] > 0, f"{figures}")
    if "tiny-qwen3" in models:
        told, finding = doctor.expect(worker.address, "model", "problem", "layers, heads or sizes",
                                      "-m", models["tiny-qwen3"], command="sha256sum MODEL.gguf")
        net.check("numerics" not in {f["name"] for f in told["findings"]}, f"{told}")
    told, finding = doctor.expect(worker.address, "model", "problem",
                                  "keys are kept as q8_0 here and as f16 on the worker", "-m",
                                  models["tiny-llama"], "-ctk", "q8_0", "--link-buffer", "1G",
                                  command="baton worker -ctk q8_0")
    net.check("sha256sum" not in json.dumps(finding), f"{finding}")
    if os.path.exists("/proc/sys/net/core/rmem_max"):      # not in containers
        doctor.expect(worker.address, "rmem_max", "problem", "--link-buffer asks for", told=told,
                      command="net.core.rmem_max=1073741824")
    text(o, closed, worker, models)
    status = worker.wait_idle()
    net.check(status["peers"] == 0 and status["connects"] == 0, f"took a server's place: {status}")
    net.check("level=warn" not in worker.text(), "a checkup is nothing to warn of:\n" + worker.text())
    net.end_all(worker)


def text(o, closed, worker, models):
    """The last line counts as people do; a model that is none is said before the way is looked at."""
    def last(*words):
        done = subprocess.run([o.baton, "doctor", *words], capture_output=True, text=True)
        return (done.stdout or done.stderr).splitlines()[-1]
    net.check(last(closed) == f"{closed}: FAIL: 1 problem", last(closed))
    net.check(last(closed, "--key-file", "/nowhere") == f"{closed}: FAIL: 2 problems",
              last(closed, "--key-file", "/nowhere"))
    net.check(last(worker.address) == f"{worker.address}: OK", last(worker.address))
    net.check(last(closed, "-m", "/nowhere").startswith("error: '/nowhere'"),
              last(closed, "-m", "/nowhere"))


def key_files(doctor, address, reached):
    """What is wrong with the file alone, whether or not anybody listens."""
    short = os.path.join(net.FOLDER, "doctor-short")
    with open(short, "wb") as f:
        f.write(b"short\n")
    os.chmod(short, 0o600)
    for path, text in ((net.FOLDER + "/nowhere", "No such file"), (net.FOLDER, "directory"),
                       (short, "5 bytes, at least 16"), ("/dev/zero", "more than 4096 bytes")):
        told, _ = doctor.expect(address, "key", "problem", text, "--key-file", path, command=path)
        names = [f["name"] for f in told["findings"]]
        net.check(names == ["reach", "key"], f"{names}")
        net.check(told["findings"][0]["state"] == ("ok" if reached else "problem"), f"{told}")


def keys(o, models):
    doctor = Doctor(o.baton)
    folder = net.FOLDER
    paths = {}
    for name, byte in (("doctor-right", b"a"), ("doctor-wrong", b"b")):
        paths[name] = os.path.join(folder, name)
        with open(paths[name], "wb") as f:
            f.write(byte * 32)
        os.chmod(paths[name], 0o600)
    right, wrong = paths["doctor-right"], paths["doctor-wrong"]
    closed = f"127.0.0.1:{net.free_port()}"
    key_files(doctor, closed, False)
    doctor.expect(closed, "key", "ok", "could not be compared", "--key-file", right)
    os.chmod(right, 0o640)
    doctor.expect(closed, "key", "advice", "used by others", "--key-file", right, command="chmod")
    os.chmod(right, 0o600)
    worker = net.Worker(o.baton, models["tiny-llama"], "-c", 512, "--key-file", right)
    key_files(doctor, worker.address, True)
    told, _ = doctor.expect(worker.address, "key", "ok", "encrypted", "--key-file", right)
    net.check(told["ok"] and told["figures"]["encrypted"], f"{told}")
    doctor.expect(worker.address, "key", "problem", "keys differ", "--key-file", wrong,
                  command=f"baton worker --key-file {wrong}")
    doctor.expect(worker.address, "key", "problem", "--key-file",
                  command=f"baton doctor {worker.address} --key-file")
    net.end_all(worker)
    worker = net.Worker(o.baton, models["tiny-llama"], "-c", 512)
    doctor.expect(worker.address, "key", "problem", "the worker has no key", "--key-file", right,
                  command=f"baton doctor {worker.address}   #")
    net.end_all(worker)
    # The command for a short key makes a good one, whatever its name.
    short = os.path.join(folder, "it's; short")
    with open(short, "wb") as f:
        f.write(b"short\n")
    _, finding = doctor.expect(closed, "key", "problem", "5 bytes", "--key-file", short,
                               command="openssl rand")
    subprocess.run(finding["fix"][0]["command"], shell=True, check=True)
    doctor.expect(closed, "key", "ok", "could not be compared", "--key-file", short)


def others(o, models):
    """Who listens there and is no worker, or one that hangs, or one that has no place left."""
    doctor = Doctor(o.baton)
    server = net.Server(o.baton, models["tiny-llama"], "-c", 512)
    key = os.path.join(net.FOLDER, "doctor-right")
    for options in ((), ("--key-file", key)):
        doctor.expect(server.address, "answer", "problem", "an HTTP server answers there", *options,
                      command="baton doctor 127.0.0.1:7070")
    server.end()
    worker = net.Worker(o.baton, models["tiny-llama"], "-c", 512, "--peers", 1)
    server = net.Server(o.baton, models["tiny-llama"], "-c", 512, workers=[worker.address])
    server.wait_ready()
    told, _ = doctor.expect(worker.address, "worker", "advice", "if yours is one of them",
                            command="--peers 2")
    net.check(told["ok"], f"{told}")
    done = subprocess.run([o.baton, "doctor", worker.address], capture_output=True, text=True)
    net.check("OK if your server is connected there" in done.stdout.splitlines()[-1],
              done.stdout)
    server.end()
    os.kill(worker.child.pid, signal.SIGSTOP)
    try:
        doctor.expect(worker.address, "answer", "problem", "hangs", command="ss -ltnp")
    finally:
        os.kill(worker.child.pid, signal.SIGCONT)
    net.end_all(worker)


def two_machines(o, models):
    """A cable of 100 Mbit/s between two namespaces."""
    try:
        r = rig.Rig(mbit=100)
    except rig.NotAllowed as problem:
        raise net.Skipped(f"without namespaces: {problem}")
    with r:
        worker = net.Worker(o.baton, models["tiny-llama"], "-c", 512, "--insecure", within=r.worker)
        doctor = Doctor(o.baton, r.server)
        told, rest = doctor.expect(worker.address, "slow start", "advice", "tcp_slow_start",
                                   command="tcp_slow_start_after_idle=0")
        net.check(told["ok"], f"{told}")
        rate = told["figures"]["goodput_bytes_per_second"]
        # 1448 of 1538 bytes on a cable are payload; tbf counts 1514. More cannot be; less is a
        # busy machine, which a checkup of a second cannot tell from a slow cable.
        net.check(5e6 < rate < 100e6 / 8 * 1448 / 1514 * 1.1, f"{rate / 1e6:.1f} MB/s")
        net.check(told["figures"]["path_mtu"] == 1500, f"{told['figures']}")
        doctor.expect(worker.address, "key", "advice", "whoever reaches", command="urandom",
                      told=told)
        # What it says fixes it does.
        r.worker.run("sh", "-c", rest["fix"][0]["command"].replace("sudo ", ""))
        doctor.expect(worker.address, "slow start", "ok", "off on the worker")
        obstacles(doctor, r, worker)
        net.end_all(worker)
    return f"100 Mbit/s measured as {rate * 8 / 1e6:.1f} of payload"


def obstacles(doctor, r, worker):
    port = worker.port
    doctor.expect(f"192.0.2.1:{port}", "reach", "problem", "no route", command="ip route get")
    r.server.run("ip", "route", "add", "unreachable", "192.0.2.2")
    doctor.expect(f"192.0.2.2:{port}", "reach", "problem", "no route")
    r.server.run("ip", "route", "add", "prohibit", "192.0.2.3")
    doctor.expect(f"192.0.2.3:{port}", "reach", "problem", "not permitted")
    # An address that somebody claims and nobody has: packets vanish.
    r.server.run("ip", "neigh", "add", "10.77.0.77", "lladdr", "02:00:00:00:00:77", "dev",
                 rig.DEVICE)
    doctor.expect(f"10.77.0.77:{port}", "reach", "problem", "no answer within 1",
                  command="ufw allow")
    # Something that is no worker at all listens there.
    code = ("import socket,time; s=socket.socket(); s.bind(('10.77.0.1',7999)); s.listen(); "
            "print('up', flush=True); c=s.accept()[0]; d=s.accept()[0]; "
            "d.sendall(b'SSH-2.0-OpenSSH'); time.sleep(9)")
    other = r.worker.popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    other.stdout.readline()
    doctor.expect("10.77.0.1:7999", "answer", "problem", "not a Baton frame", command="ss -ltnp")
    other.kill()
    other.wait()
    other.stdout.close()


CASES = [here, keys, others, two_machines]


def main():
    o = net.parser(__doc__, CASES).parse_args()
    return net.run_cases(o, CASES, o, net.models_or_skip(o.models, ["tiny-llama", "tiny-qwen3"]))


if __name__ == "__main__":
    net.run(main)
