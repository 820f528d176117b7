"""The HTTP side of the server, over a parrot instead of a model (tests/support/fake_stack.h): framing, limits, errors,
streams, clients that are slow, silent, hostile or gone. SERVE_FAKE is the program of serve_fake.c."""
import concurrent.futures
import json
import os
import signal
import socket
import struct
import time
import unittest

from harness import PATIENCE, ROOT, Server, events, main, post_bytes, read_all, read_until, wait_for

SERVE_FAKE = os.environ["SERVE_FAKE"]
MODEL = os.path.join(ROOT, "models", "nano")
PACE = 10000  # seed PACE + ms: one token each that many ms
BROKEN, LOST = 666, 667
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ENDLESS = {"prompt": "abc def", "ignore_eos": True, "max_tokens": 4000}


def serve(*options, **more):
    return Server(SERVE_FAKE, MODEL, "port=0", *options, **more)


def chat(text="Hello, world! Grüße, 日本 🎉.", **more):
    return {"model": "parrot", "messages": [{"role": "user", "content": text}], **more}


class Shared(unittest.TestCase):
    """Tests that leave the server as it was share one; each of them ends by looking at its health."""

    @classmethod
    def setUpClass(cls):
        cls.server = serve("max_body_bytes=300000")

    @classmethod
    def tearDownClass(cls):
        code, err = cls.server.stop()
        assert code == 0, (code, err)

    def tearDown(self):
        self.assertEqual(self.server.get("/health"), (200, {"status": "ok"}))
        wait_for(lambda: self.server.metric("requests_running") == 0, "the engine to be idle")
        wait_for(lambda: self.server.metric("http_requests_live") == 0, "all exchanges to end")

    def fails(self, answer, status, param=None, words="", code=None):
        self.assertEqual(answer[0], status, answer)
        error = answer[1]["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(error["param"], param, error)
        self.assertIn(words, error["message"])
        if code:
            self.assertEqual(error["code"], code)


class TestPaths(Shared):
    def test_models(self):
        status, body = self.server.get("/v1/models")
        self.assertEqual(status, 200)
        self.assertEqual([m["id"] for m in body["data"]], ["parrot"])
        self.assertEqual(body["data"][0]["max_model_len"], 4096)
        self.assertEqual(self.server.get("/v1/models/parrot")[1]["id"], "parrot")
        self.fails(self.server.get("/v1/models/other"), 404, "model", code="model_not_found")

    def test_version(self):
        status, body = self.server.get("/version")
        self.assertEqual(status, 200)
        self.assertRegex(body["version"], r"^\d+\.\d+")

    def test_metrics_are_prometheus_text(self):
        status, body, headers = self.server.request("GET", "/metrics")
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/plain; version=0.0.4"))
        self.assertTrue(body.endswith(b"\n"))
        metrics = self.server.metrics()  # which checks every line
        self.assertEqual(metrics["failed_drafts_total"], {(): 0})
        self.assertIn((("code", "2xx"),), metrics["http_answers_total"])

    def test_unknown_path(self):
        self.fails(self.server.get("/v2/models"), 404)
        self.fails(self.server.get("/"), 404)
        self.fails(self.server.get("/v1/models/"), 404)

    def test_wrong_method(self):
        for method, path, allow in [("GET", CHAT, "POST, OPTIONS"), ("DELETE", "/v1/models", "GET, HEAD, OPTIONS"),
                                    ("PUT", "/health", "GET, HEAD, OPTIONS"), ("PATCH", COMPLETIONS, "POST, OPTIONS")]:
            status, body, headers = self.server.request(method, path)
            self.assertEqual((status, headers["Allow"]), (405, allow), (method, path))
            self.assertEqual(json.loads(body)["error"]["code"], "method_not_allowed")

    def test_head_has_no_body(self):
        status, body, headers = self.server.request("HEAD", "/health")
        self.assertEqual((status, body), (200, b""))
        self.assertEqual(int(headers["Content-Length"]), len('{"status":"ok"}'))

    def test_query_is_ignored(self):
        self.assertEqual(self.server.get("/health?x=1")[0], 200)

    def test_keep_alive(self):
        with self.server.socket() as s:
            for _ in range(3):
                s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertIn(b"200 OK", read_until(s, b'"ok"}'))

    def test_pipelined_requests_are_answered_in_order(self):
        two = post_bytes("/tokenize", {"prompt": "a"}) + post_bytes("/tokenize", {"prompt": "a b c"}, "Connection: close\r\n")
        answer = self.server.raw(two).decode()
        self.assertEqual([json.loads("{" + part.split("\r\n\r\n{")[1])["count"] for part in answer.split("HTTP/1.1 ")[1:]], [1, 3])

    def test_http_1_0_stream_ends_by_close(self):
        body = json.dumps({"prompt": "one two three", "stream": True}).encode()
        answer = self.server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        head, _, text = answer.partition(b"\r\n\r\n")
        self.assertNotIn(b"chunked", head)
        self.assertEqual("".join(e["choices"][0]["text"] for e in events(text.decode())), "one two three")


class TestFraming(Shared):
    def refused(self, data, words=None):
        answer = self.server.raw(data)
        self.assertTrue(answer.startswith(b"HTTP/1.1 400"), answer[:200])
        if words:
            self.assertIn(words, json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"])

    def test_two_content_lengths(self):
        self.refused(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "once only")
        self.refused(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", "once only")

    def test_content_length_with_sign(self):
        self.refused(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: +2\r\n\r\n{}", "must be a number")

    def test_content_length_that_is_no_number(self):
        self.refused(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n{}")
        self.refused(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}")

    def test_length_and_encoding(self):
        self.refused(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")

    def test_two_encodings(self):
        self.refused(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"
                     b"2\r\n{}\r\n0\r\n\r\n")

    def test_no_host(self):
        self.refused(b"GET /health HTTP/1.1\r\n\r\n", "Host is missing")

    def test_two_hosts(self):
        self.refused(b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "Host may be given once")

    def test_garbage(self):
        for data in [b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"A" * 100 + b"\r\n\r\n"]:
            answer = self.server.raw(data, half_close=True)
            self.assertTrue(answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501", b"HTTP/1.0 400")), answer[:100])

    def test_unknown_method(self):
        answer = self.server.raw(b"FROBNICATE /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        self.assertRegex(answer, rb"^HTTP/1.1 501 ")

    def test_chunked_body(self):
        answer = self.server.raw(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                                 b'5\r\n{"pro\r\nb\r\nmpt":"a b"}\r\n0\r\n\r\n')
        self.assertIn(b'"count":2', answer)

    def test_bad_chunk_size(self):
        for size in (b"zz", b"-1", b"ffffffffffffffff"):
            answer = self.server.raw(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n{}")
            self.assertRegex(answer, rb"^HTTP/1.1 4\d\d ")

    def test_too_large_body(self):
        body = b"x" * 400000
        self.assertRegex(self.server.raw(post_bytes("/tokenize", body, "Connection: close\r\n")), rb"^HTTP/1.1 413 ")
        chunk = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n61a80\r\n"
        self.assertRegex(self.server.raw(chunk + body + b"\r\n0\r\n\r\n"), rb"^HTTP/1.1 413 ")

    def test_too_large_headers(self):
        data = b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 100) for i in range(500)) + b"\r\n"
        self.assertRegex(self.server.raw(data) or b"HTTP/1.1 400 ", rb"^HTTP/1.1 400 ")

    def test_expect_continue(self):
        body = b'{"prompt": "a b"}'
        with self.server.socket() as s:
            s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
            self.assertIn(b"100 Continue", read_until(s, b"\r\n\r\n"))
            s.sendall(body)
            self.assertIn(b'"count":2', read_until(s, b"}"))

    def test_body_shorter_than_it_says(self):
        """The client gives up: nobody else notices, nothing is answered."""
        answer = self.server.raw(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{}", half_close=True)
        self.assertEqual(answer, b"")

    def test_body_longer_than_it_says(self):
        """What is too much is no request; the one before it is answered."""
        answer = self.server.raw(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n" + b'{"prompt":"a"}' + b"}}}}\r\n\r\n")
        self.assertRegex(answer, rb"^HTTP/1.1 200 ")
        self.assertIn(b"HTTP/1.1 400 ", answer)


class TestJson(Shared):
    def test_malformed(self):
        for body in ["{", '{"prompt": }', "[1]", '"x"', "{} x", '{"a":1,"a":2}', '{"prompt": NaN}', "", '{"prompt":"\\ud800"}',
                     '{"prompt":"a\\u0000b"}', '{"seed": 1e999}', '{"seed": 123456789012345678901234567890}']:
            for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize"):
                self.fails(self.server.post(path, body), 400, words="")

    def test_bad_utf8(self):
        for bad in (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"abc\xe2\x82"):
            self.fails(self.server.post(COMPLETIONS, b'{"prompt":"' + bad + b'"}'), 400, words="JSON")

    def test_200000_nested_arrays(self):
        self.fails(self.server.post(COMPLETIONS, '{"prompt":' + "[" * 140000 + "]" * 140000 + "}"), 400, words="deep")
        self.fails(self.server.post(COMPLETIONS, "[" * 200000), 400, words="deep")

    def test_wrong_types_name_the_field(self):
        for field, value in [("temperature", "hot"), ("temperature", 7), ("temperature", [1]), ("top_p", 0), ("top_p", 1.5), ("top_k", "x"),
                             ("top_k", 1.5), ("min_p", 2), ("n", 0), ("n", 17), ("n", True), ("seed", "abc"), ("seed", 1.5), ("stop", 5),
                             ("stop", [""]), ("stop", ["x", 1]), ("stop", ["s"] * 17), ("stop", "x" * 257), ("max_tokens", -1),
                             ("max_tokens", 0), ("max_tokens", "9"), ("max_completion_tokens", {}), ("min_tokens", -1), ("stream", "yes"),
                             ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0), ("repetition_penalty", 1e-4),
                             ("repetition_penalty", 1001), ("logit_bias", []),
                             ("logit_bias", {"x": 1}), ("logit_bias", {"1": "a"}), ("logit_bias", {"1": 101}), ("logit_bias", {"99999": 1}),
                             ("ignore_eos", 1), ("speculation", 1), ("stop_token_ids", ["a"]), ("stop_token_ids", 3),
                             ("stream_options", {"include_usage": True}), ("skip_special_tokens", 0), ("best_of", 2), ("model", 3)]:
            self.fails(self.server.post(CHAT, chat(**{field: value})), 400, param=field)
            self.fails(self.server.post(COMPLETIONS, {"prompt": "a", field: value}), 400, param=field)

    def test_include_usage_must_be_a_truth(self):
        self.fails(self.server.post(CHAT, chat(stream=True, stream_options={"include_usage": 1})), 400, param="include_usage")

    def test_what_we_do_not_do_is_refused_by_name(self):
        for field, value in [("response_format", {"type": "json_object"}), ("suffix", "x"), ("use_beam_search", True),
                             ("guided_json", {}), ("guided_regex", "a*"), ("functions", [{}]), ("function_call", "auto"),
                             ("structured_outputs", {"json": {}}), ("bad_words", ["x"]), ("chat_template", "{{ 1 }}")]:
            self.fails(self.server.post(CHAT, chat(**{field: value})), 400, param=field, words="not supported")
        self.fails(self.server.post(CHAT, chat(tool_choice="required")), 400, param="tool_choice")
        self.fails(self.server.post(CHAT, chat(tool_choice={"type": "function", "function": {"name": "f"}})), 400, param="tool_choice")
        self.fails(self.server.post(CHAT, chat(echo=True)), 400, param="echo")

    def test_harmless_and_unknown_fields_are_ignored(self):
        more = dict(user="me", store=False, metadata={"a": "b"}, service_tier="auto", response_format={"type": "text"}, suffix=None,
                    what_comes_next_year={"x": [1]}, temperature=None, stop=None, n=None, tools=[], guided_json=None, seed=None,
                    stream=None, logit_bias=None, parallel_tool_calls=True, max_tokens=None, tool_choice="auto")
        self.assertEqual(self.server.post(CHAT, chat(**more))[0], 200)

    def test_unknown_model(self):
        self.fails(self.server.post(CHAT, {**chat(), "model": "gpt-5"}), 404, "model", code="model_not_found")

    def test_messages(self):
        for messages in [None, [], "hi", {}, [1], [{}], [{"role": 1, "content": "a"}], [{"role": "user"}], [{"role": "user", "content": 5}],
                         [{"role": "user", "content": None}], [{"role": "user", "content": [{"text": "a"}]}],
                         [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": ["x"]}],
                         [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
                         [{"role": "assistant", "content": "a", "tool_calls": 3}]]:
            self.fails(self.server.post(CHAT, {"messages": messages}), 400, param="messages")

    def test_prompts(self):
        for prompt in [None, 5, {}, [], [[]], [1, "a"], ["a", 1], [-1], [99999], [[1], ["a"]], "", [""], ["a"] * 1025, [True]]:
            self.fails(self.server.post(COMPLETIONS, {"prompt": prompt}), 400, param="prompt")

    def test_context_is_too_small(self):
        self.fails(self.server.post(COMPLETIONS, {"prompt": "x y " * 5000}), 400, "prompt", "maximum context length is 4096", "context_length_exceeded")
        self.fails(self.server.post(COMPLETIONS, {"prompt": [5] * 4096}), 400, "prompt", "maximum context", "context_length_exceeded")
        self.fails(self.server.post(COMPLETIONS, {"prompt": [5] * 5000}), 400, "prompt", "maximum context", "context_length_exceeded")
        self.fails(self.server.post(CHAT, chat("x y " * 5000)), 400, "messages", "maximum context", "context_length_exceeded")

    def test_max_tokens_beyond_the_context_is_lowered(self):
        status, body = self.server.post(COMPLETIONS, {"prompt": [5] * 4090, "max_tokens": 100000, "ignore_eos": True})
        self.assertEqual(status, 200)
        self.assertEqual(body["usage"]["completion_tokens"], 6)
        self.assertEqual(body["choices"][0]["finish_reason"], "length")


class TestAnswers(Shared):
    TEXT = "Hello, world! Grüße, 日本 🎉."

    def test_completion(self):
        status, body = self.server.post(COMPLETIONS, {"prompt": self.TEXT, "seed": 5})
        self.assertEqual(status, 200)
        self.assertEqual(body["object"], "text_completion")
        self.assertEqual(body["choices"], [{"index": 0, "text": self.TEXT, "logprobs": None, "finish_reason": "stop"}])
        usage = body["usage"]
        self.assertEqual(usage["completion_tokens"], usage["prompt_tokens"] + 1)  # the stop id counts
        self.assertEqual(usage["total_tokens"], usage["completion_tokens"] + usage["prompt_tokens"])
        self.assertRegex(usage["token_sha"], "^[0-9a-f]{16}$")
        self.assertEqual(body["seed"], 5)
        self.assertEqual(body["system_fingerprint"], "td-0000000000000000")
        self.assertEqual(set(body["timings"]), {"queue_ms", "prefill_ms", "decode_ms", "tokens_per_second", "steps", "draft_tokens",
                                                "accepted_tokens", "methods"})

    def test_chat(self):
        status, body = self.server.post(CHAT, chat(self.TEXT))
        self.assertEqual((status, body["object"], body["model"]), (200, "chat.completion", "parrot"))
        choice = body["choices"][0]
        self.assertEqual(choice["message"]["role"], "assistant")
        self.assertIn(self.TEXT, choice["message"]["content"])
        self.assertNotIn("<|im_end|>", choice["message"]["content"])
        self.assertEqual((choice["finish_reason"], choice["logprobs"]), ("stop", None))

    def test_stream_is_the_whole(self):
        for more in ({}, {"n": 3}, {"stop": ["日本"]}, {"max_tokens": 9}, {"max_tokens": 14}, {"seed": PACE + 1}):
            whole = self.server.post(CHAT, chat(self.TEXT, **more))[1]
            parts = self.server.stream(CHAT, chat(self.TEXT, **more, stream_options={"include_usage": True}))
            usage = parts.pop()
            self.assertEqual(usage["choices"], [])
            self.assertEqual(usage["usage"], whole["usage"])
            self.assertIn("timings", usage)
            for choice in whole["choices"]:
                own = [p["choices"][0] for p in parts if p["choices"][0]["index"] == choice["index"]]
                self.assertEqual(own[0]["delta"], {"role": "assistant", "content": ""})
                self.assertEqual("".join(p["delta"].get("content", "") for p in own), choice["message"]["content"])
                self.assertEqual([p["finish_reason"] for p in own if p["finish_reason"]], [choice["finish_reason"]])
                self.assertTrue(all("role" not in p["delta"] for p in own[1:]))
            self.assertTrue(all(p["usage"] is None for p in parts))
            self.assertEqual(len({p["id"] for p in parts}), 1)

    def test_stream_without_usage(self):
        parts = self.server.stream(COMPLETIONS, {"prompt": self.TEXT})
        self.assertTrue(all("usage" not in p and len(p["choices"]) == 1 for p in parts))
        self.assertEqual("".join(p["choices"][0]["text"] for p in parts), self.TEXT)

    def test_stop_strings(self):
        def ask(**more):
            body = self.server.post(COMPLETIONS, {"prompt": "one two three four", **more})[1]
            return body["choices"][0]["text"], body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]
        whole = ask()
        self.assertEqual(whole[:2], ("one two three four", "stop"))
        text, why, n = ask(stop=" three")
        self.assertEqual((text, why), ("one two", "stop"))
        self.assertLess(n, whole[2])
        self.assertEqual(ask(stop=["nowhere", "o t"])[0], "one tw"[:0] + "one two three four".split("o t")[0])
        self.assertEqual(ask(stop=["hree"], include_stop_str_in_output=True)[0], "one two three")
        self.assertEqual(ask(stop="nowhere"), whole)
        self.assertEqual(ask(stop="one"), ("", "stop", ask(stop="one")[2]))
        self.assertEqual(ask(stop="four!", max_tokens=n), (ask(max_tokens=n)[0], "length", n))

    def test_stop_string_ends_the_engine_too(self):
        self.server.post(COMPLETIONS, {**ENDLESS, "seed": PACE + 5, "stop": "abc"})
        wait_for(lambda: self.server.metric("requests_running") == 0, "the request to end", 2)

    def test_stop_token_ids(self):
        ids = self.server.post("/tokenize", {"prompt": "one two three"})[1]["tokens"]
        body = self.server.post(COMPLETIONS, {"prompt": ids, "stop_token_ids": [5], "ignore_eos": True, "max_tokens": 3 * len(ids)})[1]
        self.assertEqual(body["choices"][0]["finish_reason"], "stop")  # the parrot ends with a stop id of the request
        self.assertEqual(body["choices"][0]["text"], "one two three")

    def test_special_tokens(self):
        prompt = "a<|im_start|>b"
        self.assertEqual(self.server.post(COMPLETIONS, {"prompt": prompt})[1]["choices"][0]["text"], "ab")
        self.assertEqual(self.server.post(COMPLETIONS, {"prompt": prompt, "skip_special_tokens": False})[1]["choices"][0]["text"], prompt)

    def test_length(self):
        for name in ("max_tokens", "max_completion_tokens"):
            body = self.server.post(CHAT, chat(**{name: 3}))[1]
            self.assertEqual((body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]), (3, "length"))
        body = self.server.post(CHAT, chat(max_tokens=9, max_completion_tokens=2))[1]
        self.assertEqual(body["usage"]["completion_tokens"], 2)

    def test_seeds(self):
        seen = {self.server.post(COMPLETIONS, {"prompt": "a"})[1]["seed"] for _ in range(5)}
        self.assertEqual(len(seen), 5)
        self.assertTrue(all(0 <= s < 2**53 for s in seen))
        for seed in (0, -1, 2**63 - 1, -2**63):
            self.assertEqual(self.server.post(COMPLETIONS, {"prompt": "a", "seed": seed})[1]["seed"], seed)
            self.assertEqual({p["seed"] for p in self.server.stream(COMPLETIONS, {"prompt": "a", "seed": seed})}, {seed})

    def test_choices(self):
        body = self.server.post(COMPLETIONS, {"prompt": ["a b c", "d e f"], "n": 2})[1]
        self.assertEqual([(c["index"], c["text"]) for c in body["choices"]], [(0, "a b c"), (1, " b ca"), (2, "d e f"), (3, " e fd")])
        self.assertEqual(body["usage"]["prompt_tokens"], 6)

    def test_token_prompts(self):
        a, b = (self.server.post("/tokenize", {"prompt": p})[1]["tokens"] for p in ("one two", "three"))
        self.assertEqual(self.server.post(COMPLETIONS, {"prompt": a})[1]["choices"][0]["text"], "one two")
        self.assertEqual([c["text"] for c in self.server.post(COMPLETIONS, {"prompt": [a, b]})[1]["choices"]], ["one two", "three"])

    def test_many_prompts(self):
        prompts = [f"p {i}" for i in range(300)]  # more than the engine's queue takes at once
        body = self.server.post(COMPLETIONS, {"prompt": prompts})[1]
        self.assertEqual([c["text"] for c in body["choices"]], prompts)
        self.fails(self.server.post(COMPLETIONS, {"prompt": prompts, "n": 16}), 400, param="n")

    def test_chat_logprobs(self):
        choice = self.server.post(CHAT, chat("é日", logprobs=True, top_logprobs=2))[1]["choices"][0]
        content = choice["logprobs"]["content"]
        self.assertTrue(all(t["logprob"] == -0.5 and len(t["top_logprobs"]) == 2 for t in content))
        said = bytes(b for t in content[:-1] for b in t["bytes"]).decode()
        for special in ("<|im_start|>", "<think>", "</think>"):
            said = said.replace(special, "")
        self.assertIn("é日", said)
        self.assertEqual(content[-1]["token"], "<|im_end|>")
        self.assertEqual(content[0]["top_logprobs"][0], {k: content[0][k] for k in ("token", "logprob", "bytes")})
        none = self.server.post(CHAT, chat(logprobs=True))[1]["choices"][0]["logprobs"]["content"]
        self.assertTrue(all(t["top_logprobs"] == [] for t in none))
        self.fails(self.server.post(CHAT, chat(top_logprobs=2)), 400, param="top_logprobs")
        self.fails(self.server.post(CHAT, chat(logprobs=True, top_logprobs=21)), 400, param="top_logprobs")
        self.fails(self.server.post(CHAT, chat(logprobs=3)), 400, param="logprobs")

    def test_streamed_logprobs(self):
        for more in ({}, {"stop": ["world"]}):
            whole = self.server.post(CHAT, chat(logprobs=True, **more))[1]["choices"][0]["logprobs"]["content"]
            parts = self.server.stream(CHAT, chat(logprobs=True, seed=PACE + 1, **more))
            self.assertEqual([t for p in parts for t in (p["choices"][0]["logprobs"] or {"content": []})["content"]], whole)

    def test_legacy_logprobs(self):
        ids = self.server.post("/tokenize", {"prompt": "ab 日 cd"})[1]["tokens"]
        body = self.server.post(COMPLETIONS, {"prompt": ids, "logprobs": 2})[1]
        l = body["choices"][0]["logprobs"]
        n = body["usage"]["completion_tokens"]
        self.assertTrue(all(len(l[k]) == n for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")))
        self.assertEqual(l["text_offset"][0], 0)
        self.assertEqual(l["text_offset"], sorted(l["text_offset"]))
        self.assertEqual(l["text_offset"][-1], len("ab 日 cd"))  # where the stop id would begin
        self.assertTrue(any(t.startswith("bytes:\\x") for t in l["tokens"]))
        self.assertTrue(all(len(t) == 2 for t in l["top_logprobs"]))
        only = self.server.post(COMPLETIONS, {"prompt": ids, "logprobs": 0})[1]["choices"][0]["logprobs"]
        self.assertTrue(all(list(t) == [name] for t, name in zip(only["top_logprobs"], only["tokens"])))

    def test_echo_scores_the_prompt(self):
        """What evaluation harnesses send: the logprobs of a given text."""
        ids = self.server.post("/tokenize", {"prompt": "one two three"})[1]["tokens"]
        for prompt in ("one two three", ids):
            for max_tokens in (0, 1):
                body = self.server.post(COMPLETIONS, {"prompt": prompt, "max_tokens": max_tokens, "echo": True, "logprobs": 1})[1]
                l = body["choices"][0]["logprobs"]
                self.assertEqual(len(l["token_logprobs"]), len(ids) + max_tokens)
                self.assertIsNone(l["token_logprobs"][0])
                self.assertIsNone(l["top_logprobs"][0])
                self.assertTrue(all(p == -0.5 for p in l["token_logprobs"][1:]))
                self.assertEqual("".join(l["tokens"][:len(ids)]), "one two three")
                self.assertTrue(body["choices"][0]["text"].startswith("one two three"))
                self.assertEqual(body["usage"]["completion_tokens"], max_tokens)
        self.assertEqual(body["choices"][0]["finish_reason"], "length")

    def test_echo_streams(self):
        whole = self.server.post(COMPLETIONS, {"prompt": "a b", "echo": True, "logprobs": 1})[1]["choices"][0]
        parts = [p["choices"][0] for p in self.server.stream(COMPLETIONS, {"prompt": "a b", "echo": True, "logprobs": 1, "seed": PACE + 1})]
        self.assertEqual("".join(p["text"] for p in parts), whole["text"])
        for key in whole["logprobs"]:
            self.assertEqual([v for p in parts for v in (p["logprobs"] or {key: []})[key]], whole["logprobs"][key], key)

    def test_tokenize(self):
        status, body = self.server.post("/tokenize", {"model": "parrot", "prompt": "Hello é", "return_token_strs": True})
        self.assertEqual((status, body["count"], body["max_model_len"]), (200, len(body["tokens"]), 4096))
        self.assertEqual(len(body["token_strs"]), body["count"])
        self.assertEqual(self.server.post("/detokenize", {"tokens": body["tokens"]}), (200, {"prompt": "Hello é"}))
        self.assertEqual(self.server.post("/tokenize", {"prompt": ""})[1]["tokens"], [])
        self.assertEqual(self.server.post("/detokenize", {"tokens": []})[1], {"prompt": ""})
        messages = self.server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]})[1]["tokens"]
        self.assertIn("hi<|im_end|>", self.server.post("/detokenize", {"tokens": messages})[1]["prompt"])
        self.fails(self.server.post("/tokenize", {}), 400, "prompt")
        self.fails(self.server.post("/tokenize", {"prompt": 5}), 400, "prompt")
        for tokens in (None, "x", [-1], [1.5], [99999], ["a"]):
            self.fails(self.server.post("/detokenize", {"tokens": tokens}), 400, "tokens")

    def test_template_fields(self):
        def prompt(**more):
            body = self.server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}], **more})[1]
            return self.server.post("/detokenize", {"tokens": body["tokens"]})[1]["prompt"]
        self.assertTrue(prompt().endswith("<think>\n\n</think>\n\n"))
        self.assertTrue(prompt(chat_template_kwargs={"enable_thinking": True}).endswith("assistant\n"))
        self.assertTrue(prompt(add_generation_prompt=False).endswith("<|im_end|>\n"))
        tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
        self.assertIn("get_weather", prompt(tools=[tool]))
        self.assertNotIn("get_weather", prompt(tools=[tool], tool_choice="none"))
        self.fails(self.server.post(CHAT, chat(tools=[{"type": "function"}])), 400, param="tools")
        self.fails(self.server.post(CHAT, chat(tools=5)), 400, param="tools")
        self.fails(self.server.post(CHAT, chat(chat_template_kwargs=5)), 400, param="chat_template_kwargs")

    def test_message_forms(self):
        def prompt(*messages):
            tokens = self.server.post("/tokenize", {"messages": messages})[1]["tokens"]
            return self.server.post("/detokenize", {"tokens": tokens})[1]["prompt"]
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        self.assertIn("user\none\ntwo<|im_end|>", prompt({"role": "user", "content": parts}))
        self.assertTrue(prompt({"role": "developer", "content": "Rules"}, {"role": "user", "content": "hi"}).startswith("<|im_start|>system\nRules"))
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1, 2]}'}}
        text = prompt({"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                      {"role": "tool", "tool_call_id": "1", "content": "42"})
        self.assertIn('"arguments": {"x": [1, 2]}', text)  # an object to the template, not a string
        self.assertIn("<tool_response>\n42\n", text)

    def test_broken_request(self):
        self.fails(self.server.post(COMPLETIONS, {**ENDLESS, "seed": BROKEN}), 500, words="finite")
        status, answer, _ = self.server.request("POST", COMPLETIONS, body={**ENDLESS, "seed": BROKEN, "stream": True})
        last = [e for e in answer.decode().split("\n\n") if e][-1]
        self.assertEqual(status, 200)
        self.assertIn("finite", json.loads(last[len("data: "):])["error"]["message"])
        self.assertNotIn(b"[DONE]", answer)


class TestLeaving(Shared):
    """A client that leaves stops its request within a step, whenever it leaves."""

    def idle_again(self, running=0):
        wait_for(lambda: self.server.metric("requests_running") == running, "the engine to notice", 5)

    def start(self, **more):
        s = self.server.socket()
        s.sendall(post_bytes(COMPLETIONS, {**ENDLESS, **more}))
        wait_for(lambda: self.server.metric("requests_running") == 1, "the request to run")
        return s

    def test_before_the_first_byte(self):
        self.start(seed=PACE + 2000).close()
        self.idle_again()

    def test_between_tokens_of_a_stream(self):
        s = self.start(seed=PACE + 2000, stream=True)
        read_until(s, b"data: ")
        s.close()
        self.idle_again()

    def test_mid_stream(self):
        s = self.start(seed=PACE + 2, stream=True)
        for _ in range(10):
            read_until(s, b"data: ")
        s.close()
        self.idle_again()

    def test_by_reset(self):
        s = self.start(seed=PACE + 1, stream=True)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
        self.idle_again()

    def test_by_half_close(self):
        s = self.start(seed=PACE + 1000)
        s.shutdown(socket.SHUT_WR)
        self.idle_again()
        self.assertEqual(read_all(s), b"")
        s.close()

    def test_while_its_prompt_is_read(self):
        for _ in range(20):
            with self.server.socket() as s:
                s.sendall(post_bytes(CHAT, chat("word " * 3000)))
        self.idle_again()

    def test_many_leave_at_once(self):
        sockets = []
        for i in range(50):
            s = self.server.socket()
            s.sendall(post_bytes(COMPLETIONS, {**ENDLESS, "seed": PACE + 3, "stream": i % 2 == 0}))
            sockets.append(s)
        wait_for(lambda: self.server.metric("requests_running") > 20, "some to run")
        for s in sockets:
            s.close()
        self.idle_again()

    def test_junk_while_waiting(self):
        """Bytes behind the request are read up to a limit, then the client is cut off."""
        s = self.start(seed=PACE + 1000)
        with self.assertRaises(ConnectionError):
            for _ in range(200):
                s.sendall(b"x" * 65536)
                time.sleep(0.005)
        s.close()
        self.idle_again()


class TestLoad(Shared):
    def test_many_streams_at_once(self):
        def one(i):
            text = f"stream number {i} says " + "blah " * (i % 7)
            parts = self.server.stream(COMPLETIONS, {"prompt": text, "seed": PACE + i % 3})
            return "".join(p["choices"][0]["text"] for p in parts) == text
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            self.assertTrue(all(pool.map(one, range(200))))

    def test_200_idle_connections(self):
        sockets = [self.server.socket() for _ in range(200)]
        self.assertEqual(self.server.get("/health")[0], 200)
        wait_for(lambda: self.server.metric("http_connections") >= 200, "all to be accepted")
        for s in sockets:
            s.close()
        wait_for(lambda: self.server.metric("http_connections") <= 2, "all to be gone")


class TestLimits(unittest.TestCase):
    def test_slow_reader_is_paused_and_then_cut_off(self):
        with serve("stall_ms=700", "context=2000000") as server:
            s = server.socket(receive_buffer=4096)
            s.sendall(post_bytes(COMPLETIONS, {"prompt": "abc def", "ignore_eos": True, "max_tokens": 200000, "logprobs": 5, "stream": True}))
            wait_for(lambda: server.metric("output_tokens_total") > 50000, "tokens")
            rss = int(open(f"/proc/{server.process.pid}/statm").read().split()[1]) * 4096
            wait_for(lambda: server.metric("http_requests_live") == 0, "the reader to be cut off")
            self.assertLess(rss, 1500 << 20)
            answer = read_all(s)
            self.assertLess(len(answer), 4 << 20)  # what buffers held, not what the engine made
            self.assertNotIn(b"[DONE]", answer)
            s.close()
            self.assertEqual(server.get("/health")[0], 200)
            self.assertEqual(server.stop()[0], 0)

    def test_slow_reader_that_goes_on_gets_everything(self):
        with serve("stall_ms=5000", "context=100000") as server:
            s = server.socket(receive_buffer=4096)
            s.sendall(post_bytes(COMPLETIONS, {"prompt": "abc def", "ignore_eos": True, "max_tokens": 4000, "stream": True, "logprobs": 3},
                                 "Connection: close\r\n"))
            data = b""
            time.sleep(0.5)
            while chunk := s.recv(1 << 16):
                data += chunk
                time.sleep(0.0005)
            self.assertIn(b"[DONE]", data)
            tokens = data.count(b'"tokens":["') and sum(len(json.loads(e)["choices"][0]["logprobs"]["tokens"]) for e in self.dechunk(data)
                                                         if json.loads(e)["choices"][0]["logprobs"])
            self.assertEqual(tokens, 4000)

    def test_reader_that_leaves_behind_the_last_token(self):
        """The worker is done and its last bytes wait for a full connection: the slot is free once the client leaves. Whether
        it comes to that is a matter of where the pieces of the stream end, so it is tried until it does."""
        body = {"messages": [{"role": "user", "content": "abc def"}], "ignore_eos": True, "stream": True, "logprobs": True,
                "top_logprobs": 20}
        with serve("stall_ms=60000", "grace_ms=60000", "context=100000") as server:
            n_held = 0
            for attempt in range(12):
                s = server.socket(receive_buffer=4096)
                s.sendall(post_bytes(CHAT, {**body, "max_tokens": 4000 + attempt}))
                while server.metric("requests_done_total") == attempt:  # the worker has still to end
                    s.recv(1 << 16)
                time.sleep(0.1)
                n_held += server.metric("http_requests_live")
                s.close()
                wait_for(lambda: server.metric("http_requests_live") == 0, "the slot to be given", 5)
                if n_held == 2:
                    break
            self.assertEqual(n_held, 2)
            self.assertEqual(server.stop()[0], 0)

    @staticmethod
    def dechunk(data):
        body, text = data.partition(b"\r\n\r\n")[2], b""
        while body:
            size, _, body = body.partition(b"\r\n")
            n = int(size, 16)
            text, body = text + body[:n], body[n + 2:]
        return [e[6:] for e in text.decode().split("\n\n") if e.startswith("data: {")]

    def test_slow_sender(self):
        with serve("request_ms=400") as server:
            s = server.socket()
            begin = time.monotonic()
            with self.assertRaises((ConnectionError, AssertionError)):
                for byte in b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 100:
                    s.sendall(bytes([byte]))
                    time.sleep(0.05)
                    if time.monotonic() - begin > PATIENCE:
                        self.fail("it was not cut off")
                    s.setblocking(False)
                    try:
                        self.assertNotEqual(s.recv(1), b"")
                    except BlockingIOError:
                        pass
                    s.setblocking(True)
            s.close()
            body = server.socket()
            body.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            self.assertEqual(read_all(body), b"")
            body.close()
            # An exchange that takes longer than that is not meant.
            self.assertEqual(server.post(COMPLETIONS, {"prompt": "a b c d", "seed": PACE + 150})[0], 200)

    def test_silent_connection(self):
        with serve("idle_ms=400") as server:
            with server.socket() as s:
                self.assertEqual(read_all(s), b"")
            with server.socket() as s:
                s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertIn(b'"ok"', read_all(s))
            # A request that waits quietly is not idle.
            self.assertEqual(server.post(COMPLETIONS, {"prompt": "a b", "seed": PACE + 500})[0], 200)

    def test_silent_stream_is_kept_alive(self):
        with serve("keep_alive_ms=100") as server:
            _, answer, _ = server.request("POST", COMPLETIONS, body={"prompt": "a b", "stream": True, "seed": PACE + 500})
            self.assertIn(b"\n\n: still here\n\n", b"\n\n" + answer)
            self.assertEqual("".join(e["choices"][0]["text"] for e in events(answer.decode())), "a b")

    def test_too_many_requests(self):
        with serve("max_waiting=2") as server:
            sockets = [server.socket() for _ in range(2)]
            for s in sockets:
                s.sendall(post_bytes(COMPLETIONS, {**ENDLESS, "seed": PACE + 100}))
            wait_for(lambda: server.metric("requests_running") == 2, "both to run")
            for more in ({}, {"stream": True}, {"prompt": ["a", "b"]}):
                status, body, headers = server.request("POST", COMPLETIONS, body={**ENDLESS, **more})
                self.assertEqual((status, json.loads(body)["error"]["code"]), (429, "overloaded"))
                self.assertGreaterEqual(int(headers["Retry-After"]), 1)
            for s in sockets:
                s.close()
            wait_for(lambda: server.metric("requests_running") == 0, "room")
            self.assertEqual(server.post(COMPLETIONS, {"prompt": "a"})[0], 200)

    def test_too_many_exchanges(self):
        with serve("max_requests=3") as server:
            sockets = [server.socket() for _ in range(3)]
            for s in sockets:
                s.sendall(post_bytes(COMPLETIONS, {**ENDLESS, "seed": PACE + 100}))
            wait_for(lambda: server.metric("http_requests_live") == 3, "all to run")
            self.assertEqual(server.post("/tokenize", {"prompt": "a"})[0], 429)
            self.assertEqual(server.get("/health")[0], 200)
            sockets[0].close()
            wait_for(lambda: server.post("/tokenize", {"prompt": "a"})[0] == 200, "room")
            for s in sockets:
                s.close()

    def test_more_connections_wait(self):
        with serve("max_connections=5") as server:
            sockets = [server.socket() for _ in range(8)]  # three of them in the backlog
            for s in sockets[:5]:
                s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                read_until(s, b'"ok"}')
            sockets[7].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            sockets[7].settimeout(0.5)
            with self.assertRaises(TimeoutError):
                sockets[7].recv(1)
            for s in sockets[:7]:
                s.close()
            sockets[7].settimeout(PATIENCE)
            read_until(sockets[7], b'"ok"}')
            sockets[7].close()

    def test_held_bodies_are_bounded(self):
        """Bodies that trickle in may not add up to more than 16 of the largest size."""
        with serve("max_body_bytes=100000") as server:
            sockets = [server.socket() for _ in range(40)]
            for s in sockets:
                s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 99000\r\n\r\n")
            cut = 0
            for s in sockets:
                try:
                    s.sendall(b'{"prompt":"' + b"x" * 90000)
                except ConnectionError:
                    cut += 1
            time.sleep(0.3)
            for s in sockets:
                s.setblocking(False)
                try:
                    cut += s.recv(1) == b""
                except BlockingIOError:
                    pass
                except ConnectionError:
                    cut += 1
                s.close()
            self.assertGreaterEqual(cut, 20)
            self.assertEqual(server.post("/tokenize", {"prompt": "a"})[0], 200)


    def test_json_values_are_bounded(self):
        with serve() as server:
            status, body = server.post(COMPLETIONS, '{"prompt":[' + "1," * 2200000 + "1]}")
            self.assertEqual((status, "values" in body["error"]["message"]), (400, True))
            text = ",[{" * 800000  # in a string they are just text
            status, body = server.post("/tokenize", {"prompt": text})
            self.assertEqual(status, 200)


class TestKeys(unittest.TestCase):
    def test_keys(self):
        with serve("key=first", "key=second-key", ready=False) as server:
            wait_for(lambda: server.get("/health")[0] == 200, "ready")
            for headers in [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "first"}, {"Authorization": "Basic first"},
                            {"X-Api-Key": ""}, {"X-Api-Key": "firs"}, {"X-Api-Key": "first "*2}, {"Authorization": "Bearer first\x20x"}]:
                for method, path in [("GET", "/v1/models"), ("POST", CHAT), ("GET", "/metrics"), ("GET", "/version")]:
                    status, body, answer = server.request(method, path, body="{}" if method == "POST" else None, headers=headers)
                    self.assertEqual((status, json.loads(body)["error"]["code"]), (401, "invalid_api_key"), headers)
                    self.assertTrue(answer["WWW-Authenticate"].startswith("Bearer"))
            for headers in [{"Authorization": "Bearer first"}, {"Authorization": "bearer second-key"}, {"X-Api-Key": "second-key"},
                            {"x-api-key": "first", "Authorization": "Bearer wrong"}]:
                self.assertEqual(server.get("/v1/models", headers=headers)[0], 200, headers)

    def test_unknown_path_needs_no_key(self):
        with serve("key=k") as server:
            self.assertEqual(server.get("/nothing")[0], 404)

    def test_open_address_without_key_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "no key is set"):
            serve("host=0.0.0.0")
        with serve("host=0.0.0.0", "key=k", ready=False) as server:
            wait_for(lambda: server.get("/health")[0] == 200, "ready")
        with serve("host=0.0.0.0", "no_auth=1") as server:
            self.assertEqual(server.get("/v1/models")[0], 200)
        with serve("host=localhost") as server:
            self.assertEqual(server.get("/v1/models")[0], 200)


class TestOrigins(unittest.TestCase):
    """Web pages may not use a server on this machine unless they were allowed."""

    def ask(self, server, origin, host=None):
        headers = {"Origin": origin, **({"Host": host} if host else {})}
        return server.request("POST", "/tokenize", body={"prompt": "a"}, headers=headers)

    def test_default(self):
        with serve() as server:
            own = f"127.0.0.1:{server.port}"
            for origin, host, want in [("http://evil.example", None, 403), ("null", None, 403), ("http://evil.example:8000", "evil.example:8000", 403),
                                       (f"http://{own}", own, 200), (f"http://localhost:{server.port}", own, 403),
                                       (f"http://localhost:{server.port}", f"localhost:{server.port}", 200),
                                       ("http://spark.local:1", "spark.local:1", 200), ("http://box:1", "box:1", 200)]:
                status, _, headers = self.ask(server, origin, host)
                self.assertEqual(status, want, origin)
                self.assertIsNone(headers["Access-Control-Allow-Origin"])

    def test_listed(self):
        with serve("origin=http://ui.example", "origin=http://other.example:3000") as server:
            status, _, headers = self.ask(server, "http://ui.example")
            self.assertEqual((status, headers["Access-Control-Allow-Origin"], headers["Vary"]), (200, "http://ui.example", "Origin"))
            self.assertEqual(self.ask(server, "http://ui.example.evil.example")[0], 403)
            status, body, headers = server.request("OPTIONS", CHAT, headers={
                "Origin": "http://other.example:3000", "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization, x-stainless-os"})
            self.assertEqual((status, body), (204, b""))
            self.assertEqual(headers["Access-Control-Allow-Origin"], "http://other.example:3000")
            self.assertEqual(headers["Access-Control-Allow-Headers"], "authorization, x-stainless-os")
            self.assertIn("POST", headers["Access-Control-Allow-Methods"])
            stream = server.request("POST", COMPLETIONS, body={"prompt": "a", "stream": True}, headers={"Origin": "http://ui.example"})
            self.assertEqual(stream[2]["Access-Control-Allow-Origin"], "http://ui.example")

    def test_any(self):
        with serve("origin=*") as server:
            status, _, headers = self.ask(server, "http://anything.example")
            self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, "*"))

    def test_options(self):
        with serve() as server:
            status, _, headers = server.request("OPTIONS", CHAT)
            self.assertEqual((status, headers["Allow"]), (204, "POST, OPTIONS"))
            self.assertEqual(server.request("OPTIONS", "/nowhere")[0], 404)


class TestLife(unittest.TestCase):
    def test_loading(self):
        with serve("load_ms=800", ready=False) as server:
            status, body = server.get("/health")
            while status == 503 and not body["stage"]:  # the loading thread has not begun yet
                status, body = server.get("/health")
            self.assertEqual((status, body["status"], body["stage"], body["total_bytes"]), (503, "loading", "weights", 1000))
            self.assertLess(body["done_bytes"], 1000)
            status, body, headers = server.request("POST", CHAT, body=chat())
            self.assertEqual((status, json.loads(body)["error"]["code"]), (503, "loading"))
            self.assertIn("Retry-After", headers)
            self.assertEqual(server.get("/version")[0], 200)
            server.wait_ready()
            self.assertEqual(server.post(CHAT, chat())[0], 200)

    def test_failed_load(self):
        server = Server(SERVE_FAKE, MODEL, "port=0", "load_ms=100", "load_error=there is no such model", ready=False)
        code, err = server.stop(None)
        self.assertEqual(code, 1)
        self.assertEqual([l for l in err.splitlines() if l.startswith("serve_fake")], ["serve_fake: there is no such model"])

    def test_port_in_use(self):
        with serve() as server:
            with self.assertRaisesRegex(RuntimeError, f"port {server.port} of 127.0.0.1 is in use by another program"):
                Server(SERVE_FAKE, MODEL, f"port={server.port}")

    def test_unknown_host(self):
        with self.assertRaisesRegex(RuntimeError, "cannot find the address no.such.host.invalid"):
            serve("host=no.such.host.invalid", "no_auth=1")

    def test_served_names(self):
        with serve("name=one", "name=org/two") as server:
            self.assertEqual([m["id"] for m in server.get("/v1/models")[1]["data"]], ["one", "org/two"])
            self.assertEqual(server.get("/v1/models/org%2Ftwo")[0], 200)
            self.assertEqual(server.get("/v1/models/org/two")[0], 200)
            self.assertEqual(server.post(CHAT, {**chat(), "model": "org/two"})[1]["model"], "one")
            self.assertEqual(server.post(CHAT, chat())[0], 404)

    def test_default_kwargs_and_seed(self):
        with serve('kwargs={"enable_thinking": true}', "seed=77") as server:
            def prompt(**more):
                tokens = server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}], **more})[1]["tokens"]
                return server.post("/detokenize", {"tokens": tokens})[1]["prompt"]
            self.assertTrue(prompt().endswith("assistant\n"))
            self.assertTrue(prompt(chat_template_kwargs={"enable_thinking": False}).endswith("</think>\n\n"))
            self.assertEqual(server.post(COMPLETIONS, {"prompt": "a"})[1]["seed"], 77)
            self.assertEqual(server.post(COMPLETIONS, {"prompt": "a", "seed": 5})[1]["seed"], 5)

    def test_stop_lets_requests_end(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with serve() as server, concurrent.futures.ThreadPoolExecutor(2) as pool:
                whole = pool.submit(server.post, COMPLETIONS, {"prompt": "a b c d e f", "seed": PACE + 100})
                stream = pool.submit(server.stream, COMPLETIONS, {"prompt": "a b c d e f", "seed": PACE + 100})
                wait_for(lambda: server.metric("requests_running") == 2, "both to run")
                kept = server.socket()  # a connection from before
                kept.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                read_until(kept, b'"ok"}')
                server.process.send_signal(number)
                wait_for(lambda: self.refuses(server), "the port to close")
                kept.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertIn(b'"stopping"', read_all(kept))
                self.assertEqual(whole.result()[1]["choices"][0]["text"], "a b c d e f")
                self.assertEqual("".join(p["choices"][0]["text"] for p in stream.result()), "a b c d e f")
                self.assertEqual(server.stop(None)[0], 0)

    @staticmethod
    def refuses(server):
        try:
            server.socket().close()
        except ConnectionRefusedError:
            return True
        return False

    def test_grace_ends(self):
        with serve("grace_ms=300") as server, concurrent.futures.ThreadPoolExecutor(2) as pool:
            whole = pool.submit(server.post, COMPLETIONS, {**ENDLESS, "seed": PACE + 20})
            stream = pool.submit(server.request, "POST", COMPLETIONS, {**ENDLESS, "seed": PACE + 20, "stream": True})
            wait_for(lambda: server.metric("requests_running") == 2, "both to run")
            self.assertEqual(server.stop()[0], 0)
            self.assertEqual(whole.result()[0], 503)
            self.assertIn(b'"error"', stream.result()[1])
            self.assertNotIn(b"[DONE]", stream.result()[1])

    def test_second_stop_is_immediate(self):
        with serve("grace_ms=60000") as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
            whole = pool.submit(server.post, COMPLETIONS, {**ENDLESS, "seed": PACE + 1000})
            wait_for(lambda: server.metric("requests_running") == 1, "it to run")
            server.process.send_signal(signal.SIGINT)
            wait_for(lambda: self.refuses(server), "the port to close")
            begin = time.monotonic()
            self.assertEqual(server.stop(signal.SIGINT)[0], 0)
            self.assertLess(time.monotonic() - begin, PATIENCE)
            self.assertEqual(whole.result()[0], 503)

    def test_lost_device(self):
        with serve("grace_ms=100") as server:
            server.post(COMPLETIONS, {"prompt": "a", "seed": LOST})
            code, err = server.stop(None)
            self.assertEqual(code, 4)
            self.assertIn("lost", err)


if __name__ == "__main__":
    main()
