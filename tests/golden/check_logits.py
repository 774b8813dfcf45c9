#!/usr/bin/env python3
"""Logits and greedy tokens of one golden model against its reference: check_logits.py BATON RESULT.json

The model lies beside the result. Every instruction-set tier that this machine has is tried (or
those given with --isa A,B). README.md beside this file says what the fields mean and where they
come from. An f32 file must agree with `logits_last` within `nmse_max`, a quantised one with
`logits_last` or `logits_exact`. Both engines round activations to 8 bits; which of them comes nearer
to exact arithmetic in the one row that a reference has is chance, so the distances are only printed
here, and tests/diff/twins.py compares the means over all rows.

The greedy continuation is compared as far as it does not hang on a near tie (`greedy_sure`), in two
ways: `baton logits` says what is likeliest behind the prompt and behind each token of the
continuation, and `baton run` decodes them one by one, with the prompt in one chunk and in small ones.
"""
import argparse
import json
import pathlib
import subprocess
import sys

CHUNKS = [512, 7]
TIERS = ["ref", "avx2", "avx512", "avx512vnni", "neon", "dotprod", "i8mm"]


def nmse(ours, reference):
    return (sum((a - b) ** 2 for a, b in zip(ours, reference))
            / sum(b * b for b in reference))


class Model:
    def __init__(self, baton, path, tier):
        self.baton = baton
        self.options = ["-m", str(path), "--isa", tier, "-ctk", "f32", "-ctv", "f32"]

    def output(self, verb, tokens, *options):
        """The JSON that the verb prints, or None when the machine does not have the tier."""
        run = subprocess.run([self.baton, verb, *self.options, "--tokens",
                              ",".join(map(str, tokens)), *options], capture_output=True, text=True)
        if run.returncode != 0 and "does not have" in run.stderr:
            return None
        if run.returncode != 0:
            sys.exit(f"{' '.join(run.args[:6])}: {run.stderr.strip()}")
        return json.loads(run.stdout)

    def logits(self, tokens):
        output = self.output("logits", tokens)
        return output and output["rows"][-1]["logits"]

    def likeliest(self, tokens, wanted):
        """The best token behind the prompt and behind each of `wanted` but the last. It is `wanted`
        itself if and only if greedy decoding would give that."""
        rows = self.output("logits", tokens + wanted[:-1], "--all")["rows"]
        return [max(range(len(row["logits"])), key=row["logits"].__getitem__)
                for row in rows[len(tokens) - 1:][:len(wanted)]]

    def decoded(self, reference, wanted, chunk):
        """What `baton run` makes where `wanted` came from logits, the prompt evaluated `chunk`
        tokens at a time."""
        def ask(prompt, n):
            output = self.output("run", prompt, "-n", str(n), "--temp", "0", "--json", "-q", "-ub",
                                 str(chunk))
            return output["tokens"], output["stopped_by"] == "eos"
        return in_pieces(ask, reference["tokens"], wanted, first_control(reference))


def in_pieces(ask, tokens, wanted, first_control):
    """As many tokens as `wanted` by `ask(prompt, n)` -> tokens, ended. An answer stops at a token
    that ends it and does not show it; a control token that is wanted there is taken as said and the
    rest asked for."""
    made = []
    while len(made) < len(wanted):
        more, ended = ask(tokens + made, len(wanted) - len(made))
        made += more
        if len(made) < len(wanted):
            if not ended or wanted[len(made)] < first_control:
                break
            made.append(wanted[len(made)])
    return made


def first_control(reference):
    """The vocabularies of these models end in four control tokens."""
    return reference["n_vocab"] - 4


def sure(reference):
    """How many greedy tokens may be compared: a number, or one flag per token."""
    n = reference["greedy_sure"]
    return n if isinstance(n, int) else (n + [False]).index(False)


def check_tier(model, tier, reference):
    ours = model.logits(reference["tokens"])
    if ours is None:
        return None
    problems = []
    if len(ours) != reference["n_vocab"]:
        problems.append(f"{len(ours)} logits, not {reference['n_vocab']}")
    distance = {"other engine": nmse(ours, reference["logits_last"])}
    most = reference["nmse_max"]
    if "logits_exact" in reference:
        exact = reference["logits_exact"]
        distance["exact"] = nmse(ours, exact)
        distance["other engine to exact"] = nmse(reference["logits_last"], exact)
    if min(distance["other engine"], distance.get("exact", float("inf"))) > most:
        problems.append(f"no reference within {most:g}")
    n = sure(reference)
    greedy = [reference["greedy"][:n], reference.get("greedy_exact", reference["greedy"])[:n]]
    made = [model.likeliest(reference["tokens"], wanted) for wanted in greedy]
    agreeing = [wanted for wanted, tokens in zip(greedy, made) if wanted == tokens]
    if not agreeing:
        problems.append(f"behind tokens {greedy[0]} the likeliest are {made[0]}")
    for chunk in CHUNKS if agreeing else ():
        if model.decoded(reference, agreeing[0], chunk) != agreeing[0]:
            problems.append(f"baton run -ub {chunk} gives other tokens than baton logits")
    figures = ", ".join(f"{name} {value:.2e}" for name, value in distance.items())
    print(f"{reference['model']} {tier}: nmse to {figures} (at most {most:g}); {n} greedy tokens: "
          + ("; ".join(problems) or "agrees"), flush=True)
    return not problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("baton")
    parser.add_argument("result", type=pathlib.Path)
    parser.add_argument("--isa", default=",".join(TIERS), help="tiers to try")
    options = parser.parse_args()
    reference = json.loads(options.result.read_text())
    path = options.result.with_suffix(".gguf")
    tiers = {t: check_tier(Model(options.baton, path, t), t, reference)
             for t in options.isa.split(",")}
    tried = {t: ok for t, ok in tiers.items() if ok is not None}
    if not tried:
        sys.exit("this machine has none of the tiers " + options.isa)
    sys.exit(0 if all(tried.values()) else 1)


if __name__ == "__main__":
    main()
