"""The official OpenAI client against `tandem serve` (pytest; the virtual environment of scripts/setup). TANDEM_BIN is the
program. Everything goes through the client's own types, so a field that it cannot read fails here."""
import os
import sys

import openai
import pytest

sys.path.insert(0, os.path.dirname(__file__))
from harness import Server  # noqa: E402

QUESTION = [{"role": "user", "content": "Write a function that reverses a string."}]


@pytest.fixture(scope="module")
def server():
    with Server(os.environ["TANDEM_BIN"], "serve", "nano-plain", "--port", "0", "--api-key", "sesame") as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="sesame", max_retries=0, timeout=60)


def test_models(client):
    assert [m.id for m in client.models.list()] == ["nano-plain"]
    assert client.models.retrieve("nano-plain").max_model_len >= 1024


def test_chat(client):
    answer = client.chat.completions.create(model="nano-plain", messages=QUESTION, max_tokens=64, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert "def " in answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert len(answer.usage.token_sha) == 16
    assert answer.system_fingerprint.startswith("td-")
    assert answer.timings["tokens_per_second"] > 0


def test_chat_stream(client):
    ask = dict(model="nano-plain", messages=QUESTION, max_tokens=64, temperature=0.8, seed=11)
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.token_sha == whole.usage.token_sha
    text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_n_stop_seed(client):
    ask = dict(model="nano-plain", messages=QUESTION, max_tokens=48, n=3, seed=5, temperature=1, stop=["return"])
    first, again = (client.chat.completions.create(**ask) for _ in range(2))
    assert [c.message.content for c in first.choices] == [c.message.content for c in again.choices]
    assert [c.index for c in first.choices] == [0, 1, 2]
    assert all("return" not in c.message.content for c in first.choices)


def test_chat_logprobs(client):
    answer = client.chat.completions.create(model="nano-plain", messages=QUESTION, max_tokens=16, temperature=0, logprobs=True, top_logprobs=4)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 4
        assert token.top_logprobs[0].token == token.token
        assert bytes(token.bytes).decode(errors="replace") == token.token


def test_completions(client):
    answer = client.completions.create(model="nano-plain", prompt=["def add(a, b):", "class Point:"], max_tokens=16, temperature=0, logprobs=2)
    assert [c.index for c in answer.choices] == [0, 1]
    assert all(len(c.logprobs.tokens) == len(c.logprobs.token_logprobs) for c in answer.choices)
    alone = client.completions.create(model="nano-plain", prompt="class Point:", max_tokens=16, temperature=0)
    assert alone.choices[0].text == answer.choices[1].text


def test_completions_stream(client):
    ask = dict(model="nano-plain", prompt="import os\n", max_tokens=32, temperature=0)
    whole = client.completions.create(**ask)
    assert "".join(c.choices[0].text for c in client.completions.create(**ask, stream=True)) == whole.choices[0].text


def test_echo(client):
    answer = client.completions.create(model="nano-plain", prompt="def add(a, b):", max_tokens=1, echo=True, logprobs=1, temperature=0)
    assert answer.choices[0].text.startswith("def add(a, b):")
    assert answer.choices[0].logprobs.token_logprobs[0] is None


def test_errors_are_the_clients_own(client, server):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="nano-plain", messages=QUESTION, temperature=9)
    assert e.value.param == "temperature" and e.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    assert e.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="nano-plain", messages=[{"role": "user", "content": "word " * 20000}])
    assert e.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="nano-plain", messages=QUESTION, response_format={"type": "json_object"})
    assert e.value.param == "response_format"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0).models.list()


def test_leaving_a_stream(client, server):
    stream = client.chat.completions.create(model="nano-plain", messages=QUESTION, stream=True, extra_body={"ignore_eos": True}, max_tokens=800)
    next(iter(stream))
    stream.close()
    headers = {"Authorization": "Bearer sesame"}

    def running():
        body = server.request("GET", "/metrics", headers=headers)[1].decode()
        return int(next(l.split()[1] for l in body.splitlines() if l.startswith("tandem_requests_running ")))
    from harness import wait_for
    wait_for(lambda: running() == 0, "the request to stop", 5)


def test_extras(client):
    answer = client.chat.completions.create(model="nano-plain", messages=QUESTION, max_tokens=8, user="me",
                                            extra_body={"speculation": False, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1,
                                                        "chat_template_kwargs": {"enable_thinking": True}})
    assert answer.usage.completion_tokens <= 8


def test_tools_reach_the_template(client):
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {"type": "object", "properties": {}}}}]
    plain = client.chat.completions.create(model="nano-plain", messages=QUESTION, max_tokens=4)
    with_tools = client.chat.completions.create(model="nano-plain", messages=QUESTION, max_tokens=4, tools=tools)
    assert with_tools.usage.prompt_tokens > plain.usage.prompt_tokens + 20
