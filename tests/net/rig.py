"""Two machines on one: network namespaces joined by a cable that can be slow, cut or walled off.

    with rig.Rig(mbit=100) as r:                # mbit: in each direction; None: as fast as it goes
        worker = net.Worker(baton, model, "--insecure", within=r.worker)
        server = net.Server(baton, model, workers=[worker.address], within=r.server)
        r.set_rate(10); r.worker.unplug(); r.server.block("DROP"); r.server.counters()

`within` starts the process in that namespace and makes requests from there. The side `worker` is
10.77.0.1, `server` 10.77.0.2. Each side has its own loopback. The rate is the sender's: tbf (or
htb) with a short queue on each end, counted on the wire with headers. The kernel that tests must
run on has no netem, so delay and damage come from proxy(), tools/fault_proxy.py between the two.

Nothing outlives the test: namespaces carry the number of the process that made them, and every Rig
first takes away what processes that are gone have left, with the processes still inside. Where
namespaces are not allowed the test ends with 77 and the reason. Standard library only.
"""
import atexit
import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

SKIP = 77
PREFIX = "baton-rig"
DEVICE = "cable"
CLONE_NEWNET = 0x40000000
QUEUE_PACKETS_MIN = 10
TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools")

_rigs = []


class NotAllowed(Exception):
    """The system does not let us; says why."""


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotAllowed(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _namespaces():
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    return [line.split()[0] for line in done.stdout.splitlines() if line.strip()]


def _remove(namespace):
    """Ends what still runs inside, then the namespace, and with it its end of the cable."""
    pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    for pid in pids.stdout.split():
        with contextlib.suppress(OSError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


def sweep():
    """Takes away what processes that are gone have left behind."""
    for namespace in _namespaces():
        match = re.fullmatch(rf"{PREFIX}-(\d+)-\d+-\w+", namespace)
        if match and not os.path.exists(f"/proc/{match.group(1)}"):
            _remove(namespace)


class Side:
    """One end: a namespace with its address, its end of the cable and its own loopback."""

    def __init__(self, namespace, host):
        self.namespace, self.host, self.mtu = namespace, host, 1500
        self.walls = []
        self.libc = ctypes.CDLL(None, use_errno=True)

    def prefix(self):
        """To be put before a command: it then runs here, under the same process number."""
        return ["ip", "netns", "exec", self.namespace]

    def run(self, *command):
        """Runs a command here to its end; what it prints. NotAllowed if it fails."""
        return _run(*self.prefix(), *command)

    def popen(self, command, **options):
        return subprocess.Popen(self.prefix() + list(command), **options)

    @contextlib.contextmanager
    def inside(self):
        """Sockets that this thread makes meanwhile are of this side, and stay so."""
        with open("/proc/thread-self/ns/net") as home, \
                open(f"/run/netns/{self.namespace}") as there:
            self._enter(there)
            try:
                yield
            finally:
                self._enter(home)

    def _enter(self, file):
        if self.libc.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    # ---- the cable ----

    def counters(self):
        """What has passed this end of the cable: bytes (with Ethernet headers) and packets."""
        text = _run("ip", "-n", self.namespace, "-s", "-j", "link", "show", "dev", DEVICE)
        told = json.loads(text)[0]["stats64"]
        return {f"{way}_{what}": told[way][what] for way in ("rx", "tx")
                for what in ("bytes", "packets", "dropped")}

    def set_rate(self, mbit):
        """What this side may send; None: no limit. The queue is 20 ms, as short as a switch's, but
        has room for some packets: with four (9,000 bytes at 6 Mbit/s) TCP loses so many that a
        sixth of the rate is gone."""
        subprocess.run([*self.prefix(), "tc", "qdisc", "del", "dev", DEVICE, "root"],
                       capture_output=True)
        if not mbit:
            return
        rate = f"{int(mbit * 1e6)}bit"
        # A burst must hold 1 ms and one whole packet, else the rate is not reached.
        burst = max(int(mbit * 1e6 / 8 * 0.001), 20000)
        limit = burst + max(int(mbit * 1e6 / 8 * 0.020), QUEUE_PACKETS_MIN * self.mtu)
        try:
            self.run("tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", "rate", rate,
                     "burst", str(burst), "limit", str(limit))
        except NotAllowed:
            self.run("tc", "qdisc", "add", "dev", DEVICE, "root", "handle", "1:", "htb",
                     "default", "1")
            self.run("tc", "class", "add", "dev", DEVICE, "parent", "1:", "classid", "1:1", "htb",
                     "rate", rate, "ceil", rate, "burst", str(burst), "cburst", str(burst))

    def unplug(self):
        """The cable is out: nothing arrives, and nobody is told."""
        _run("ip", "-n", self.namespace, "link", "set", DEVICE, "down")

    def plug_in(self):
        _run("ip", "-n", self.namespace, "link", "set", DEVICE, "up")

    # ---- the wall ----

    def block(self, how="DROP", port=None):
        """What arrives here from the cable is swallowed (DROP) or refused (REJECT)."""
        rule = ["INPUT", "-i", DEVICE, "-p", "tcp", *(["--dport", str(port)] if port else []),
                "-j", how, *(["--reject-with", "tcp-reset"] if how == "REJECT" else [])]
        self.run("iptables", "-A", *rule)
        self.walls.append(rule)

    def unblock(self):
        for rule in self.walls:
            self.run("iptables", "-D", *rule)
        self.walls.clear()


class Rig:
    """Two sides, `worker` and `server`, and the cable. NotAllowed where the system forbids it."""

    def __init__(self, mbit=None, mtu=1500):
        if not shutil.which("ip") or not shutil.which("tc"):
            raise NotAllowed("the programs ip and tc (iproute2) are missing")
        if os.geteuid() != 0:
            raise NotAllowed("network namespaces need root")
        sweep()
        own = f"{PREFIX}-{os.getpid()}-{len(_rigs)}"
        self.worker = Side(f"{own}-worker", "10.77.0.1")
        self.server = Side(f"{own}-server", "10.77.0.2")
        self.sides = [self.worker, self.server]
        self.proxies = []
        _rigs.append(self)
        try:
            self._build(mtu)
            self.set_rate(mbit)
        except NotAllowed:
            self.close()
            raise

    def _build(self, mtu):
        for side in self.sides:
            side.mtu = mtu
            _run("ip", "netns", "add", side.namespace)
        _run("ip", "link", "add", DEVICE, "mtu", str(mtu), "netns", self.worker.namespace, "type",
             "veth", "peer", "name", DEVICE, "mtu", str(mtu), "netns", self.server.namespace)
        for side in self.sides:
            _run("ip", "-n", side.namespace, "addr", "add", f"{side.host}/24", "dev", DEVICE)
            _run("ip", "-n", side.namespace, "link", "set", "lo", "up")
            side.plug_in()

    def set_rate(self, mbit):
        """Both directions, from now on; connections stay. None: no limit."""
        for side in self.sides:
            side.set_rate(mbit)

    def proxy(self, target, *options):
        """tools/fault_proxy.py on the server's side, before the cable; its options, e.g.
        "--delay-ms", 10 (each way)."""
        p = Proxy(self.server, target, options)
        self.proxies.append(p)
        return p

    def close(self):
        for p in self.proxies:
            p.close()
        self.proxies.clear()
        for side in self.sides:
            _remove(side.namespace)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Proxy:
    """A running fault proxy. tell("delay 10") gives what it answers."""

    def __init__(self, side, target, options):
        command = [sys.executable, os.path.join(TOOLS, "fault_proxy.py"), "--target", target,
                   *map(str, options)]
        self.child = side.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True)
        self.address = json.loads(self.child.stdout.readline())["listening"]

    def tell(self, command):
        self.child.stdin.write(command + "\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())

    def close(self):
        if self.child.poll() is None:
            with contextlib.suppress(OSError):
                self.child.stdin.close()
            try:
                self.child.wait(2)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        self.child.stdout.close()


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(SKIP)


def rig_or_skip(need_iptables=False, **options):
    """A Rig; where that is not possible the test ends with 77 and the reason."""
    if need_iptables and not shutil.which("iptables"):
        skip("the program iptables is missing (tools/deps.sh --dev installs it)")
    try:
        return Rig(**options)
    except NotAllowed as problem:
        skip(f"network namespaces: {problem}")


def cpu_seconds(pid):
    """User and system time of a process so far, all threads."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Meter:
    """What passes one end of the cable between enter and exit: .bytes, .packets, .seconds."""

    def __init__(self, side, way="rx"):
        self.side, self.way = side, way

    def __enter__(self):
        self.before, self.begin = self.side.counters(), time.monotonic()
        return self

    def __exit__(self, *_):
        after = self.side.counters()
        self.seconds = time.monotonic() - self.begin
        self.bytes = after[f"{self.way}_bytes"] - self.before[f"{self.way}_bytes"]
        self.packets = after[f"{self.way}_packets"] - self.before[f"{self.way}_packets"]


@atexit.register
def _clean_up():
    for r in _rigs:
        r.close()
