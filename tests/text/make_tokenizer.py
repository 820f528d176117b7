#!/usr/bin/env python3
"""Writes a tokenizer.json where the published one is not at hand.

    make_tokenizer.py tiktoken qwen3.5 FILE OUT_DIR       from a list of base64 tokens and ranks
    make_tokenizer.py gguf FILE OUT_DIR                   from the tokens and merges inside a GGUF file (PyPI: gguf)
    make_tokenizer.py seams PATTERN OUT_DIR               one whose ids show where the pre-tokenizer cut
    make_tokenizer.py train PATTERN OUT_DIR TEXT ...      a small one of PATTERN's form, trained on files (PyPI: tokenizers)

PATTERN: qwen3, qwen3.5, llama3, smollm2; docs/spec/models.md 6.3."""
import base64
import json
import sys
from pathlib import Path

HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
SPLIT = {
    "qwen3": HEAD + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen3.5": HEAD + r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama3": HEAD + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]


def byte_characters():
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {**{b: chr(b) for b in shown}, **{b: chr(256 + i) for i, b in enumerate(hidden)}}


CHARACTER = byte_characters()


def mapped(token):
    return "".join(CHARACTER[b] for b in token)


def pre_tokenizer(pattern):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    if pattern == "smollm2":
        first = {"type": "Digits", "individual_digits": True}
        level["use_regex"] = True
    else:
        first = {"type": "Split", "pattern": {"Regex": SPLIT[pattern]}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [first, level]}


def added(tokens):
    """tokens: (id, text, special)"""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [{"id": i, "content": text, **flags, "special": special} for i, text, special in tokens]


def file_of(pattern, vocab, merges, extra, string_merges=False):
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": pattern == "llama3", "vocab": vocab,
             "merges": [" ".join(m) for m in merges] if string_merges else [list(m) for m in merges]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added(extra),
            "normalizer": {"type": "NFC"} if pattern.startswith("qwen") else None, "pre_tokenizer": pre_tokenizer(pattern),
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            "model": model}


def halves(ranks, token):
    """What a token was merged from: its bytes, merged as far as lower ranks lead."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        rank, at = min((ranks.get(parts[i] + parts[i + 1], 1 << 60), i) for i in range(len(parts) - 1))
        if rank >= ranks[token]:
            return None
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
    return parts


def from_tiktoken(pattern, path):
    lines = [line.split() for line in Path(path).read_bytes().splitlines() if line]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    pairs = [halves(ranks, token) for token in sorted(ranks, key=ranks.get) if len(token) > 1]
    print(f"{len(ranks)} tokens, {pairs.count(None)} of them reached by no merge", file=sys.stderr)
    merges = [(mapped(p[0]), mapped(p[1])) for p in pairs if p]
    first = max(ranks.values()) + 1
    extra = [(first + i, text, i < 3) for i, text in enumerate(CHATML)]
    return file_of(pattern, {mapped(token): rank for token, rank in ranks.items()}, merges, extra)


def from_gguf(path):
    import gguf
    fields = gguf.GGUFReader(path).fields
    tokens, types = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents()
    merges = [m.split(" ") for m in fields["tokenizer.ggml.merges"].contents()]
    pattern = {"smollm": "smollm2", "qwen2": "qwen3", "qwen35": "qwen3.5", "llama-bpe": "llama3"}[
        fields["tokenizer.ggml.pre"].contents()]
    extra = [(i, text, True) for i, text in enumerate(tokens) if types[i] == 3]
    return file_of(pattern, {text: i for i, text in enumerate(tokens)}, merges, extra, string_merges=True)


def seams(pattern):
    """Merges that only ever join the last byte of one character with the first of the next."""
    ends = [CHARACTER[b] for b in [*range(0x80, 0xC0), *b" \n\r\t.'1aSs"]]
    begins = [CHARACTER[b] for b in [*range(0xC2, 0xF5), *b" \n\r\t.'1aSs"]]
    merges = [(e, b) for e in ends for b in begins]
    tokens = [*(CHARACTER[b] for b in range(256)), *(e + b for e, b in merges)]
    return file_of(pattern, {text: i for i, text in enumerate(tokens)}, merges, [])


def trained(pattern, texts):
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    t = Tokenizer(models.BPE())
    if pattern.startswith("qwen"):
        t.normalizer = normalizers.NFC()
    first = pre_tokenizers.Digits(True) if pattern == "smollm2" else pre_tokenizers.Split(Regex(SPLIT[pattern]), "isolated")
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == "smollm2")])
    trainer = trainers.BpeTrainer(vocab_size=8000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    t.train(texts, trainer)
    model = json.loads(t.to_str())["model"]
    extra = [(len(model["vocab"]) + i, text, i < 3) for i, text in enumerate(CHATML)]
    return file_of(pattern, model["vocab"], model["merges"], extra, string_merges=pattern in ("llama3", "smollm2"))


def main(form, *rest):
    if form == "tiktoken":
        pattern, path, out = rest
        spec = from_tiktoken(pattern, path)
    elif form == "gguf":
        path, out = rest
        spec = from_gguf(path)
    elif form == "seams":
        pattern, out = rest
        spec = seams(pattern)
    else:
        pattern, out, *texts = rest
        spec = trained(pattern, texts)
    Path(out).mkdir(parents=True, exist_ok=True)
    (Path(out) / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
