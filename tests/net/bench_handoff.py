#!/usr/bin/env python3
"""`baton bench handoff` runs and writes what it says: one small cell of the table. Figures are not
judged here."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.dom.minidom

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

import handoff_report                                                        # noqa: E402
import net_harness as net                                                    # noqa: E402
import rig                                                                   # noqa: E402
import shaped                                                                # noqa: E402


def bench(o, *words, variables=None):
    return subprocess.run([o.baton, "bench", "handoff", *words], capture_output=True, text=True,
                          env=os.environ | (variables or {}))


def check_files(out):
    """What was asked for, and no model or log beside it."""
    net.check(sorted(os.listdir(out)) == ["handoff.json", "handoff.md", "handoff.svg"],
              f"{os.listdir(out)}")
    xml.dom.minidom.parse(os.path.join(out, "handoff.svg"))


def wrong_use(o):
    """One line of the same shape for whatever is wrong, and nothing left behind."""
    with tempfile.TemporaryDirectory() as folder:
        taken = os.path.join(folder, "taken")
        with open(taken, "w") as f:
            f.write("x")
        nobody = f"127.0.0.1:{net.free_port()}"
        for code, text, *words in (
                (2, "'0', but must be whole numbers", "--prompts", "0"),
                (2, "'x', but must be whole numbers", "--prompts", "x"),
                (2, "'1,,2', but", "--prompts", "1,,2"), (2, "from 1 to 1000000", "--prompts", "1e3"),
                (2, "from 0.001 to 1000", "--r", "0"), (2, "'nan'", "--r", "nan"),
                (2, "from 0 to 10000", "--round-trips", "-1"),
                (2, "a whole number from 1 to 1000", "--repeat", "1,2"),
                (2, "a number from 1 to 1000000000", "--rate", "0"),
                (2, "table, hybrid", "--part", "tables"), (2, "table, hybrid", "--part", ""),
                (2, "HOST:PORT", "--server", "here"), (2, "HOST:PORT", "--server", ":80"),
                (2, "without --server", "--api-key", "k"),
                (2, "with --server", "--server", nobody, "--r", "1"),
                (2, "--promts", "--promts", "1"),
                (1, "'/nowhere/m.gguf'", "-m", "/nowhere/m.gguf"), (1, "GGUF", "-m", taken),
                (1, "'/nowhere'", "--bench-dir", "/nowhere"),
                (1, "'/nowhere/python'", "--python", "/nowhere/python"),
                (2, "baton bench handoff --help", "--prompts", "0"),
                (2, "baton bench handoff --help", "--promts", "1"),
                (1, "taken': File exists", "--out", taken, "--server", nobody),
                (1, "error: '/proc': ", "--out", "/proc", "--server", nobody),
                (1, "Connection refused", "--server", nobody, "--out", folder + "/new")):
            done = bench(o, *words)
            lines = done.stderr.splitlines()
            net.check(done.returncode == code and len(lines) == 1 and
                      lines[0].startswith("error: ") and text in lines[0], f"{words}: {done}")
        net.check(os.listdir(folder) == ["taken"], f"{os.listdir(folder)}")
    done = bench(o, variables={"BATON_MODEL": "/nowhere/m.gguf"})
    net.check(done.returncode == 1 and "(BATON_MODEL)" in done.stderr, f"{done}")
    # Without the rights for namespaces it fails, and says what can be done all the same.
    if os.geteuid() != 0:
        with tempfile.TemporaryDirectory() as out:
            done = bench(o, "--out", out)
            net.check(done.returncode == 1 and "need root" in done.stderr and
                      "--server" in done.stderr and done.stderr.count("error: ") == 1, f"{done}")


def given_pair(o, model):
    """A pair that is there already, into a folder that is not there yet."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "new", "deeper")
        worker = net.Worker(o.baton, model, "-c", 4096, "-t", 1)
        server = net.Server(o.baton, model, "-c", 4096, "-t", 1, workers=[worker.address])
        server.wait_ready()
        done = bench(o, "--server", server.address, "--prompts", "300", "--out", out)
        net.check(done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}")
        with open(os.path.join(out, "handoff.json")) as f:
            row, = json.load(f)["given"]
        net.check(row["worker"] == worker.address and row["bytes"] == 300 * shaped.TOKEN_BYTES and
                  row["local_ms"] > 0, f"{row}")
        check_files(out)
        with open(os.path.join(out, "handoff.svg")) as f:
            net.check("300 tokens" in f.read(), "the prompt is not in handoff.svg")
        server.end()
        worker.end()
        done = bench(o, "--server", worker.address, "--out", out)
        net.check(done.returncode == 1 and done.stderr.startswith("error: http://"), f"{done}")


def verdicts():
    """Values below the floor are told as such, and explained."""
    def cell(ratio, over):
        return {"order": "push", "model": "dense", "tokens": 300, "ratio": ratio,
                "round_trip_ms": 2, "over_floor": over, "exposed_share": 0}
    lines = list(handoff_report.verdict_lines([cell(2, -0.031), cell(2, 0.002), cell(0.5, -0.01)]))
    net.check("r at most 1" in lines[0] and "from -1.0 % to -1.0 % of the floor" in lines[0] and
              "2 of 2 cells, from -3.1 % to +0.2 % of the floor" in lines[1] and
              "below its floor" in lines[2] and "over 100 %" in lines[3], f"{lines}")


def main():
    o = net.parser(__doc__).parse_args()
    verdicts()
    wrong_use(o)
    model = shaped.make_model(o.models)
    given_pair(o, model)
    rig.rig_or_skip().close()
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
        check_files(out)
    done = subprocess.run([o.baton, "bench"], capture_output=True, text=True)
    net.check(done.returncode == 2 and "bench handoff" in done.stderr, f"{done}")
    return "written"


if __name__ == "__main__":
    net.run(main)
