"""Many requests: what leaves must leave nothing, what repeats must repeat, nothing may crash.

Numbers that the project promises: 1,000 requests keep the memory flat, 200 cancelled ones leave no
thread and no descriptor, concat(stream) equals the whole answer for 200 random requests.
"""
import http.client
import json
import os
import random
import socket
import threading
import time
import unittest

from harness import Server, chat, has_sanitizer, text_of

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
SEED = int(os.environ.get("BATON_SEED", "1"))
SCALE = float(os.environ.get("BATON_STRESS", "1"))


def times(n):
    return max(4, int(n * SCALE))


class WithServer(unittest.TestCase):
    OPTIONS = ["-c", "4096"]

    def setUp(self):
        self.server = Server(*self.OPTIONS)
        self.random = random.Random(SEED)

    def tearDown(self):
        self.server.__exit__(None, None)


class Streams(WithServer):
    def words(self, most):
        some = ["relay", "runner", "baton", "été", "\U0001F3C3", "日本", "a\n\nb", "0", "the", "\t"]
        return " ".join(self.random.choice(some) for _ in range(self.random.randint(1, most)))

    def body(self):
        r = self.random
        body = dict(prompt=self.words(40), seed=r.randrange(1 << 31), max_tokens=r.randint(0, 40),
                    temperature=r.choice([0, 0.7, 1, 1.5, 3]), top_k=r.choice([0, 1, 40]),
                    top_p=r.choice([1, 0.9]), ignore_eos=r.random() < 0.5)
        if r.random() < 0.5:
            body["stop"] = [r.choice(["a", "e", " t", "\n", "\ufffd", "zz", "!?", "é"])
                            for _ in range(r.randint(1, 4))]
        if r.random() < 0.2:
            body["n"] = r.randint(2, 4)
        if r.random() < 0.2:
            body["logprobs"] = r.randint(0, 3)
        return body

    def test_concat_of_a_stream_is_the_whole_answer(self):
        stopped = 0
        for i in range(times(200)):
            body = self.body()
            whole = self.server.post(TEXT, body)
            found = self.server.stream(TEXT, body)
            self.assertEqual(found[-1], "[DONE]")
            for choice in whole["choices"]:
                at = choice["index"]
                self.assertEqual(text_of(found, at), choice["text"], (i, body))
                ends = [c["finish_reason"] for e in found[:-1] for c in e["choices"]
                        if c["index"] == at and c["finish_reason"]]
                self.assertEqual(ends, [choice["finish_reason"]], (i, body))
                for stop in body.get("stop", []):
                    self.assertNotIn(stop, choice["text"], (i, body))
                stopped += choice["finish_reason"] == "stop"
        self.assertGreater(stopped, 0)

    def test_every_small_length_is_answered(self):
        for n in range(1, 41):
            a = self.server.post(CHAT, chat("héllo \U0001F600", max_tokens=n, temperature=2, seed=n,
                                            ignore_eos=True))
            self.assertEqual(a["choices"][0]["finish_reason"], "length")
            self.assertEqual(a["usage"]["completion_tokens"], n)


class Leaving(WithServer):
    # Room for answers that last far longer than a test.
    OPTIONS = ["-c", "65536", "-np", "2"]

    def begin(self, body):
        """Sends a request; nobody reads the answer."""
        data = json.dumps(body).encode()
        s = socket.create_connection(("127.0.0.1", self.server.port))
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
                  % len(data) + data)
        return s

    def leave(self, body, seconds):
        """Closes the connection after a while; any moment has to do."""
        s = self.begin(body)
        time.sleep(seconds)
        s.close()

    def wait_metric(self, name, value, seconds=60):
        until = time.monotonic() + seconds
        while self.server.metrics()[name] != value:
            self.assertLess(time.monotonic(), until, name)

    def test_cancelled_requests_leave_nothing(self):
        for stream in False, True:                      # the first of each kind warm things up
            self.leave(dict(prompt="x " * 100, max_tokens=20000, stream=stream), 0.05)
        self.server.wait_idle()
        before = self.settled()
        for i in range(times(200)):
            body = dict(prompt="x " * self.random.choice([1, 100, 1200]), max_tokens=20000,
                        ignore_eos=True, stream=i % 2 == 0, n=self.random.choice([1, 2]))
            self.leave(body, self.random.choice([0, 0.001, 0.01, 0.05]))
        m = self.server.wait_idle()
        self.assertEqual(m["baton_kv_pages_used"], m["baton_kv_pages_cached"])
        after = self.settled(before)
        if before:
            self.assertEqual(after[:2], before[:2], "threads, descriptors")
        self.server.post(TEXT, dict(prompt="still here", max_tokens=2))

    def settled(self, wanted=None):
        """Threads and descriptors, once connections have been taken apart."""
        for _ in range(100):
            time.sleep(0.05)
            now = self.server.resources()
            if wanted and now and now[:2] == wanted[:2]:
                break
        return now

    def test_a_waiting_request_is_freed_quickly(self):
        """The queue is left at once, while those that compute go on."""
        busy = [self.begin(dict(prompt="y", max_tokens=30000, ignore_eos=True, stream=True))
                for _ in range(2)]
        self.wait_metric("llamacpp:requests_processing", 2)
        for stream in False, True:
            waiting = self.begin(dict(prompt="x " * 50, max_tokens=20000, stream=stream))
            self.wait_metric("llamacpp:requests_deferred", 1)
            waiting.close()
            self.wait_metric("llamacpp:requests_deferred", 0)
        for connection in busy:
            connection.close()
        self.server.wait_idle()

    def test_sigterm_lets_answers_finish(self):
        found = []
        thread = threading.Thread(target=lambda: found.extend(self.server.stream(
            TEXT, dict(prompt="y", max_tokens=1500, ignore_eos=True))))
        thread.start()
        self.wait_metric("llamacpp:requests_processing", 1)
        self.server.process.terminate()
        thread.join()
        self.assertEqual(found[-1], "[DONE]")
        self.assertEqual(found[-2]["timings"]["predicted_n"], 1500)
        self.assertEqual(self.server.process.wait(timeout=20), 0)

    def test_a_second_sigterm_does_not_wait(self):
        answers = []
        thread = threading.Thread(target=lambda: answers.append(self.server.ask(
            "POST", TEXT, dict(prompt="y", max_tokens=60000, ignore_eos=True, stream=True))))
        thread.start()
        self.wait_metric("llamacpp:requests_processing", 1)
        begun = time.monotonic()
        self.server.process.terminate()
        self.server.wait_for("^stopping")
        self.server.process.terminate()
        self.assertEqual(self.server.process.wait(timeout=20), 0)
        self.assertLess(time.monotonic() - begun, 5)
        thread.join()
        self.assertIn(b"shutting down", answers[0][2])

    def test_sigterm_while_loading_ends_with_0(self):
        with Server(ready=False) as server:
            server.process.terminate()
            self.assertEqual(server.process.wait(timeout=20), 0)


class Many(WithServer):
    OPTIONS = ["-c", "2048", "-np", "4"]

    def test_memory_is_flat_over_a_thousand_requests(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)

        def some(n):
            for i in range(n):
                body = dict(prompt=f"request {self.random.randrange(1000)} " * self.random.randint(
                    1, 20), max_tokens=3, n=1 + i % 2, logprobs=i % 3, stream=i % 4 == 0)
                connection.request("POST", TEXT, json.dumps(body))
                answer = connection.getresponse()
                self.assertEqual(answer.status, 200)
                answer.read()

        some(times(300))                                 # the prefix cache fills up
        before = self.server.resources()
        some(times(1000))
        after = self.server.resources()
        connection.close()
        if before and not has_sanitizer():
            # A leak of one small object (100 bytes) per request would be 100 KiB.
            self.assertLess(after[2] - before[2], 1024, "KiB more resident")
        if before:
            self.assertEqual(after[:2], before[:2])

    def test_sixty_four_clients_at_once(self):
        failures, texts = [], {}

        def client(i):
            try:
                for k in range(3):
                    body = dict(prompt=f"client {i % 8}", max_tokens=6, temperature=0)
                    if (i + k) % 2:
                        texts.setdefault(i % 8, set()).add(text_of(self.server.stream(TEXT, body)))
                    else:
                        texts.setdefault(i % 8, set()).add(
                            self.server.post(TEXT, body)["choices"][0]["text"])
            except Exception as e:                       # a thread must not fail unseen
                failures.append(e)

        threads = [threading.Thread(target=client, args=(i,)) for i in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual({k: len(v) for k, v in texts.items()}, dict.fromkeys(range(8), 1))

    def test_a_full_queue_says_when_to_come_back(self):
        with Server("-c", "1024", "-np", "1", "--queue", "1") as server:
            answers = []

            def client():
                status, headers, data = server.ask("POST", TEXT, dict(
                    prompt="x", max_tokens=600, ignore_eos=True))
                answers.append((status, headers.get("Retry-After")))

            threads = [threading.Thread(target=client) for _ in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual({status for status, _ in answers}, {200, 429})
            self.assertTrue(all((status == 429) == (after is not None) for status, after in answers))


class Nonsense(WithServer):
    def value(self, depth=0):
        r = self.random
        kind = r.randrange(9 if depth < 3 else 7)
        if kind == 7:
            return [self.value(depth + 1) for _ in range(r.randrange(4))]
        if kind == 8:
            return {self.name(): self.value(depth + 1) for _ in range(r.randrange(4))}
        return [None, True, False, r.choice([0, 1, -1, 3, 2 ** 31, -2 ** 63, 2 ** 63 - 1]),
                r.choice([0.5, -0.0, 1e308, -1e-300, 7.0]),
                r.choice(["", "x", "\0", "text", "auto", "\U0001F600" * 3, "<|im_end|>"]),
                r.randrange(1100)][kind]

    def name(self):
        return self.random.choice([
            "prompt", "messages", "role", "content", "type", "text", "stream", "stream_options",
            "include_usage", "max_tokens", "max_completion_tokens", "n_predict", "n", "stop",
            "temperature", "top_p", "top_k", "min_p", "seed", "logit_bias", "logprobs",
            "top_logprobs", "n_probs", "echo", "suffix", "best_of", "tools", "response_format",
            "prefill", "where", "policy", "ignore_eos", "cache_prompt", "return_progress",
            "return_tokens", "timings_per_token", "sse_ping_interval", "tokens", "with_pieces",
            "add_special", "parse_special", "repeat_penalty", "presence_penalty", "user", "x"])

    def body(self):
        r = self.random
        body = {self.name(): self.value() for _ in range(r.randrange(8))}
        if r.random() < 0.6:
            body["prompt"] = r.choice(["hi", [1, 2, 3], ["a", "b"], [[1], "x"]])
        if r.random() < 0.6:
            body["messages"] = [{"role": "user", "content": "hi"}]
        for name in "max_tokens", "max_completion_tokens", "n_predict":
            if body.get(name) is None or (isinstance(body[name], (int, float)) and
                                          not 0 <= body[name] <= 8):
                body[name] = 4                           # long answers test nothing here
        data = json.dumps(body).encode()
        if r.random() < 0.2:
            data = bytearray(data)
            for _ in range(r.randint(1, 4)):
                data[r.randrange(len(data))] = r.randrange(256)
        return bytes(data)

    def test_random_bodies_are_answered_or_refused(self):
        paths = [CHAT, TEXT, NATIVE, "/tokenize", "/detokenize", "/apply-template"]
        seen = set()
        for i in range(times(600)):
            path, body = self.random.choice(paths), self.body()
            status, headers, data = self.server.ask("POST", path, body)
            self.assertIn(status, (200, 400), (path, body, data[:300]))
            if headers["Content-Type"].startswith("application/json"):
                json.loads(data)
            if status == 400:
                self.assertTrue(json.loads(data)["error"]["message"])
            seen.add((path, status))
        self.assertGreater(len(seen), 8)
        self.assertEqual(self.server.get("/health"), {"status": "ok"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
