#!/usr/bin/env python3
"""Options, variables and what is said about them: a wrong value is blamed on whoever set it.

No verb gets as far as loading a model here, but for the last ones; every error is one line and
begins with "error: ".
"""
import os
import subprocess
import sys
import urllib.error
import urllib.request

import harness

NOWHERE = "/nowhere/model.gguf"


def baton(*words, code=2, **variables):
    """What the program says on standard error; fails unless it is one sentence."""
    clean = {k: v for k, v in os.environ.items()
             if not k.startswith(("BATON", "LLAMA_")) or k == "BATON"}
    done = subprocess.run([harness.program(), *map(str, words)], capture_output=True, text=True,
                          env=clean | variables, stdin=subprocess.DEVNULL, timeout=60)
    what = f"{variables} baton {' '.join(map(str, words))}"
    assert done.returncode == code, f"{what}: exit {done.returncode}, not {code}: {done}"
    if code == 2:
        assert done.stdout == "", f"{what}: {done.stdout}"
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == (code != 0), f"{what}: {done.stderr}"
    return errors[0] if errors else ""


def expect(said, *parts, never=()):
    for part in parts:
        assert part in said, f"'{part}' is not in: {said}"
    for part in never:
        assert part not in said, f"'{part}' is in: {said}"


# Variable, the option that must not be blamed, verbs that read it, a wrong value, what would do.
TEXTS = [
    ("CACHE_TYPE_K", ("-ctk", "--cache-type-k"), ("serve", "worker", "run", "doctor"), "q3", "q8_0"),
    ("CACHE_TYPE_V", ("-ctv", "--cache-type-v"), ("serve", "worker", "run", "doctor"), "q3", "q8_0"),
    ("PREFILL_MIN_TOKENS", ("--prefill-min-tokens",), ("serve", "run"), "many", "auto"),
    ("PREFILL_POLICY", ("--prefill-policy",), ("serve", "run"), "hope", "hedge"),
    ("PREFILL_WIRE_TYPE", ("--prefill-wire-type",), ("serve", "run"), "q3", "stored"),
    ("HANDOFF", ("--handoff",), ("serve", "run"), "pull", "bulk"),
    ("THREADS", ("-t", "--threads"), ("serve", "worker", "run", "doctor"), "two", "1024"),
    ("CTX_SIZE", ("-c", "--ctx-size"), ("serve", "worker", "run"), "-1", "16777216"),
    ("N_PREFILL", ("--n-prefill",), ("worker",), "0", "256"),
    ("N_PREFILL_CHUNK", ("--n-prefill-chunk",), ("worker",), "0", "16384"),
    ("N_PREFILL_CHUNK", ("--n-prefill-chunk",), ("serve", "run"), "10000000", "16384"),
    ("LINK_BUFFER", ("--link-buffer",), ("serve", "run", "worker", "doctor"), "99999999999999",
     "1024M"),
    ("PEERS", ("--peers",), ("worker",), "65", "64"),
    ("TEMP", ("--temp", "--temperature"), ("serve", "run"), "hot", "100"),
    ("SNAPSHOT_BYTES", ("--snapshot-bytes",), ("serve", "worker", "run"), "2T", "512M"),
    ("VERBOSE", ("-v", "--verbose"), ("serve", "worker", "run"), "maybe", "on or off"),
]
WORDS = {"doctor": ["127.0.0.1:9"], "run": ["-p", "x"]}


def variables_are_named():
    """The variable with its value, from either family of names; the option when it was that."""
    for name, options, verbs, wrong, would_do in TEXTS:
        for verb in verbs:
            words = [verb, "-m", NOWHERE, *WORDS.get(verb, [])]
            for prefix in ("BATON_", "LLAMA_ARG_"):
                said = baton(*words, **{prefix + name: wrong})
                expect(said, f"{prefix}{name} is '{wrong}'", would_do,
                       never=[o + " is" for o in options])
            for option in options if wrong != "maybe" else ():
                expect(baton(*words, option, wrong, **{"BATON_" + name: wrong})
                       if name in ("CACHE_TYPE_K", "HANDOFF") else baton(*words, option, wrong),
                       f"{option} is '{wrong}'", never=[name])


def command_line_wins():
    said = baton("worker", "-m", NOWHERE, "-ctk", "q4_0", code=1, BATON_CACHE_TYPE_K="q3")
    expect(said, NOWHERE, never=["BATON"])
    said = baton("worker", "-m", NOWHERE, code=1, BATON_CACHE_TYPE_K="q4_0",
                 LLAMA_ARG_CACHE_TYPE_K="q3")
    expect(said, NOWHERE, never=["LLAMA"])
    said = baton("worker", "-m", NOWHERE, "-t", "1", code=1, BATON_THREADS="two")
    expect(said, NOWHERE, never=["BATON"])


def files_and_addresses_are_named():
    """What is said further down names the value; where it came from stands behind it."""
    model = harness.model()
    for words, code, name, value in (
            (["worker"], 1, "MODEL", NOWHERE),
            (["serve", "-m", model], 1, "HOST", "no-such-name.invalid"),
            (["worker", "-m", model], 1, "KEY_FILE", "/nowhere/key"),
            (["worker", "-m", model], 1, "LISTEN", "nonsense"),
            (["worker", "-m", model], 1, "ISA", "abacus"),
            (["run", "-m", model, "-p", "x"], 2, "PREFILL_DEVICE", "nonsense"),
            (["serve", "-m", model], 2, "PREFILL_DEVICE", "a:0"),
            (["serve", "-m", model, "--prefill-device", "a:1"], 1, "KEY_FILE", "/nowhere/key")):
        expect(baton(*words, code=code, **{"BATON_" + name: value}), f"'{value}'", "BATON_" + name)
    said = baton("worker", "-m", model, "--listen", "nonsense", code=1, BATON_LISTEN="nonsense")
    expect(said, "'nonsense'", never=["BATON"])
    said = baton("serve", "-m", model, "--prefill-device-file", "/nowhere/list",
                 BATON_PREFILL_DEVICE="a:1")
    expect(said, "BATON_PREFILL_DEVICE", "--prefill-device-file")


# Verb and words, the options that do nothing with them, what is missing.
ALONE = [("--key-file", "/k"), ("--link-buffer", "1M"), ("--trace-handoff", "/nowhere/t"),
         ("--n-prefill", "1"), ("--n-prefill-chunk", "64"), ("--prefill-min-tokens", "5"),
         ("--prefill-policy", "fail"), ("--prefill-wire-type", "f16"), ("--handoff", "bulk")]
CONVERSATION = [("-sys", "x"), ("--chat-template", "chatml")]


def nothing_is_ignored():
    """An option that needs another and does not have it; a variable may wait for its time."""
    for words, options, missing in (
            (["serve"], ALONE, "--prefill-device"), (["run", "-p", "x"], ALONE, "--prefill-device"),
            (["serve", "--prefill-listen", "127.0.0.1:0"], ALONE[3:], "--prefill-device"),
            (["run", "-p", "x"], CONVERSATION, "--chat"),
            (["run", "--tokens", "1"], CONVERSATION, "--chat")):
        for option in options:
            said = baton(*words, "-m", NOWHERE, *option)
            expect(said, f"{option[0]} does nothing without {missing}")
    for words in (["serve", "--prefill-device", "a:1"], ["run", "-p", "x", "--prefill-device", "a:1"],
                  ["serve", "--prefill-device-file", NOWHERE]):
        said = baton(*words, "-m", NOWHERE, *[w for option in ALONE for w in option], code=1)
        expect(said, f"'{NOWHERE}'")
    expect(baton("serve", "--prefill-listen", "127.0.0.1:0", "-m", NOWHERE, *ALONE[0], *ALONE[1],
                 *ALONE[2], code=1), f"'{NOWHERE}'")
    for verb in (["serve"], ["run", "-p", "x"]):
        said = baton(*verb, "-m", NOWHERE, code=1, BATON_KEY_FILE="/k", BATON_HANDOFF="bulk",
                     BATON_TRACE_HANDOFF="/nowhere/t", BATON_CHAT_TEMPLATE="chatml")
        expect(said, f"'{NOWHERE}'")


def help_is_true():
    """The model of `make demo` is the default where it is loaded, and of none that compares one."""
    for verb, promised in (("serve", True), ("worker", True), ("run", True), ("logits", True),
                           ("doctor", False), ("inspect", False), ("tokenize", False)):
        done = subprocess.run([harness.program(), verb, "--help"], capture_output=True, text=True)
        assert done.stdout.count("--model FILE") == 1, f"{verb}: {done.stdout}"
        assert ("make demo" in done.stdout) == promised, f"{verb}: {done.stdout}"


def help_has_the_defaults():
    """They stand in the tables, also where verbs differ; an option that verbs share has one text."""
    texts = {}
    for verb, option, default in (("serve", "--parallel", "4"), ("run", "--parallel", "1"),
                                  ("worker", "--listen", "127.0.0.1:7070"), ("serve", "-ctk", "f16"),
                                  ("worker", "-ctk", "f16"), ("run", "-ctk", "f16"),
                                  ("doctor", "-ctk", "f16"), ("logits", "-ctk", "f16"),
                                  ("serve", "--snapshot-bytes", "2G"),
                                  ("inspect", "--snapshot-bytes", "2G"),
                                  ("serve", "--prefill-min-tokens", "auto")):
        done = subprocess.run([harness.program(), verb, "--help"], capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if f"{option} " in line[:36] or
                 f"{option}, " in line[:36]]
        assert len(lines) == 1 and f"(default: {default})" in lines[0], f"{verb} {option}: {lines}"
        if option in ("-ctk", "--snapshot-bytes"):
            assert texts.setdefault(option, lines[0]) == lines[0], f"{verb}: {lines}"


def nothing_starts_that_cannot():
    """Said before it listens, and (exit 2: checked in baton()) without a word on standard output."""
    model = harness.model()
    for verb in (["serve", "--port", "0"], ["run", "-p", "x"]):
        for wrong in ("nohost", "a:0", "a:65536", ":1", ";;", "", "a:1;b", "a:1,b", "a:1,,b:0",
                      "http://a:1", "::1:1", "a/b:1", "[::1:1", "a:1/", "user@a:1"):
            expect(baton(*verb, "-m", model, "--prefill-device", wrong), "--prefill-device: ")
    for right in ("a:1,b:2", "a:1;b:2", "a:1 , b:2", "[::1]:1,a_b.c-d:2", "[fe80::1%eth0]:1"):
        expect(baton("serve", "-m", NOWHERE, "--prefill-device", right, code=1), NOWHERE)
    for wrong in ("nonsense", "127.0.0.1", "a:99999", "http://127.0.0.1:1", "a:1,b:2"):
        expect(baton("serve", "-m", model, "--prefill-listen", wrong), "--prefill-listen: ")
    path = os.path.join(os.path.dirname(os.path.abspath(model)), "no-such-list")
    for option in (["--prefill-device-file", path], ["--prefill-device-file", model],
                   ["--prefill-device", "a:1", "--key-file", path],
                   ["--prefill-listen", "127.0.0.1:0", "--key-file", path]):
        done = subprocess.run([harness.program(), "serve", "--port", "0", "-m", model, *option],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and done.stdout == "", f"{option}: {done}"
        assert option[-1] in done.stderr, f"{option}: {done}"


def keys_are_not_lost():
    """A variable that is almost the one for the API key stops the start: it would be open."""
    for name in ("LLAMA_SERVER_API_KEY", "BATON_SERVER_API_KEY", "LLAMA_ARG_API_KEYS",
                 "BATON_APIKEY", "LLAMA_API_KEY_FILE_"):
        expect(baton("serve", "-m", NOWHERE, **{name: "k"}), name, "BATON_API_KEY")
        expect(baton("serve", "-m", NOWHERE, code=1, **{name: ""}), NOWHERE)
        expect(baton("worker", "-m", NOWHERE, code=1, **{name: "k"}), NOWHERE)
    for name in ("LLAMA_API_KEY", "LLAMA_ARG_API_KEY", "BATON_API_KEY", "BATON_API_KEY_FILE"):
        expect(baton("serve", "-m", NOWHERE, code=1, **{name: "k"}), NOWHERE)
    os.environ["LLAMA_API_KEY"] = "secret"
    try:
        with harness.Server() as server:
            for path, key, code in (("/props", None, 401), ("/props", "secret", 200)):
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}",
                                                 headers=headers)
                try:
                    got = urllib.request.urlopen(request, timeout=60).status
                except urllib.error.HTTPError as error:
                    got = error.code
                assert got == code, f"{path} with {key}: {got}"
    finally:
        del os.environ["LLAMA_API_KEY"]


def templates_and_contexts_are_checked():
    """An unknown chat format is refused; a context that the model does not know is warned about."""
    for verb in (["serve", "--port", "0"], ["run", "--chat", "-p", "x"]):
        for wrong in ("chatmll", "{{ no such template }}"):
            expect(baton(*verb, "-m", NOWHERE, "--chat-template", wrong), "--chat-template: ")
        expect(baton(*verb, "-m", NOWHERE, BATON_CHAT_TEMPLATE="nothing"), "BATON_CHAT_TEMPLATE: ")
        expect(baton(*verb, "-m", NOWHERE, "--chat-template", "llama3", code=1), NOWHERE)
    for n, warns in ((100000, 1), (64, 0)):
        with harness.Server("-c", str(n)) as server:
            text = server.text()
            assert text.count(f"event=context_exceeds_training n_ctx={n} ") == warns, text


def main():
    keys_are_not_lost()
    templates_and_contexts_are_checked()
    nothing_starts_that_cannot()
    help_is_true()
    help_has_the_defaults()
    nothing_is_ignored()
    variables_are_named()
    command_line_wins()
    files_and_addresses_are_named()
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
