#!/usr/bin/env python3
"""Fills in the expected values of tokens.json, chat.json and jinja.json beside this file from the original
implementations: the PyPI packages tokenizers and jinja2. To add a case write its input, run this, look at the diff.

    python3 -m venv /tmp/vectors && /tmp/vectors/bin/pip install tokenizers jinja2
    /tmp/vectors/bin/python tests/data/text/fill_vectors.py"""
import json
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

HERE = Path(__file__).parent
MODELS = HERE.parent.parent.parent / "models"


def load(name):
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def store(name, data, key):
    """One case a line."""
    cases = ",\n".join("  " + json.dumps(case, ensure_ascii=False) for case in data.pop(key))
    rest = "".join(f'"{k}": {json.dumps(v, ensure_ascii=False)},\n' for k, v in data.items())
    (HERE / name).write_text(f'{{\n{rest}"{key}": [\n{cases}\n]\n}}\n', encoding="utf-8")


def tokenizer_of(variant):
    """nano's tokenizer with the parts that the variant replaces, as test_tokenizer.c builds it, too."""
    spec = json.loads((MODELS / "nano" / "tokenizer.json").read_text(encoding="utf-8"))
    spec["normalizer"] = variant.get("normalizer", spec["normalizer"])
    spec["pre_tokenizer"] = variant.get("pre_tokenizer", spec["pre_tokenizer"])
    spec["model"]["ignore_merges"] = variant.get("ignore_merges", False)
    spec["added_tokens"] += variant.get("added_tokens", [])
    if variant.get("string_merges"):
        spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]
    return Tokenizer.from_str(json.dumps(spec))


def fill_tokens():
    data = load("tokens.json")
    known = {name: tokenizer_of(variant) for name, variant in data["variants"].items()}
    for case in data["cases"]:
        case["ids"] = known[case["variant"]].encode(case["text"], add_special_tokens=False).ids
    for case in data["bytes"]:
        case["text"] = bytes.fromhex(case["hex"]).decode("utf-8", errors="replace")
    store("tokens.json", data, "cases")


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
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def render(env, source, case):
    """The text, or None and what raise_exception said ("" for every other error)."""
    try:
        return env.from_string(source).render(
            messages=case["messages"], tools=case.get("tools"), documents=None,
            add_generation_prompt=case.get("add_generation_prompt", False), bos_token="<s>",
            **case.get("kwargs", {})), None
    except jinja2.exceptions.TemplateError as e:
        return None, str(e) if type(e) is jinja2.exceptions.TemplateError else ""
    except Exception:
        return None, ""


def source_of(name):
    if name == "nano":
        return json.loads((MODELS / "nano" / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
    return (HERE / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def fill_templates():
    env = environment()
    chat = load("chat.json")
    for case in chat["cases"]:
        case["expected"], case["raised"] = render(env, source_of(case["template"]), case)
    store("chat.json", chat, "cases")
    jinja = load("jinja.json")
    for case in jinja["cases"]:
        case["expected"], _ = render(env, case["source"], jinja["context"])
    store("jinja.json", jinja, "cases")


fill_tokens()
fill_templates()
