#!/usr/bin/env python3
"""Seeds and a dictionary for run_text: nano's tokenizer cut down to what a small input holds; the templates of the tests."""
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WORDS = {
    "tokenizer": ["vocab", "merges", "model", "added_tokens", "pre_tokenizer", "normalizer", "NFC", "Sequence", "ByteLevel", "Split", "Digits",
                  "Regex", "String", "Isolated", "behavior", "pattern", "pretokenizers", "normalizers", "ignore_merges", "special", "normalized",
                  "content", "id", "\\\\u00e9", "\\\\ud83d\\\\ude00", "#version"],
    "template": ["{%", "%}", "{{", "}}", "{#", "#}", "{%-", "-%}", "for", "endfor", "if", "elif", "else", "endif", "set", "endset", "macro",
                 "endmacro", "in", "is", "not", "and", "or", "break", "continue", "generation", "endgeneration", "raw", "endraw", "namespace",
                 "loop", "messages", "range(", "|tojson", "|join", "|map", "|selectattr", "|items", "|trim", "|default", ".split(", ".strip(",
                 ".items()", "[::-1]", "[1:", "'{}'.format(", "~", "//", "**"],
}


def tokenizer_seeds():
    whole = json.loads((ROOT / "models/nano/tokenizer.json").read_text(encoding="utf-8"))
    variants = json.loads((ROOT / "tests/data/text/tokens.json").read_text(encoding="utf-8"))["variants"]
    model = whole["model"]
    pairs = [m for m in model["merges"] if m[0] + m[1] in model["vocab"]][:8]
    texts = sorted({half for m in pairs for half in (m[0], m[1], m[0] + m[1])})
    model.update(merges=pairs, vocab={text: i for i, text in enumerate(texts)})
    whole["added_tokens"] = [{**t, "id": 100 + i} for i, t in enumerate(whole["added_tokens"][:2])]
    for variant in variants.values():
        spec = {**whole, **{k: v for k, v in variant.items() if k in ("normalizer", "pre_tokenizer")}}
        yield json.dumps(spec, ensure_ascii=False)
        yield json.dumps(spec | {"model": model | {"merges": [" ".join(m) for m in pairs], "ignore_merges": True}})
    yield '{"model":{"vocab":{"\\u0061\\"":0,"\\ud83d\\ude00":1},"merges":["#version: 1"]},"pre_tokenizer":{"type":"ByteLevel"}}'


def template_seeds():
    for path in (ROOT / "tests/data/text/templates").glob("*.jinja"):
        yield path.read_text(encoding="utf-8")
    for case in json.loads((ROOT / "tests/data/text/jinja.json").read_text(encoding="utf-8"))["cases"]:
        yield case["source"]


def main(target, out):
    for i, seed in enumerate({"tokenizer": tokenizer_seeds, "template": template_seeds}[target]()):
        (Path(out) / str(i)).write_text(seed, encoding="utf-8")
    lines = ['"' + re.sub(r'(?<!\\)"', r'\\"', word) + '"' for word in WORDS[target]]
    Path(out + ".dict").write_text("\n".join(lines) + "\n", encoding="utf-8")


main(*sys.argv[1:])
