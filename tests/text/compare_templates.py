#!/usr/bin/env python3
"""Our templates beside jinja2 with the settings of Hugging Face: the same text, or both refuse.

    /tmp/text/bin/pip install jinja2
    /tmp/text/bin/python tests/text/compare_templates.py [--cases N] [--programs N] [--seed S] [TEMPLATE.jinja ...]

Conversations are drawn at random (roles, tools, calls, reasoning, parts, odd types and texts, arguments of every kind)
and go through nano's template, those of tests/data/text/templates and the files named. Programs are small templates
drawn from a grammar of the features in docs/spec/models.md 7; every value they meet is printed by tojson or as text."""
import argparse
import datetime
import json
import random
import re
import signal
import sys
import warnings
from collections import Counter
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from peer import Peer
from template_programs import Programs

ROOT = Path(__file__).resolve().parent.parent.parent
WORDS = ["hello", " world", "  ", "\n", "\t", "é", "😀", "你好", "<b>", "&", '"q"', "it's", "\\", "{\"a\":1}", "</think>", "<think>",
         "<think>\nhm\n</think>\n\nans", "<tool_response>", "<tool_response>\nx\n</tool_response>", "</tool_call>", "{{ x }}", "{% if %}",
         "x = 1;", "0", "\u2028", "\xa0", "\x1c", "ﬁ", "İ", "ß", "e\u0301", "\x7f", "\u200d", "<|im_end|>", "%", "\r\n", "None", "True"]
NAMES = ["get_weather", "now", "f", "é_f", "items", "keys", ""]
KEYS = ["city", "days", "flag", "opts", "u", "items", "é", "name", "values", "a b"]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


class Draw:
    """Conversations."""

    def __init__(self, r):
        self.r = r

    def some(self, chance):
        return self.r.random() < chance

    def text(self, most=6):
        return "".join(self.r.choice(WORDS) for _ in range(self.r.randint(0, most)))

    def value(self, depth=3):
        kind = self.r.randrange(9 if depth else 6)
        if kind == 0:
            return self.r.choice([None, True, False])
        if kind == 1:
            return self.r.choice([0, -1, 3, 10**12, 2**53 + 1, -(2**63)])
        if kind == 2:
            return self.r.choice([0.0, -0.0, 1.5, 0.1, 1e16, 1e15, 1e-5, 1e-4, 123456789.125, 1e300, 5e-324, 2.0, 1 / 3])
        if kind < 6:
            return self.text()
        if kind == 6:
            return [self.value(depth - 1) for _ in range(self.r.randint(0, 3))]
        return {self.r.choice(KEYS): self.value(depth - 1) for _ in range(self.r.randint(0, 4))}

    def part(self):
        kind = self.r.randrange(8)
        if kind < 3:
            return {"type": "text", "text": self.text()}
        if kind == 3:
            return {"type": "image", "image": "x.png"}
        if kind == 4:
            return {"type": "image_url", "image_url": {"url": "data:"}}
        if kind == 5:
            return {"type": "video", "video": "v"} if self.some(0.5) else {"type": "video"}
        if kind == 6:
            return {"text": self.text()}
        return self.r.choice([self.text(), {"type": "audio"}, {}])

    def content(self):
        kind = self.r.randrange(10)
        if kind < 6:
            return self.text()
        if kind < 9:
            return [self.part() for _ in range(self.r.randint(0, 4))]
        return None if self.some(0.8) else self.value(1)

    def call(self):
        arguments = {self.r.choice(KEYS): self.value() for _ in range(self.r.randint(0, 4))}
        if self.some(0.2):
            arguments = json.dumps(arguments, ensure_ascii=False)
        elif self.some(0.05):
            arguments = self.value(1)
        function = {"name": self.r.choice(NAMES), "arguments": arguments}
        call = {"type": "function", "function": function} if self.some(0.8) else function
        if self.some(0.3):
            call = {"id": "call_1", **call}
        return call

    def message(self, role):
        m = {"role": role}
        if self.some(0.95):
            m["content"] = self.content()
        if role == "assistant":
            if self.some(0.3):
                m["reasoning_content"] = self.r.choice([self.text(), "", None])
            if self.some(0.35):
                m["tool_calls"] = [self.call() for _ in range(self.r.randint(0, 3))] if self.some(0.95) else None
        if role == "tool" and self.some(0.5):
            m.update(name=self.r.choice(NAMES), tool_call_id="call_1")
        if self.some(0.05):
            m["name"] = self.text(2)
        return m

    def roles(self):
        if self.some(0.15):
            return [self.r.choice(["system", "user", "assistant", "tool", "developer", "ipython", "x", ""]) for _ in range(self.r.randint(0, 6))]
        roles = ["system"] if self.some(0.5) else []
        for _ in range(self.r.randint(0, 4)):
            roles.append("user")
            for _ in range(self.r.choice((0, 0, 1, 2))):
                roles += ["assistant"] + ["tool"] * self.r.randint(1, 3)
            if self.some(0.8):
                roles.append("assistant")
        return roles + ["user"] * self.some(0.7)

    def tool(self):
        properties = {self.r.choice(KEYS): self.schema() for _ in range(self.r.randint(0, 3))}
        function = {"name": self.r.choice(NAMES), "description": self.text(), "parameters": {"type": "object", "properties": properties}}
        if self.some(0.5):
            function["parameters"]["required"] = list(properties)[:2]
        if self.some(0.1):
            function = {k: v for k, v in function.items() if self.some(0.7)}
        if self.some(0.1):
            function[self.r.choice(KEYS)] = self.value()
        return {"type": "function", "function": function} if self.some(0.8) else function

    def schema(self):
        s = {"type": self.r.choice(["string", "integer", "number", "boolean", "array", "object", ["string", "null"]])}
        if self.some(0.5):
            s["description"] = self.text()
        if self.some(0.3):
            s["enum"] = [self.value(0) for _ in range(self.r.randint(1, 3))]
        if self.some(0.2):
            s[self.r.choice(KEYS)] = self.value(2)
        return s

    def kwargs(self):
        choices = {"enable_thinking": [True, False, None], "preserve_thinking": [True, False], "add_vision_id": [True, False],
                   "reasoning_effort": ["low", "medium", "high", "xhigh", None], "tools_in_user_message": [True, False],
                   "date_string": ["26 Jul 2024", ""], "custom_tools": [[], None], "builtin_tools": [["brave_search", "code_interpreter"], []],
                   "thinking": [True, False], "keep_all_reasoning": [True]}
        return {k: self.r.choice(v) for k, v in choices.items() if self.some(0.2)}

    def case(self):
        case = {"messages": [self.message(role) for role in self.roles()], "kwargs": self.kwargs(),
                "add_generation_prompt": self.some(0.6), "tools": None}
        if self.some(0.4):
            case["tools"] = [self.tool() for _ in range(self.r.randint(0, 3))]
        return case


class TooLong(Exception):
    pass


def give_up(*_):
    raise TooLong


def theirs(template, case):
    """(text, None) or (None, why)"""
    signal.alarm(5)
    try:
        tokens = case.get("tokens", {})
        return template.render(messages=case["messages"], tools=case["tools"], documents=None,
                               add_generation_prompt=case["add_generation_prompt"], **tokens, **case["kwargs"]), None
    except TooLong:
        return None, "too long"
    except Exception as e:
        return None, f"{type(e).__name__}: {e}"
    finally:
        signal.alarm(0)


def differs(peer, source, template, case):
    """A description, or None. Case texts go through JSON on both sides, so that both see the same values."""
    body = json.dumps({"source": source, **case}, ensure_ascii=False).encode("utf-8", errors="surrogatepass")
    failed, _, text = peer.ask("T", body)
    want, why = theirs(template, json.loads(body)) if template else (None, "does not parse")
    got = text.decode()
    if why == "too long" or (failed and want is None) or (not failed and got == want):
        return None
    at = 0
    if want is not None and not failed:
        while at < min(len(want), len(got)) and want[at] == got[at]:
            at += 1
    return (f"theirs: {why or repr(want[max(0, at - 30):at + 60])}\n    ours:   "
            f"{'fails: ' + got if failed else repr(got[max(0, at - 30):at + 60])}")


LACKING = re.compile(r"ours: +fails: .*?(no (?:filter|test) named '\w+'|'\w+ object' has no attribute '\w+'|the statement \"\w+\" is not supported"
                     r"|formatting a string with %|too large|recursive loops)")


class Report:
    def __init__(self, most):
        self.n = self.refused = self.found = self.lenient = 0
        self.most = most
        self.lacking = Counter()

    def count(self, what, found, case):
        self.n += 1
        lacking = LACKING.search(found or "")
        if lacking:
            self.lacking[lacking[1]] += 1
        elif found and "theirs: does not parse" in found:
            self.lenient += 1  # jinja2 looks for filters and tests in code that is never run, too
        elif found:
            self.found += 1
            if self.found <= self.most:
                print(f"  {what}\n    {found}\n    {json.dumps(case, ensure_ascii=False)[:600]}")


def sources(files):
    config = json.loads((ROOT / "models/nano/tokenizer_config.json").read_text(encoding="utf-8"))
    yield "nano", config["chat_template"]
    for path in sorted((ROOT / "tests/data/text/templates").glob("*.jinja")) + [Path(f) for f in files]:
        yield path.name, path.read_text(encoding="utf-8")


def compare_chats(peer, env, r, n, files, most):
    draw = Draw(r)
    for name, source in sources(files):
        report = Report(most)
        template = env.from_string(source)
        for _ in range(n):
            case = draw.case()
            case["tokens"] = {"bos_token": "<s>", "eos_token": "</s>"}
            report.count(name, differs(peer, source, template, case), case)
        print(f"{name}: {report.n} conversations, {report.found} differences", flush=True)
        yield report.found


def compare_programs(peer, env, r, n, most):
    report = Report(most)
    programs = Programs(r)
    for _ in range(n):
        source = programs.draw()
        try:
            template = env.from_string(source)
        except Exception:
            template = None
        case = {"messages": programs.messages, "tools": None, "kwargs": programs.context, "add_generation_prompt": True}
        report.count(repr(source), differs(peer, source, template, case), None)
        report.refused += template is None
    print("refused as not supported:", ", ".join(f"{what} ({n})" for what, n in report.lacking.most_common()) or "nothing")
    print(f"programs: {report.n}, of which jinja2 cannot parse {report.refused} and we render {report.lenient}; {report.found} differences")
    return report.found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("templates", nargs="*")
    p.add_argument("--peer", default=str(ROOT / "build/tests/text/text_peer"))
    p.add_argument("--cases", type=int, default=1000, help="conversations for each template")
    p.add_argument("--programs", type=int, default=20000)
    p.add_argument("--most", type=int, default=5, help="differences shown of each kind")
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    a = p.parse_args()
    print(f"seed {a.seed}")
    warnings.simplefilter("ignore")  # jinja2 compiles to Python, which has views on "1"["a"]
    signal.signal(signal.SIGALRM, give_up)
    peer, env, r = Peer(a.peer), environment(), random.Random(a.seed)
    found = sum(compare_chats(peer, env, r, a.cases, a.templates, a.most))
    found += compare_programs(peer, env, r, a.programs, a.most)
    peer.close()
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
