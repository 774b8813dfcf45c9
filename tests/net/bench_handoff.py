#!/usr/bin/env python3
"""`baton bench handoff` runs and writes what it says: one small cell of the table. Figures are not
judged here."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.dom.minidom

import net_harness as net
import rig
import shaped


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("baton")
    parser.add_argument("models")
    o = parser.parse_args()
    rig.rig_or_skip().close()
    model = shaped.make_model(o.models)
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([o.baton, "bench", "handoff", "--part", "table", "--rate", "2000",
                               "-m", model, "--r", "0.5", "--prompts", "300", "--round-trips", "2",
                               "--out", out], capture_output=True, text=True)
        net.check(done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}")
        with open(os.path.join(out, "handoff.json")) as f:
            rows = json.load(f)["table"]
        net.check([r["order"] for r in rows] == ["push", "bulk"], f"rows: {rows}")
        for r in rows:
            net.check(r["tokens"] == 300 and r["bytes"] == 300 * shaped.TOKEN_BYTES, f"{r}")
            net.check(r["first_token_ms"] > 0 and r["floor_ms"] > 0, f"{r}")
        with open(os.path.join(out, "handoff.md")) as f:
            net.check("| dense | 300 | 0.5 |" in f.read(), "the row is not in handoff.md")
        xml.dom.minidom.parse(os.path.join(out, "handoff.svg"))
    with tempfile.TemporaryDirectory() as out:
        worker = net.Worker(o.baton, model, "-c", 4096, "-t", 1)
        server = net.Server(o.baton, model, "-c", 4096, "-t", 1, workers=[worker.address])
        server.wait_ready()
        done = subprocess.run([o.baton, "bench", "handoff", "--server", server.address, "--prompts",
                               "300", "--out", out], capture_output=True, text=True)
        net.check(done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}")
        with open(os.path.join(out, "handoff.json")) as f:
            row, = json.load(f)["given"]
        net.check(row["worker"] == worker.address and row["bytes"] == 300 * shaped.TOKEN_BYTES and
                  row["local_ms"] > 0, f"{row}")
        server.end()
        worker.end()
    done = subprocess.run([o.baton, "bench"], capture_output=True, text=True)
    net.check(done.returncode == 2 and "bench handoff" in done.stderr, f"{done}")
    return "written"


if __name__ == "__main__":
    sys.exit(net.run(main))
