"""`tandem serve` as users run it, over the bundled models: what it answers, that the answers do not depend on how they are
asked for, that a client that leaves frees the engine, how it starts and ends. TANDEM_BIN is the program."""
import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import time
import unittest

from harness import PATIENCE, Server, main, post_bytes, read_until, wait_for

TANDEM = os.environ["TANDEM_BIN"]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT = "def fibonacci(n):\n"


def serve(model, *options):
    return Server(TANDEM, "serve", model, "--port", "0", *options)


def refused(*arguments):
    """(exit code, stderr without log lines) of a start that fails."""
    done = subprocess.run([TANDEM, "serve", *arguments], capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, [l for l in done.stderr.splitlines() if l.startswith("tandem: ")]


class Model:
    """The same tests for each bundled model."""
    name, flags = None, []

    @classmethod
    def setUpClass(cls):
        cls.server = serve(cls.name, "--max-model-len", "1024", *cls.flags)

    @classmethod
    def tearDownClass(cls):
        code, err = cls.server.stop(signal.SIGINT)
        assert code == 0, (code, err)

    def tearDown(self):
        wait_for(lambda: self.server.metric("requests_running") + self.server.metric("requests_waiting") == 0, "the engine to be idle")
        self.assertEqual(self.server.get("/health")[0], 200)

    def complete(self, **more):
        body = {"model": self.name, "prompt": PROMPT, "max_tokens": 32, "temperature": 0, **more}
        status, answer = self.server.post(COMPLETIONS, body)
        self.assertEqual(status, 200, answer)
        return answer

    def test_models(self):
        model = self.server.get("/v1/models")[1]["data"][0]
        self.assertEqual((model["id"], model["max_model_len"]), (self.name, 1024))

    def test_chat(self):
        messages = [{"role": "user", "content": "Write a function that adds two numbers."}]
        body = self.server.post(CHAT, {"model": self.name, "messages": messages, "max_tokens": 48, "temperature": 0})[1]
        self.assertIn("def ", body["choices"][0]["message"]["content"])
        self.assertRegex(body["system_fingerprint"], "^td-[0-9a-f]{16}$")

    def test_stream_is_the_whole(self):
        for more in ({}, {"temperature": 1, "seed": 7, "n": 3}, {"stop": ["return"], "temperature": 0.8, "seed": 1, "max_tokens": 100}):
            whole = self.complete(**more)
            request = {"prompt": PROMPT, "max_tokens": 32, "temperature": 0, "stream_options": {"include_usage": True}, **more}
            parts = self.server.stream(COMPLETIONS, request)
            self.assertEqual(parts.pop()["usage"], whole["usage"])
            for choice in whole["choices"]:
                own = [p["choices"][0] for p in parts if p["choices"][0]["index"] == choice["index"]]
                self.assertEqual("".join(p["text"] for p in own), choice["text"])
                self.assertEqual(own[-1]["finish_reason"], choice["finish_reason"])

    def test_the_command_line_says_the_same(self):
        run = subprocess.run([TANDEM, "run", self.name, "-p", PROMPT, "-n", "32", "--temperature", "0", "--json", *self.flags], capture_output=True,
                             text=True, timeout=PATIENCE, check=True)
        run = json.loads(run.stdout)
        body = self.complete()
        self.assertEqual(body["usage"]["token_sha"], run["token_sha"])
        self.assertEqual(body["choices"][0]["text"], run["text"])

    def test_same_tokens_whatever_runs_beside(self):
        asks = [{"temperature": t, "seed": seed, "prompt": p} for t in (0, 0.7, 1.3) for seed in (1, 2)
                for p in (PROMPT, "class Stack:\n    def", "import os\n" * 40)]
        alone = [self.complete(**a)["usage"]["token_sha"] for a in asks]
        with concurrent.futures.ThreadPoolExecutor(len(asks)) as pool:
            together = list(pool.map(lambda a: self.complete(**a)["usage"]["token_sha"], asks))
        self.assertEqual(alone, together)
        self.assertEqual(self.complete(**asks[0], speculation=False)["usage"]["token_sha"], alone[0])

    def test_seeds(self):
        first = self.complete(temperature=1)
        self.assertEqual(self.complete(temperature=1, seed=first["seed"])["usage"]["token_sha"], first["usage"]["token_sha"])
        self.assertNotEqual(self.complete(temperature=1)["usage"]["token_sha"], first["usage"]["token_sha"])
        many = self.complete(temperature=1, seed=first["seed"], n=3)["choices"]
        self.assertEqual(many[0]["text"], first["choices"][0]["text"])
        self.assertEqual(len({c["text"] for c in many}), 3)

    def test_stop_string_is_a_beginning_of_the_text(self):
        text = self.complete(max_tokens=64)["choices"][0]["text"]
        for at in range(5, 25, 5):
            stop = text[at:at + 4]
            body = self.complete(max_tokens=64, stop=[stop])
            self.assertEqual(body["choices"][0]["text"], text[:text.index(stop)])
            self.assertEqual(body["choices"][0]["finish_reason"], "stop")

    def test_scoring_gives_the_logprobs_of_generation(self):
        """Prefill and decode are the same arithmetic: equal to the last digit."""
        made = self.complete(logprobs=3, max_tokens=12)["choices"][0]
        ids = self.server.post("/tokenize", {"prompt": PROMPT})[1]["tokens"]
        n = len(ids)
        names = self.server.post("/tokenize", {"prompt": PROMPT + made["text"], "return_token_strs": True})[1]
        if names["token_strs"][n:] != made["logprobs"]["tokens"]:
            self.skipTest("the text is not cut into the same tokens")
        scored = self.complete(prompt=names["tokens"], echo=True, logprobs=3, max_tokens=0)["choices"][0]["logprobs"]
        self.assertEqual(scored["token_logprobs"][n:], made["logprobs"]["token_logprobs"])
        self.assertEqual(scored["top_logprobs"][n:], made["logprobs"]["top_logprobs"])
        for token, value, top in zip(made["logprobs"]["tokens"], made["logprobs"]["token_logprobs"], made["logprobs"]["top_logprobs"]):
            self.assertLessEqual(value, 0)
            self.assertEqual(max(top.values()), value)  # greedy
            self.assertEqual(top[token], value)

    def test_harnesses_score_lists_of_tokens(self):
        """As lm-evaluation-harness asks: batches of token lists, echo, logprobs 1, max_tokens 1; it leaves the last token out."""
        texts = [PROMPT, "x = 1\ny", "é日本 #"]
        lists = [self.server.post("/tokenize", {"prompt": t, "add_special_tokens": False})[1]["tokens"] for t in texts]
        ask = {"max_tokens": 1, "echo": True, "logprobs": 1}
        batch = sorted(self.complete(prompt=lists, **ask)["choices"], key=lambda c: c["index"])
        alone = [self.complete(prompt=[ids], **ask)["choices"][0] for ids in lists]
        self.assertEqual([c["logprobs"] for c in batch], [c["logprobs"] for c in alone])
        for choice, ids, text in zip(batch, lists, texts):
            l = choice["logprobs"]
            self.assertTrue(choice["text"].startswith(text))
            self.assertTrue(all(len(l[k]) == len(ids) + 1 for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")))
            self.assertEqual((l["token_logprobs"][0], l["top_logprobs"][0], l["text_offset"][0]), (None, None, 0))
            for token, p, top in zip(l["tokens"][1:], l["token_logprobs"][1:], l["top_logprobs"][1:]):
                self.assertEqual(top[token], p)  # the prompt's own token is among them
                self.assertTrue(p < 0 and max(top.values()) >= p and len(top) <= 2)

    def test_parameters_do_what_they_say(self):
        token = self.server.post("/tokenize", {"prompt": "x"})[1]["tokens"][0]
        body = self.complete(logit_bias={str(token): 100}, max_tokens=4)
        self.assertEqual(body["choices"][0]["text"], "xxxx")
        self.assertEqual(self.complete(temperature=1.5, top_k=1)["usage"]["token_sha"], self.complete()["usage"]["token_sha"])
        self.assertEqual(self.complete(temperature=1.5, min_p=1)["usage"]["token_sha"], self.complete()["usage"]["token_sha"])
        long = self.complete(ignore_eos=True, max_tokens=300)
        self.assertEqual((long["usage"]["completion_tokens"], long["choices"][0]["finish_reason"]), (300, "length"))

    def test_context(self):
        ids = [100] * 1000
        body = self.complete(prompt=ids, max_tokens=500, ignore_eos=True)
        self.assertEqual(body["usage"]["completion_tokens"], 24)
        status, body = self.server.post(COMPLETIONS, {"prompt": [100] * 1024})
        self.assertEqual((status, body["error"]["code"]), (400, "context_length_exceeded"))

    def test_who_leaves_frees_the_engine(self):
        for stream in (False, True):
            s = self.server.socket()
            s.sendall(post_bytes(COMPLETIONS, {"prompt": PROMPT, "ignore_eos": True, "max_tokens": 1000, "n": 8, "stream": stream}))
            if stream:
                read_until(s, b"data: ")
            wait_for(lambda: self.server.metric("requests_running") > 0, "it to run")
            s.close()
            wait_for(lambda: self.server.metric("requests_running") == 0, "it to stop", 5)
            made = self.server.metric("output_tokens_total")
            time.sleep(0.2)
            self.assertEqual(self.server.metric("output_tokens_total"), made)

    def test_more_than_there_are_slots(self):
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            shas = list(pool.map(lambda _: self.complete(max_tokens=8)["usage"]["token_sha"], range(40)))
        self.assertEqual(len(set(shas)), 1)


class TestNanoPlain(Model, unittest.TestCase):
    name = "nano-plain"


class TestNano(Model, unittest.TestCase):
    name = "nano"


class TestFp8Cache(Model, unittest.TestCase):
    """All of it again over a cache of FP8 codes, in the words of other engines' users."""
    name, flags = "nano", ["--kv-cache-dtype", "fp8_e4m3"]

    def test_it_is_another_cache(self):
        with serve(self.name, "--max-model-len", "1024") as plain:
            ask = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "logprobs": 1}
            one, other = (s.post(COMPLETIONS, ask)[1] for s in (plain, self.server))
        self.assertNotEqual(one["system_fingerprint"], other["system_fingerprint"])
        self.assertNotEqual(one["choices"][0]["logprobs"]["token_logprobs"], other["choices"][0]["logprobs"]["token_logprobs"])


class TestStart(unittest.TestCase):
    def test_port_in_use(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            code, lines = refused("nano-plain", "--port", str(s.getsockname()[1]))
            self.assertEqual((code, len(lines)), (1, 1), lines)
            self.assertIn("in use", lines[0])

    def test_open_address_needs_a_key(self):
        code, lines = refused("nano-plain", "--port", "0", "--host", "0.0.0.0")
        self.assertEqual((code, len(lines)), (2, 1), lines)
        self.assertIn("no key is set", lines[0])

    def test_no_such_model(self):
        code, lines = refused("no-such-model", "--port", "0")
        self.assertEqual((code, len(lines)), (1, 1), lines)

    def test_keys(self):
        with serve("nano-plain", "--api-key", "secret") as server:
            self.assertEqual(server.get("/v1/models")[0], 401)
            self.assertEqual(server.get("/v1/models", headers={"Authorization": "Bearer secret"})[0], 200)

    def test_served_name(self):
        with serve("nano-plain", "--served-model-name", "mine") as server:
            self.assertEqual(server.get("/v1/models")[1]["data"][0]["id"], "mine")

    def test_stop_during_a_stream(self):
        with serve("nano-plain") as server, server.socket() as s:
            n = 40 if os.environ.get("TANDEM_TEST_SLOWLY") else 300  # all are to be said within ten seconds
            s.sendall(post_bytes(COMPLETIONS, {"prompt": PROMPT, "max_tokens": n, "ignore_eos": True, "stream": True}))
            begun = read_until(s, b"data: ")
            server.process.send_signal(signal.SIGTERM)
            if b"[DONE]" not in begun:  # a quick machine may have said it all at once
                read_until(s, b"[DONE]")
            self.assertEqual(server.stop(None)[0], 0)


if __name__ == "__main__":
    main()
