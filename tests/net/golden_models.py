#!/usr/bin/env python3
"""Models with recurrent layers or experts, served: other engines' tokens, with and without a worker.

For every such model of tests/golden (or those in BATON_GOLDEN_DIR too): a server that prefills by
itself must decode the greedy tokens that the reference gives, as far as they do not hang on a near
tie; servers with a worker must give the same bits (tokens, text and log-probabilities in all their
digits) for every chunk size, for the reference's prompt and for prompts down to two tokens, which
are shorter than the convolution.
"""
import json
import os
import pathlib
import sys

import net_harness as net

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "golden"), str(HERE.parent.parent / "docs" / "models")]
import check_logits                                                          # noqa: E402
import gguf_read                                                             # noqa: E402

CHUNKS = [1, 3, 16, 64]
SHORT = [2, 3, 4, 17]
OPTIONS = ("-c", 2048, "-np", 2, "-t", 1, "-ctk", "f32", "-ctv", "f32")


def wanted(path):
    """Files that have something beyond plain attention layers."""
    file = gguf_read.File(path)
    arch = file["general.architecture"]
    return file.get(f"{arch}.ssm.state_size") or file.get(f"{arch}.expert_count")


def results(folders):
    for folder in folders:
        for result in sorted(folder.glob("*.json")):
            if result.with_suffix(".gguf").exists() and wanted(result.with_suffix(".gguf")):
                yield result


class Asker:
    """Completions of a server, and all of them that no place of prefill may change."""

    def __init__(self, server, where):
        self.server, self.where, self.facts = server, where, []

    def __call__(self, prompt, n):
        answer = self.server.complete(prompt, n_predict=n, where=self.where, ignore_eos=False)
        told = answer["prefill"]
        net.check(told["place"] == self.where and not told["fallback"], f"{self.where}? {told}")
        self.facts.append(json.dumps([prompt, answer["tokens"], answer["content"],
                                      answer.get("completion_probabilities")]))
        return answer["tokens"], answer["stop_type"] == "eos"

    def all(self, reference):
        """The reference's greedy tokens; then prompts that are shorter."""
        made = check_logits.in_pieces(self, reference["tokens"], reference["greedy"],
                                      check_logits.first_control(reference))
        for n in SHORT:
            self(reference["tokens"][:n], 8)
        return made


def check_model(baton, result):
    reference = json.loads(result.read_text())
    model, name = str(result.with_suffix(".gguf")), result.stem
    sure = check_logits.sure(reference)
    local = net.Server(baton, model, *OPTIONS, "-ub", 5)
    here = Asker(local, "local")
    made = here.all(reference)[:sure]
    greedy = [reference["greedy"], reference.get("greedy_exact", reference["greedy"])]
    net.check(made in [tokens[:sure] for tokens in greedy],
              f"{name}: served {made}, not {greedy[0][:sure]}")
    net.end_all(local)
    worker = net.Worker(baton, model, "-c", 4096, "-t", 1, "-ctk", "f32", "-ctv", "f32")
    for chunk in CHUNKS:
        server = net.Server(baton, model, *OPTIONS, "--n-prefill-chunk", chunk,
                            workers=[worker.address])
        server.wait_ready()
        there = Asker(server, "remote")
        there.all(reference)
        net.check(there.facts == here.facts,
                  f"{name}: a worker's chunks of {chunk} give other bits")
        net.end_all(server)
    net.end_all(worker)
    print(f"{name}: {sure} of {len(greedy[0])} greedy tokens, chunks of "
          f"{', '.join(map(str, CHUNKS))}: agrees", flush=True)


def main():
    o = net.parser(__doc__).parse_args()
    folders = [pathlib.Path(o.models)]
    if os.environ.get("BATON_GOLDEN_DIR"):
        folders.append(pathlib.Path(os.environ["BATON_GOLDEN_DIR"]))
    found = list(results(folders))
    net.check(len(found) >= 12, f"only {len(found)} models in {o.models}")
    for result in found:
        check_model(o.baton, result)


if __name__ == "__main__":
    net.run(main)
