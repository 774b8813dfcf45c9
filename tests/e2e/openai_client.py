"""The real `openai` Python client against `baton serve`.

Runs when the package can be imported, or makes itself an environment with it when BATON_OPENAI=1
(a venv beside the test's build folder, by pip); else it is skipped.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import venv

from harness import Server, chat, model, skip


def import_openai():
    try:
        import openai
        return openai
    except ImportError:
        pass
    if os.environ.get("BATON_OPENAI") != "1" or os.environ.get("BATON_OPENAI_INSIDE"):
        skip("the openai package is not installed (BATON_OPENAI=1 fetches it)")
    folder = pathlib.Path(os.environ.get("BATON_E2E_DIR", tempfile.gettempdir()), "openai-venv")
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        if subprocess.run([python, "-m", "pip", "install", "--quiet", "openai"]).returncode != 0:
            skip("pip could not fetch the openai package")
    model()                                  # made here: the new environment has no numpy
    os.environ["BATON_OPENAI_INSIDE"] = "1"
    os.execv(python, [str(python), *sys.argv])


openai = import_openai()


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("-c", "2048", "-np", "4", "--api-key", "k3y", "-a", "test-model")
        cls.client = cls.connect("k3y")

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__(None, None)

    @classmethod
    def connect(cls, key, **more):
        return openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key=key, **more)

    def chat(self, text="Tell me about relays.", **more):
        return self.client.chat.completions.create(
            model="test-model", **chat(text), **(dict(max_tokens=16, seed=3) | more))

    def complete(self, prompt="Once upon a time", **more):
        return self.client.completions.create(
            model="test-model", prompt=prompt, **(dict(max_tokens=16, seed=3) | more))

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["test-model"])
        self.assertEqual(self.client.models.retrieve("test-model").id, "test-model")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("another")

    def test_chat(self):
        a = self.chat()
        self.assertEqual(a.choices[0].message.role, "assistant")
        self.assertIsInstance(a.choices[0].message.content, str)
        self.assertIn(a.choices[0].finish_reason, ("stop", "length"))
        self.assertEqual(a.usage.total_tokens, a.usage.prompt_tokens + a.usage.completion_tokens)
        self.assertGreaterEqual(a.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertIn("place", a.prefill)

    def test_chat_streamed_says_the_same(self):
        for seed in range(10):
            whole = self.chat(seed=seed, temperature=1.2)
            text, finish, usage = "", None, None
            for chunk in self.chat(seed=seed, temperature=1.2, stream=True,
                                   stream_options={"include_usage": True}):
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    finish = choice.finish_reason or finish
            self.assertEqual(text, whole.choices[0].message.content)
            self.assertEqual(finish, whole.choices[0].finish_reason)
            self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_completion_streamed_says_the_same(self):
        for seed in range(10):
            whole = self.complete(seed=seed)
            parts = [chunk.choices[0].text for chunk in self.complete(seed=seed, stream=True)]
            self.assertEqual("".join(parts), whole.choices[0].text)

    def test_the_accumulating_stream(self):
        with self.client.chat.completions.stream(model="test-model", max_tokens=8, seed=1,
                                                 **chat("hi")) as stream:
            # get_final_completion() refuses answers that a limit has cut.
            deltas = [event.delta for event in stream if event.type == "content.delta"]
            final = stream.current_completion_snapshot
        whole = self.chat("hi", max_tokens=8, seed=1).choices[0]
        self.assertEqual("".join(deltas), whole.message.content)
        self.assertEqual(final.choices[0].message.content, whole.message.content)
        self.assertEqual(final.choices[0].finish_reason, whole.finish_reason)

    def test_seed_and_lengths(self):
        self.assertEqual(self.chat(temperature=1).choices, self.chat(temperature=1).choices)
        for n in 1, 2, 7:
            a = self.chat(max_tokens=n, extra_body={"ignore_eos": True})
            self.assertEqual((a.usage.completion_tokens, a.choices[0].finish_reason), (n, "length"))
            a = self.chat(max_tokens=openai.NOT_GIVEN, max_completion_tokens=n,
                          extra_body={"ignore_eos": True})
            self.assertEqual(a.usage.completion_tokens, n)

    def test_stop(self):
        whole = self.complete(max_tokens=40, temperature=0).choices[0].text
        middle = whole[len(whole) // 2:][:3]
        for stop in middle, [middle, "never there"]:
            a = self.complete(max_tokens=40, temperature=0, stop=stop)
            self.assertEqual(a.choices[0].text, whole[:whole.index(middle)])
            self.assertEqual(a.choices[0].finish_reason, "stop")

    def test_choices_and_logprobs(self):
        a = self.chat(n=3, temperature=1.5, logprobs=True, top_logprobs=2)
        self.assertEqual([c.index for c in a.choices], [0, 1, 2])
        for token in a.choices[0].logprobs.content:
            self.assertEqual(len(token.top_logprobs), 2)
        b = self.complete(logprobs=2, max_tokens=4, extra_body={"ignore_eos": True})
        self.assertEqual(len(b.choices[0].logprobs.token_logprobs), 4)

    def test_errors_have_their_classes(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=-1)
        self.assertEqual((caught.exception.status_code, caught.exception.param),
                         (400, "temperature"))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat("word " * 3000)
        self.assertEqual(caught.exception.type, "exceed_context_size_error")
        self.assertIn("context_length_exceeded", str(caught.exception))
        with self.assertRaises(openai.BadRequestError):
            self.chat(tools=[{"type": "function", "function": {"name": "f"}}])
        with self.connect("wrong") as other, self.assertRaises(openai.AuthenticationError):
            other.models.list()
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model="test-model", input="x")

    def test_closing_a_stream_cancels(self):
        stream = self.chat(stream=True, max_tokens=1500, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.idle_within(1.0)

    def test_a_timeout_cancels(self):
        # Four long answers, so that they take longer than the time-out on fast machines too.
        with self.connect("k3y", timeout=0.05, max_retries=0) as hasty:
            with self.assertRaises(openai.APITimeoutError):
                hasty.completions.create(model="m", prompt="x", max_tokens=1900, n=4,
                                         extra_body={"ignore_eos": True})
        self.idle_within(1.0)

    def idle_within(self, seconds):
        until = time.monotonic() + seconds
        while self.metric("llamacpp:requests_processing") > 0:
            self.assertLess(time.monotonic(), until, "the request still runs")
            time.sleep(0.02)

    def metric(self, name):
        _, _, data = self.server.ask("GET", "/metrics", headers={"X-Api-Key": "k3y"})
        return next(float(line.split()[1]) for line in data.decode().splitlines()
                    if line.startswith(name + " "))

    def test_many_threads(self):
        answers = []
        threads = [threading.Thread(target=lambda i=i: answers.append(
            (i % 4, self.chat(str(i % 4), temperature=0, max_tokens=6).choices[0].message.content)))
            for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(answers), 16)
        self.assertEqual(len(set(answers)), 4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
