"""Routes, shapes, streams, errors and access of `baton serve`, asked over HTTP."""
import json
import unittest

from harness import Server, chat, text_of

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"


class WithServer(unittest.TestCase):
    OPTIONS = ["-c", "1024"]

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.OPTIONS)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__(None, None)


class Routes(WithServer):
    def test_health_and_models(self):
        for path in "/health", "/v1/health":
            self.assertEqual(self.server.get(path), {"status": "ok"})
        for path in "/models", "/v1/models":
            listed = self.server.get(path)
            self.assertEqual(listed["object"], "list")
            one = listed["data"][0]
            self.assertEqual(one["object"], "model")
            self.assertEqual(one["meta"]["n_ctx"], 1024)
            self.assertGreater(one["meta"]["n_vocab"], 0)
        self.assertEqual(self.server.get("/v1/models/" + one["id"])["id"], one["id"])

    def test_props_show_the_defaults(self):
        props = self.server.get("/props?x=y")
        self.assertEqual(props["default_generation_settings"]["n_ctx"], 1024)
        self.assertEqual(props["total_slots"], 4)
        params = props["default_generation_settings"]["params"]
        for name, value in [("temperature", 0.8), ("top_k", 40), ("top_p", 0.95), ("min_p", 0.05),
                            ("repeat_penalty", 1), ("repeat_last_n", 64), ("n_predict", -1)]:
            self.assertAlmostEqual(params[name], value, places=6, msg=name)

    def test_tokens_go_both_ways(self):
        text = "Hello, wörld! \U0001F600 a\0b"
        tokens = self.server.post("/tokenize", {"content": text})["tokens"]
        self.assertEqual(self.server.post("/detokenize", {"tokens": tokens})["content"], text)
        pieces = self.server.post("/tokenize", {"content": text, "with_pieces": True})["tokens"]
        self.assertEqual([p["id"] for p in pieces], tokens)
        raw = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"])
                       for p in pieces)
        self.assertEqual(raw.decode(), text)

    def test_special_tokens_are_parsed_only_when_asked(self):
        one = {"content": "<|im_end|>"}
        self.assertEqual(len(self.server.post("/tokenize", one)["tokens"]), 1)
        plain = self.server.post("/tokenize", dict(one, parse_special=False))["tokens"]
        self.assertGreater(len(plain), 1)

    def test_template_is_applied(self):
        prompt = self.server.post("/apply-template", chat("hi"))["prompt"]
        self.assertTrue(prompt.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
                        prompt)

    def test_a_user_cannot_type_control_tokens(self):
        count = lambda text: self.server.post(CHAT, chat(text, max_tokens=1))["usage"]["prompt_tokens"]
        plain = self.server.post("/tokenize", {"content": "<|im_end|>", "parse_special": False})
        self.assertEqual(count("x<|im_end|>") - count("x"), len(plain["tokens"]))

    def test_the_page_and_its_files(self):
        status, headers, page = self.server.ask("GET", "/")
        self.assertEqual(status, 200)
        self.assertEqual(headers["Cache-Control"], "no-cache")
        for name in ("style.css", "app.js", "icon.svg"):
            self.assertIn(name.encode(), page)
            status, headers, _ = self.server.ask("GET", "/" + name)
            self.assertEqual(status, 200)
            tag = {"If-None-Match": headers["ETag"]}
            self.assertEqual(self.server.ask("GET", "/" + name, headers=tag)[0], 304)

    def test_metrics_are_well_formed(self):
        self.server.post(NATIVE, {"prompt": "a", "n_predict": 3})
        m = self.server.metrics()
        for name in ("prompt_tokens_total", "prompt_seconds_total", "tokens_predicted_total",
                     "tokens_predicted_seconds_total", "n_decode_total", "requests_processing",
                     "requests_deferred", "n_busy_slots_per_decode"):
            self.assertIn("llamacpp:" + name, m)
        for name in "time_to_first_token", "inter_token", "queue_wait":
            buckets = [v for k, v in m.items() if k.startswith(f"baton_{name}_seconds_bucket")]
            self.assertEqual(buckets, sorted(buckets))
            self.assertEqual(buckets[-1], m[f"baton_{name}_seconds_count"])
        self.assertEqual([v for v in m.values() if v != v], [])

    def test_workers_are_listed(self):
        self.assertEqual(self.server.get("/v1/prefill")["workers"], [])


class Answers(WithServer):
    def test_chat(self):
        a = self.server.post(CHAT, chat("hi", max_tokens=8, temperature=0, model="whatever"))
        self.assertTrue(a["id"].startswith("chatcmpl-"))
        self.assertEqual(a["object"], "chat.completion")
        choice, usage = a["choices"][0], a["usage"]
        self.assertEqual(choice["message"]["role"], "assistant")
        self.assertIsInstance(choice["message"]["content"], str)
        self.assertIn(choice["finish_reason"], ("stop", "length"))
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        self.assertLessEqual(usage["completion_tokens"], 8)
        t, p = a["timings"], a["prefill"]
        self.assertEqual(t["cache_n"] + t["prompt_n"], usage["prompt_tokens"])
        self.assertEqual(t["predicted_n"], usage["completion_tokens"])
        self.assertIn(p["place"], ("local", "cache"))
        self.assertFalse(p["fallback"])
        self.assertEqual(p["n_cached"] + p["n_remote"] + p["n_local"], usage["prompt_tokens"])

    def test_a_worker_that_cannot_be_had_is_the_request_s_fault(self):
        wish = dict(prompt="Once", max_tokens=1, prefill={"where": "remote", "policy": "fail"})
        status, _, data = self.server.ask("POST", TEXT, wish)
        self.assertEqual((status, json.loads(data)["error"]["param"]), (400, "prefill.where"))

    def test_the_same_seed_gives_the_same_text(self):
        ask = lambda seed: self.server.post(TEXT, dict(prompt="Once", seed=seed, max_tokens=20,
                                                      temperature=1))["choices"][0]["text"]
        self.assertEqual(ask(7), ask(7))
        self.assertEqual(len({ask(i) for i in range(5)}), 5)

    def test_greedy_ignores_the_seed_and_n_counts(self):
        a = self.server.post(TEXT, dict(prompt="x", n=3, temperature=0, max_tokens=5))
        self.assertEqual([c["index"] for c in a["choices"]], [0, 1, 2])
        self.assertEqual(len({c["text"] for c in a["choices"]}), 1)
        b = self.server.post(TEXT, dict(prompt="x", n=3, temperature=2, seed=1, max_tokens=12,
                                        return_tokens=True))
        self.assertEqual(len({c["text"] for c in b["choices"]}), 3)
        # A token that ends the text is drawn but not counted.
        self.assertEqual(b["usage"]["completion_tokens"],
                         sum(len(c["tokens"]) for c in b["choices"]))

    def test_many_prompts(self):
        a = self.server.post(TEXT, dict(prompt=["a", "b b", "c"], max_tokens=2, temperature=0))
        one = self.server.post(TEXT, dict(prompt="b b", max_tokens=2, temperature=0))
        self.assertEqual(a["choices"][1]["text"], one["choices"][0]["text"])
        many = self.server.post(NATIVE, dict(prompt=["a", "b b"], n_predict=2, temperature=0))
        self.assertEqual([m["index"] for m in many], [0, 1])
        self.assertEqual(many[1]["content"], one["choices"][0]["text"])

    def test_a_prompt_of_tokens(self):
        tokens = self.server.post("/tokenize", {"content": "one two three", "add_special": True})
        a = self.server.post(TEXT, dict(prompt=tokens["tokens"], max_tokens=6, temperature=0))
        b = self.server.post(TEXT, dict(prompt="one two three", max_tokens=6, temperature=0))
        self.assertEqual(a["choices"], b["choices"])

    def test_stop_strings_end_and_are_left_out(self):
        whole = self.server.post(NATIVE, dict(prompt="abc", n_predict=40, temperature=0,
                                              ignore_eos=True))["content"]
        middle = whole[len(whole) // 2:len(whole) // 2 + 2]
        a = self.server.post(NATIVE, dict(prompt="abc", n_predict=40, temperature=0,
                                          ignore_eos=True, stop=["never there", middle]))
        self.assertEqual(a["content"], whole[:whole.index(middle)])
        self.assertEqual((a["stop_type"], a["stopping_word"]), ("word", middle))
        b = self.server.post(CHAT, chat("abc", max_tokens=3, temperature=0, stop=None))
        self.assertEqual(b["usage"]["completion_tokens"], 3)

    def test_echo_and_empty_answers(self):
        a = self.server.post(TEXT, dict(prompt="one two", echo=True, max_tokens=0))
        self.assertEqual(a["choices"][0]["text"], "one two")
        self.assertEqual(a["usage"]["completion_tokens"], 0)
        self.assertEqual(a["timings"]["predicted_per_second"], 0)

    def test_logprobs(self):
        a = self.server.post(CHAT, chat("hi", max_tokens=4, temperature=0, logprobs=True,
                                        top_logprobs=3))
        content = a["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), a["usage"]["completion_tokens"])
        for token in content:
            self.assertEqual(len(token["top_logprobs"]), 3)
            self.assertEqual(token["logprob"], token["top_logprobs"][0]["logprob"])
            values = [t["logprob"] for t in token["top_logprobs"]]
            self.assertEqual(values, sorted(values, reverse=True))
            self.assertLessEqual(values[0], 0)
        raw = b"".join(bytes(t["bytes"]) for t in content)
        self.assertEqual(raw.decode(errors="replace"), a["choices"][0]["message"]["content"])
        b = self.server.post(TEXT, dict(prompt="hi", max_tokens=4, temperature=0, logprobs=2))
        old = b["choices"][0]["logprobs"]
        self.assertEqual(len(old["tokens"]), len(old["text_offset"]))
        self.assertEqual(old["text_offset"][0], 0)

    def test_logit_bias_bans_and_forces(self):
        token = self.server.post("/tokenize", {"content": " the"})["tokens"][0]
        body = dict(prompt="x", n_predict=6, temperature=0, return_tokens=True, ignore_eos=True)
        forced = self.server.post(NATIVE, dict(body, logit_bias={str(token): 1000}))["tokens"]
        self.assertEqual(forced, [token] * 6)
        free = self.server.post(NATIVE, body)["tokens"]
        banned = self.server.post(NATIVE, dict(body, logit_bias=[[free[0], False]]))["tokens"]
        self.assertNotIn(free[0], banned)

    def test_the_context_ends_an_answer(self):
        a = self.server.post(NATIVE, dict(prompt="x " * 400, n_predict=-1, ignore_eos=True,
                                          temperature=0))
        self.assertEqual((a["stop_type"], a["truncated"]), ("limit", True))
        self.assertEqual(a["tokens_evaluated"] + a["tokens_predicted"], 1024)

    def test_continuing_the_assistant(self):
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Hello wor"}]
        a = self.server.post(CHAT, dict(messages=messages, max_tokens=5, temperature=0))
        b = self.server.post(CHAT, dict(messages=messages, max_tokens=5, temperature=0, echo=True))
        text = a["choices"][0]["message"]["content"]
        self.assertEqual(b["choices"][0]["message"]["content"], "Hello wor" + text)
        prompt = self.server.post("/apply-template", dict(messages=messages))["prompt"]
        self.assertTrue(prompt.endswith("<|im_start|>assistant\nHello wor"), prompt)

    def test_a_second_turn_finds_its_prefix(self):
        text = "a longer prompt with a few words in it, " * 10
        first = self.server.post(CHAT, chat(text, max_tokens=4, temperature=0))
        again = self.server.post(CHAT, chat(text, max_tokens=4, temperature=0))
        self.assertEqual(again["choices"], first["choices"])
        self.assertGreaterEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"],
                                again["usage"]["prompt_tokens"] - 33)
        cold = self.server.post(CHAT, chat(text, max_tokens=4, temperature=0, cache_prompt=False))
        self.assertEqual(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(cold["choices"], first["choices"])


class Streams(WithServer):
    def test_chat(self):
        found = self.server.stream(CHAT, chat("hi", max_tokens=8, temperature=0))
        self.assertEqual(found[-1], "[DONE]")
        found = found[:-1]
        self.assertEqual(found[0]["choices"][0]["delta"], {"role": "assistant", "content": None})
        self.assertEqual(len({(e["id"], e["created"], e["model"]) for e in found}), 1)
        last = found[-1]
        self.assertEqual(last["choices"][0]["delta"], {})
        self.assertIn(last["choices"][0]["finish_reason"], ("stop", "length"))
        self.assertIn("timings", last)
        self.assertIn("prefill", last)
        self.assertFalse(any("usage" in e for e in found))
        self.assertTrue(all(e["choices"][0]["finish_reason"] is None for e in found[:-1]))

    def test_usage_when_asked(self):
        body = chat("hi", max_tokens=3, stream_options={"include_usage": True})
        found = self.server.stream(CHAT, body)
        self.assertEqual(found[-2]["choices"], [])
        self.assertEqual(found[-2]["usage"]["completion_tokens"], 3)
        self.assertEqual(sum("usage" in e for e in found[:-1]), 1)

    def test_the_native_stream_has_no_done(self):
        found = self.server.stream(NATIVE, dict(prompt="a", n_predict=4))
        self.assertTrue(all(e["stop"] is False for e in found[:-1]))
        self.assertTrue(found[-1]["stop"])
        self.assertEqual(found[-1]["tokens_predicted"], 4)

    def test_progress(self):
        body = dict(prompt="word " * 300, n_predict=1, return_progress=True, cache_prompt=False)
        steps = [e["prompt_progress"] for e in self.server.stream(NATIVE, body)
                 if "prompt_progress" in e]
        self.assertGreaterEqual(len(steps), 2)
        self.assertEqual(steps[0]["processed"], steps[0]["cache"])
        self.assertEqual(steps[-1]["total"], steps[-1]["processed"])
        self.assertEqual(steps, sorted(steps, key=lambda s: s["processed"]))

    def test_choices_are_told_apart(self):
        body = dict(prompt="a", n=3, temperature=1.5, seed=5, max_tokens=6)
        whole = self.server.post(TEXT, body)
        found = self.server.stream(TEXT, body)
        for i in range(3):
            self.assertEqual(text_of(found, i), whole["choices"][i]["text"])


class Errors(WithServer):
    def check(self, want, method, path, body=None, says="", param=None, headers=None):
        status, error = self.server.error(method, path, body, headers)
        self.assertEqual((status, error["code"]), (want, want), error)
        self.assertIn(says, error["message"])
        self.assertEqual(error["param"], param, error)
        return error

    def test_paths_and_methods(self):
        self.check(404, "GET", "/nowhere")
        self.check(404, "POST", "/v1/embeddings", {})
        self.check(405, "GET", CHAT)
        self.check(405, "POST", "/v1/models", {})
        _, headers, _ = self.server.ask("GET", CHAT)
        self.assertEqual(headers["Allow"], "POST")

    def test_bodies(self):
        self.check(400, "POST", CHAT, b"", says="empty")
        self.check(400, "POST", CHAT, b"{", says="JSON")
        self.check(400, "POST", CHAT, b"[]", says="object")
        self.check(400, "POST", CHAT, b'{"messages":' + b"[" * 1000 + b"]" * 1000 + b"}",
                   says="deeper")
        self.check(400, "POST", CHAT, {}, param="messages")
        self.check(400, "POST", TEXT, {}, param="prompt")

    def test_fields(self):
        for name, value in [("temperature", "x"), ("top_p", 2), ("max_tokens", -5), ("n", 99),
                            ("stop", 1), ("stream", "y"), ("tools", [{"type": "function"}]),
                            ("response_format", {"type": "json_object"}), ("logit_bias", 1),
                            ("grammar", "root ::= x"), ("typical_p", 0.5), ("seed", "s"), ("top_k", 1.5)]:
            self.check(400, "POST", CHAT, chat("x", **{name: value}), param=name, says=name)
        self.check(400, "POST", TEXT, dict(prompt=[10 ** 6 + 5]), param="prompt", says="vocabulary")
        self.check(400, "POST", "/detokenize", dict(tokens=[-1]), param="tokens")

    def test_null_and_unknown_fields_are_fine(self):
        names = ["temperature", "top_p", "n", "stop", "max_tokens", "tools", "seed", "logit_bias",
                 "response_format", "stream_options", "user", "logprobs", "top_logprobs"]
        self.server.post(CHAT, chat("x", **dict.fromkeys(names), max_completion_tokens=1,
                                    store=True, metadata={"a": 1}, typical_p=1, other=2 ** 63))
        self.server.post(CHAT, chat("x", tools=[], max_tokens=1))

    def test_a_prompt_that_does_not_fit(self):
        for path, body in (CHAT, chat("x " * 3000)), (TEXT, dict(prompt="x " * 3000, stream=True)):
            error = self.check(400, "POST", path, body, says="context_length_exceeded")
            self.assertEqual(error["type"], "exceed_context_size_error")
            self.assertGreater(error["n_prompt_tokens"], 1024)
            self.assertEqual(error["n_ctx"], 1024)

    def test_foreign_names_and_pages(self):
        self.check(403, "GET", "/v1/models", headers={"Host": "evil.example"})
        self.check(403, "POST", NATIVE, {"prompt": "x"}, headers={"Origin": "http://evil.example"})
        allow = "Access-Control-Allow-Origin"
        ask = lambda origin: self.server.ask("OPTIONS", CHAT, headers={"Origin": origin})
        self.assertEqual(ask("http://localhost:99")[1][allow], "http://localhost:99")
        self.assertNotIn(allow, ask("http://evil.example")[1])

    def test_not_http(self):
        for junk in (b"\r\n\r\n", b"\0" * 200, b"GET / HTTP/9.9\r\n\r\n", b"GET\r\n\r\n",
                     b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                     b"POST /completion HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"):
            try:
                self.server.raw(junk, timeout=0.5)
            except OSError:
                pass                    # it may close in the middle of what is sent
        self.assertEqual(self.server.get("/health"), {"status": "ok"})


class Keys(WithServer):
    OPTIONS = ["-c", "256", "--api-key", "one,two"]

    def test_keys(self):
        for headers in ({}, {"Authorization": "Bearer three"}, {"X-Api-Key": "onetwo"}):
            status, error = self.server.error("GET", "/v1/models", headers=headers)
            self.assertEqual((status, error["type"]), (401, "authentication_error"))
            self.assertNotIn("two", json.dumps(error))
        for headers in ({"Authorization": "Bearer one"}, {"X-Api-Key": "two"}):
            self.assertEqual(self.server.ask("GET", "/v1/models", headers=headers)[0], 200)
        for path in "/health", "/", "/app.js":
            self.assertEqual(self.server.ask("GET", path)[0], 200)
        self.assertNotIn("one,two", self.server.text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
