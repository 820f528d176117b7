"""Drafts as clients see them: "speculation" of a request in all its forms, the same answer whoever drafted it, what timings and
/metrics tell, and a drafter that dies. TANDEM_BIN is the program, SERVE_DRAFTER the one with a drafter that goes wrong."""
import json
import os
import subprocess
import unittest

from harness import PATIENCE, ROOT, Server, main

TANDEM, SERVE_DRAFTER = os.environ["TANDEM_BIN"], os.environ["SERVE_DRAFTER"]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT = "def fibonacci(n):\n"
METHODS = ["ngram", "mtp", "dflash", "ddtree", "ddtree-spine"]
# Widths that are stated are taken as they are, so all of these draft, whatever pays.
FIXED = [{"method": "ngram", "num_speculative_tokens": 6}, {"method": "mtp", "num_speculative_tokens": 3},
         {"method": "dflash", "num_speculative_tokens": 9}, {"method": "ddtree", "tree_budget": 15},
         {"method": "ddtree-spine", "tree_budget": 20}]


def serve(model, *options):
    return Server(TANDEM, "serve", model, "--port", "0", "--max-model-len", "1024", *options)


def answer_of(body):
    """What must not depend on drafts."""
    return {key: body[key] for key in ("choices", "usage", "seed", "system_fingerprint")}


def joined(parts, is_chat):
    """The choices of a stream as those of a whole answer, and its last chunk."""
    last, choices = parts.pop(), {}
    for part in parts:
        for piece in part["choices"]:
            c = choices.setdefault(piece["index"], {"text": "", "logprobs": None, "finish_reason": None})
            c["text"] += piece["delta"].get("content") or "" if is_chat else piece["text"]
            c["finish_reason"] = piece["finish_reason"] or c["finish_reason"]
            if piece["logprobs"]:
                c["logprobs"] = c["logprobs"] or {key: [] for key in piece["logprobs"]}
                for key, values in piece["logprobs"].items():
                    if values:
                        c["logprobs"][key] += values
    return [choices[i] for i in sorted(choices)], last


def flat(choice):
    logprobs = choice["logprobs"]
    return {"text": choice["message"]["content"] if "message" in choice else choice["text"], "finish_reason": choice["finish_reason"],
            "logprobs": logprobs and {key: values or [] for key, values in logprobs.items()}}


class Nano(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve("nano")

    @classmethod
    def tearDownClass(cls):
        code, err = cls.server.stop()
        assert code == 0, (code, err)

    def ask(self, path=COMPLETIONS, **more):
        if path == COMPLETIONS:
            more.setdefault("prompt", PROMPT)
        body = {"max_tokens": 32, "temperature": 0, "seed": 7, **more}
        status, answer = self.server.post(path, body)
        self.assertEqual(status, 200, (body, answer))
        return answer

    def methods(self, **more):
        return self.ask(**more)["timings"]["methods"]


class TestForms(Nano):
    def test_one_method_alone(self):
        plain = self.ask(speculation=False)
        self.assertEqual(plain["timings"]["methods"], {})
        self.assertEqual(plain["timings"]["draft_tokens"], 0)
        for wanted in FIXED[1:]:
            answer = self.ask(speculation=wanted)
            self.assertEqual(list(answer["timings"]["methods"]), [wanted["method"]])
            self.assertEqual(answer_of(answer), answer_of(plain))
        for name in METHODS:
            self.assertLessEqual(set(self.methods(speculation=name)), {name})
        self.assertLessEqual(set(self.methods(speculation="nextn")), {"mtp"})

    def test_as_the_server_does(self):
        for value in (None, True, "auto", {}, {"method": "auto"}):
            self.assertLessEqual(set(self.methods(speculation=value)), set(METHODS))

    def test_off(self):
        for value in (False, "none", {"method": "none"}):
            self.assertEqual(self.methods(speculation=value), {})

    def test_the_width_is_taken_as_it_is(self):
        for method, key, n in [("mtp", "num_speculative_tokens", 2), ("dflash", "num_speculative_tokens", 5), ("ddtree", "tree_budget", 7)]:
            counts = self.methods(speculation={"method": method, key: n}, max_tokens=100, ignore_eos=True)[method]
            self.assertLessEqual(counts["draft_tokens"], n * counts["rounds"])
            self.assertGreater(counts["draft_tokens"], n * (counts["rounds"] - 3))  # the last rounds are cut by max_tokens
            self.assertLessEqual(len(counts["acceptance_by_depth"]), n)

    def refused(self, value, *words):
        status, answer = self.server.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 4, "speculation": value})
        self.assertEqual((status, answer.get("error", {}).get("param")), (400, "speculation"), (value, answer))
        for word in words:
            self.assertIn(word, answer["error"]["message"])

    def test_refused(self):
        self.refused("medusa", "medusa", *METHODS)
        self.refused({"method": "medusa", "tree_budget": 4}, "medusa", *METHODS)
        self.refused("x" * 1000, "xxxx", "ngram")
        self.refused("", "empty")
        for value in (1, 0.5, [], ["mtp"]):
            self.refused(value, "must be")
        self.refused({"method": "mtp", "model": "other"}, "model")
        self.refused({"method": 1}, "method must be")
        self.refused({"method": "mtp", "num_speculative_tokens": 4}, "mtp has at most 3")
        self.refused({"method": "mtp", "num_speculative_tokens": "4"}, "num_speculative_tokens must be")
        self.refused({"method": "mtp", "num_speculative_tokens": 0}, "num_speculative_tokens must be")
        self.refused({"method": "mtp", "tree_budget": 2}, "tree_budget is for trees")
        self.refused({"method": "ddtree", "tree_budget": 4, "num_speculative_tokens": 4}, "not both")
        self.refused({"num_speculative_tokens": 4}, "must name its method")
        self.refused({"method": "none", "tree_budget": 4}, "none")

    def test_null_keys_are_not_given(self):
        self.assertEqual(list(self.methods(speculation={"method": "mtp", "num_speculative_tokens": 2, "tree_budget": None})), ["mtp"])


class TestSameAnswers(Nano):
    REPEATS = "x = [1, 2, 3]\ny = [1, 2, 3]\nz = [1, 2, 3]\n"
    MESSAGES = [{"role": "user", "content": "Write a function that adds two numbers."}]
    ASKS = [
        {"logprobs": 2},
        {"prompt": REPEATS, "max_tokens": 60, "presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"prompt": REPEATS, "repetition_penalty": 1.3, "temperature": 0.8, "seed": 3, "logprobs": 0},
        {"prompt": REPEATS, "stop": ["]\n"], "max_tokens": 60},
        {"stop": ["return", "\n\n\n"], "max_tokens": 80, "include_stop_str_in_output": True, "temperature": 1, "seed": 4},
        {"n": 2, "temperature": 1, "seed": 5, "logprobs": 3, "max_tokens": 40},
        {"max_tokens": 1}, {"max_tokens": 2}, {"max_tokens": 5, "logprobs": 1},
        {"ignore_eos": True, "max_tokens": 90, "temperature": 1, "top_p": 0.9, "top_k": 20, "min_p": 0.02, "seed": 6},
        {"prompt": [PROMPT, REPEATS], "n": 2, "temperature": 0.7, "seed": 8, "echo": True, "logprobs": 1, "max_tokens": 20},
        {"path": CHAT, "messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "max_tokens": 80},
        {"path": CHAT, "messages": MESSAGES, "temperature": 1, "seed": 9, "n": 2, "max_tokens": 100, "min_tokens": 20},
    ]

    def test_same(self):
        asks = list(self.ASKS)
        ids = self.server.post("/tokenize", {"prompt": self.ask(speculation=False)["choices"][0]["text"]})[1]["tokens"]
        asks += [{"stop_token_ids": [ids[9]]}, {"stop_token_ids": [ids[9]], "min_tokens": 15, "temperature": 1, "seed": 2},
                 {"logit_bias": {str(ids[2]): -100, str(ids[5]): 4, str(ids[7]): 2.5}, "logprobs": 1, "max_tokens": 48}]
        accepted = dict.fromkeys(METHODS, 0)
        for i, ask in enumerate(asks):
            plain = self.ask(speculation=False, **ask)
            for wanted in [True, FIXED[i % 5], FIXED[(i + 2) % 5]]:
                drafted = self.ask(speculation=wanted, **ask)
                self.assertEqual(answer_of(drafted), answer_of(plain), (ask, wanted))
                for name, counts in drafted["timings"]["methods"].items():
                    accepted[name] += counts["accepted_tokens"]
            self.streamed(ask, FIXED[(i + 4) % 5], plain)
        for name in METHODS:
            self.assertGreater(accepted[name], 0, accepted)  # so there was something that could have gone wrong

    def streamed(self, ask, wanted, plain):
        body = {"prompt": PROMPT, "max_tokens": 32, "temperature": 0, "speculation": wanted, **ask,
                "stream_options": {"include_usage": True}}
        path = body.pop("path", COMPLETIONS)
        if path == CHAT:
            del body["prompt"]
        choices, last = joined(self.server.stream(path, body), path == CHAT)
        self.assertEqual(last["usage"], plain["usage"], (ask, wanted))
        self.assertEqual([flat(c) for c in choices], [flat(c) for c in plain["choices"]], (ask, wanted))
        self.assertIn("methods", last["timings"])

    def test_the_command_line_says_the_same(self):
        def run(*options):
            done = subprocess.run([TANDEM, "run", "nano", "-p", PROMPT, "-n", "32", "--temperature", "0", "--json", *options],
                                  capture_output=True, text=True, timeout=PATIENCE, check=True)
            return json.loads(done.stdout)
        plain, drafted = run(), run("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}')
        self.assertEqual(plain["timings"]["methods"], {})
        counts = drafted["timings"]["methods"]["mtp"]
        self.assertEqual((counts["draft_tokens"], counts["accepted_tokens"]),
                         (drafted["timings"]["draft_tokens"], drafted["timings"]["accepted_tokens"]))
        shas = {body["token_sha"] for body in (plain, drafted, self.ask(speculation=False)["usage"], self.ask()["usage"])}
        self.assertEqual(len(shas), 1)


class TestCounts(Nano):
    def test_metrics_are_what_the_requests_were_told(self):
        def sums():
            now = self.server.metrics()
            return {(name, method): now[f"{metric}_total"][(("method", method),)] for method in METHODS for name, metric in
                    [("rounds", "draft_rounds"), ("draft_tokens", "draft_tokens_by_method"), ("accepted_tokens", "accepted_tokens_by_method")]}
        before, told = sums(), dict.fromkeys(sums(), 0)
        for wanted in [*FIXED, True]:
            timings = self.ask(speculation=wanted, prompt=[PROMPT, PROMPT * 2], n=2, temperature=1, seed=1)["timings"]
            for method, counts in timings["methods"].items():
                for name in ("rounds", "draft_tokens", "accepted_tokens"):
                    told[name, method] += counts[name]
            for name in ("draft_tokens", "accepted_tokens"):
                self.assertEqual(timings[name], sum(c[name] for c in timings["methods"].values()))
        after, now = sums(), self.server.metrics()
        self.assertEqual({key: after[key] - before[key] for key in after}, told)
        self.assertEqual(now["draft_tokens_total"][()], sum(now["draft_tokens_by_method_total"].values()))
        self.assertEqual(now["accepted_tokens_total"][()], sum(now["accepted_tokens_by_method_total"].values()))

    def test_depths(self):
        before = self.server.metrics()
        counts = self.methods(speculation=FIXED[1], max_tokens=64, ignore_eos=True)["mtp"]
        now = self.server.metrics()
        shares, total = counts["acceptance_by_depth"], 0
        self.assertEqual(len(shares), 3)
        for depth, share in enumerate(shares, 1):
            key = (("depth", str(depth)), ("method", "mtp"))
            reached, hit = (now[name][key] - before.get(name, {}).get(key, 0)
                            for name in ("draft_depth_reached_total", "draft_depth_accepted_total"))
            self.assertAlmostEqual(share, hit / reached, 4)
            self.assertLessEqual(reached, counts["rounds"])
            total += hit
        self.assertEqual(total, counts["accepted_tokens"])

    def test_phases_and_health(self):
        self.ask(speculation=FIXED[2])
        now = self.server.metrics()
        for phase in ("draft", "forward", "choose"):
            self.assertGreater(now[f"{phase}_seconds_total"][()], 0)
        for method in METHODS:
            key = (("method", method),)
            self.assertEqual((now["drafter_off"][key], now["drafter_suspect"][key], now["failed_drafts_by_method_total"][key]), (0, 0, 0))


class TestStart(unittest.TestCase):
    def post(self, server, value):
        return server.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "speculation": value})

    def test_switched_off(self):
        with serve("nano-plain", "--speculative-config", '{"method": "none"}') as server:
            status, body = self.post(server, True)
            self.assertEqual((status, body["timings"]["methods"], body["timings"]["draft_tokens"]), (200, {}, 0))
            self.assertNotIn("drafter_off", server.metrics())
            for value, word in [("ngram", "drafts by nothing"), ({"method": "ngram", "num_speculative_tokens": 2}, "does not draft")]:
                status, body = self.post(server, value)
                self.assertEqual((status, body["error"]["param"]), (400, "speculation"))
                self.assertIn(word, body["error"]["message"])

    def test_one_method_needs_no_name(self):
        with serve("nano", "--speculative-config", '{"method": "mtp"}') as server:
            status, body = self.post(server, {"num_speculative_tokens": 2})
            self.assertEqual((status, list(body["timings"]["methods"])), (200, ["mtp"]))
            self.assertEqual(self.post(server, "dflash")[0], 400)

    def test_the_plan_is_that_of_serve(self):
        def total(*options):
            done = subprocess.run([TANDEM, "plan", "nano", "--json", *options], capture_output=True, text=True, timeout=PATIENCE, check=True)
            return json.loads(done.stdout)["total"]
        self.assertEqual(total(), total("--speculative-config", '{"method": "auto"}'))
        self.assertGreater(total(), total("--speculative-config", '{"method": "none"}'))


class TestFaults(unittest.TestCase):
    """The drafter of these servers looks up what stood in the prompt, until it goes wrong."""
    ASK = {"prompt": "a = 1\nb = 2\nc = 3\n" * 4, "max_tokens": 160, "ignore_eos": True, "temperature": 0, "logprobs": 1, "seed": 7}
    KEY = (("method", "lookup"),)

    def serve(self, *way):
        return Server(SERVE_DRAFTER, os.path.join(ROOT, "models", "nano-plain"), *way)

    def ask(self, server, **more):
        status, body = server.post(COMPLETIONS, {**self.ASK, **more})
        self.assertEqual(status, 200, body)
        return body

    def dies(self, server):
        """In the middle of the first request. Returns why."""
        drafted, plain = self.ask(server), self.ask(server, speculation=False)
        self.assertEqual(answer_of(drafted), answer_of(plain))
        self.assertGreater(drafted["timings"]["methods"]["lookup"]["accepted_tokens"], 0)
        now = server.metrics()
        self.assertEqual(now["failed_drafts_by_method_total"], {self.KEY: 8})
        for value in (True, "lookup"):
            later = self.ask(server, speculation=value, temperature=1, seed=1)
            self.assertEqual((later["timings"]["methods"], later["timings"]["draft_tokens"]), ({}, 0))
            self.assertEqual(later["choices"], self.ask(server, speculation=False, temperature=1, seed=1)["choices"])
        self.assertEqual(server.metrics()["failed_drafts_total"], {(): 8})  # nobody asks it any more
        self.assertEqual(server.get("/health")[0], 200)
        (labels, value), = server.metrics()["drafter_off"].items()
        self.assertEqual((value, labels[0]), (1, ("method", "lookup")))
        return dict(labels)["reason"]

    def test_dies(self):
        with self.serve("fails", "12") as server:
            self.assertEqual(self.dies(server), 'failed 8 times in a row: "C:\\drafts" gives numbers that are not finite')

    def test_talks_nonsense(self):
        with self.serve("nonsense", "12") as server:
            self.assertIn("failed 8 times in a row", self.dies(server))

    def test_is_suspect(self):
        with self.serve("poor") as server:
            drafted = self.ask(server, max_tokens=400)
            self.assertEqual(drafted["choices"], self.ask(server, max_tokens=400, speculation=False)["choices"])
            now = server.metrics()
            self.assertEqual((now["drafter_suspect"], now["drafter_off"]), ({self.KEY: 1}, {self.KEY: 0}))


if __name__ == "__main__":
    main()
