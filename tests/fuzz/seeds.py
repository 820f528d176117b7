#!/usr/bin/env python3
"""seeds.py TARGET DIR: inputs to begin with, cut from the repository's own model and test vectors to what a small input holds,
and DIR.dict, the words of the format for libFuzzer."""
import json
import re
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NANO = ROOT / "models/nano"
TEXT = ROOT / "tests/data/text"


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


# ---- safetensors ----

ITEM_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "F8_E4M3": 1, "U8": 1, "BOOL": 1}


def safetensors_file(tensors, metadata=None, space="        "):
    """tensors: name -> (dtype, shape). Blanks at the end, as real ones have: room for a mutation to insert something."""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape) in tensors.items():
        n = ITEM_BYTES.get(dtype, 1)
        for dim in shape:
            n *= dim
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode() + space.encode()
    return struct.pack("<Q", len(text)) + text + bytes(i % 251 for i in range(at))


def safetensors_seeds():
    with open(NANO / "model.safetensors", "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    real = [(name, d) for name, d in header.items() if name != "__metadata__"]
    cut = {name: (d["dtype"], [min(dim, 2) for dim in d["shape"]]) for name, d in real[:6]}
    plain = safetensors_file(cut, header.get("__metadata__"))
    alone = b"\0\0"
    yield alone + plain
    yield alone + safetensors_file({f"t.{dtype}": (dtype, [1, 2]) for dtype in ITEM_BYTES}, {"format": "pt", "a": "b"}, " \n\t\r ")
    yield alone + safetensors_file({"\u00e9\u65e5\U0001f600\"\\/\b\f\n\r\t": ("F32", [])})
    yield alone + safetensors_file({"empty": ("F32", [0]), "deep": ("U8", [1] * 8), "scalar": ("BF16", []), "odd": ("Q9", [3])})
    yield alone + safetensors_file({"t": ("U8", [64])}, space="")  # mostly data: what cuts it, cuts that
    yield alone + safetensors_file({})
    yield alone + b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    names = {name: "a.safetensors" for name in cut}
    for weight_map in (names, {**names, "more": "a.safetensors"}, dict(list(names.items())[:-1]), {"x": "../a.safetensors"}, {}):
        index = json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}).encode()
        yield struct.pack("<H", len(index)) + index + plain
    index = json.dumps({"weight_map": {"t": "a.safetensors", "u": "b.safetensors"}}).encode()
    yield struct.pack("<H", len(index)) + index + safetensors_file({"t": ("U8", [1])})


# ---- GGUF ----

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


def gguf_value(kind, value):
    if kind == STRING:
        return struct.pack("<Q", len(value.encode())) + value.encode()
    if kind == ARRAY:
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(gguf_value(element, item) for item in items)
    return struct.pack("<" + FORMS[kind], value)


def gguf_file(keys, tensors, alignment=32, version=3):
    """keys: name -> (type, value); tensors: name -> (type, ne, bytes)."""
    out, data = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)), b""
    for name, (kind, value) in keys.items():
        out += gguf_value(STRING, name) + struct.pack("<I", kind) + gguf_value(kind, value)
    for name, (kind, ne, n) in tensors.items():
        data += bytes(-len(data) % alignment)
        out += gguf_value(STRING, name) + struct.pack("<I", len(ne)) + struct.pack(f"<{len(ne)}Q", *ne) + struct.pack("<IQ", kind, len(data))
        data += bytes(n)
    return out + bytes(-len(out) % alignment) + data


def gguf_seeds():
    config = read_json(NANO / "config.json")
    config = config.get("text_config", config)
    tensors = {"token_embd.weight": (1, [4, 2], 16), "blk.0.attn_q.weight": (8, [32, 1], 34), "output_norm.weight": (0, [4], 16),
               "blk.0.ffn_up.weight": (12, [256], 144)}
    numbers = {"u8": (U8, 12), "i8": (I8, -1), "u16": (U16, 12), "i16": (I16, -1), "f32": (F32, 1.5), "f64": (F64, 2.5), "bool": (BOOL, True),
               "u64": (U64, 1 << 63), "i64": (I64, -5), "ints": (ARRAY, (I32, [1, -2])), "reals": (ARRAY, (F32, [0.5])), "bits": (ARRAY, (BOOL, [True]))}
    model = {"general.architecture": (STRING, "qwen35"), "general.alignment": (U32, 32),
             "qwen35.block_count": (U32, config["num_hidden_layers"]), "qwen35.embedding_length": (U32, config["hidden_size"])}
    pieces = ["a", "b", "ab", "\u0120", "'", "\u010a", "1", "\u00c3", "\u00a9", "<|im_start|>", "<unk>"]
    for pre in ("qwen2", "llama-bpe", "qwen35", "smollm", "default"):
        words = {"tokenizer.ggml.model": (STRING, "gpt2"), "tokenizer.ggml.pre": (STRING, pre),
                 "tokenizer.ggml.tokens": (ARRAY, (STRING, pieces)), "tokenizer.ggml.merges": (ARRAY, (STRING, ["a b", "\u00c3 \u00a9"])),
                 "tokenizer.ggml.token_type": (ARRAY, (I32, [1] * 9 + [3, 2])), "tokenizer.ggml.eos_token_id": (U32, 9),
                 "tokenizer.ggml.bos_token_id": (U32, 9), "tokenizer.ggml.add_bos_token": (BOOL, True),
                 "tokenizer.chat_template": (STRING, "{% for m in messages %}{{ m.content }}{% endfor %}")}
        yield gguf_file({**model, **words}, tensors)
    yield gguf_file({**words, "tokenizer.ggml.model": (STRING, "llama"), "tokenizer.ggml.scores": (ARRAY, (F32, [0.0] * 11))}, {})
    yield gguf_file({**model, **numbers}, tensors, version=2)
    yield gguf_file({}, {})
    yield b"version https://git-lfs.github.com/spec/v1\n"


# ---- tokenizer.json, templates ----


def tokenizer_seeds():
    whole = read_json(NANO / "tokenizer.json")
    variants = read_json(TEXT / "tokens.json")["variants"]
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
    for path in sorted((TEXT / "templates").glob("*.jinja")):
        yield path.read_text(encoding="utf-8")
    # What is refused is left out: that is for the fuzzer to find.
    yield from (c["source"] for c in read_json(TEXT / "jinja.json")["cases"] if c["expected"] is not None)


# ---- requests ----


def bodies():
    """(path, letter of fuzz_body.c, body)."""
    chat = {"model": "parrot", "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    yield "c", {**chat, "temperature": 0.7, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "seed": 7, "n": 2, "max_completion_tokens": 5, "stream": True,
                "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 3, "stop": "END"}
    yield "c", {**chat, "stop": list("abcdefghijklmnop"), "logit_bias": {"12": -100, "13": 5.5}, "presence_penalty": 0.5, "frequency_penalty": -0.5,
                "repetition_penalty": 1.1, "min_tokens": 1, "stop_token_ids": [1, 2], "response_format": {"type": "text"}}
    yield "c", {**chat, "tools": [tool], "tool_choice": "auto", "chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": True}
    yield "c", {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": None, "tool_calls": [call]},
                             {"role": "tool", "content": "1", "tool_call_id": "1"}, {"role": "developer", "content": "x"}]}
    yield "C", {"messages": [{"role": "user", "content": parts}], "speculation": {"method": "ngram", "num_speculative_tokens": 3}}
    yield "c", {**chat, "speculation": "auto", "user": "u", "metadata": {}, "store": None}
    yield "c", {**chat, "speculation": {"tree_budget": 4}, "best_of": 2}
    yield "p", {"prompt": "once", "max_tokens": 0, "echo": True, "logprobs": 1, "speculation": False}
    yield "p", {"prompt": ["a", "b"], "best_of": 1, "ignore_eos": True, "skip_special_tokens": False, "include_stop_str_in_output": True}
    yield "p", {"prompt": "a", "stop": list("abcdefghijklmnop")}
    yield "p", {"prompt": [[1, 2], [3]], "speculation": {"method": "none"}}
    yield "p", {"prompt": [1, 2, 3], "echo": True, "suffix": None, "use_beam_search": False}
    yield "t", {"prompt": "h\u00e9llo \ud83d\ude00", "return_token_strs": True}
    yield "t", {"messages": chat["messages"]}
    yield "d", {"tokens": [1, 2, 3, 258]}
    for key in ("suffix", "guided_json", "functions", "documents", "n", "temperature", "seed", "stop", "stream", "logit_bias"):
        yield "c", {**chat, key: "x"}


def body_seeds():
    for letter, body in bodies():
        yield letter + json.dumps(body)


def http_request(method, path, body="", **headers):
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Authorization: Bearer key"] + [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
    if body:
        lines.append(f"Content-Length: {len(body.encode())}")
    return "\r\n".join(lines) + "\r\n\r\n" + body


def http_seeds():
    paths = {"c": "/v1/chat/completions", "p": "/v1/completions", "t": "/tokenize", "d": "/detokenize"}
    for path in ("/health", "/version", "/metrics", "/v1/models", "/v1/models/parrot", "/v1/models/other", "/none", "/health?x=%20#y"):
        yield http_request("GET", path)
    for letter, body in list(bodies())[:14:2]:
        yield http_request("POST", paths[letter.lower()], json.dumps(body), Content_Type="application/json")
    yield http_request("GET", "/health", Connection="close") + http_request("GET", "/version")
    yield http_request("GET", "/health") + http_request("POST", "/tokenize", '{"prompt":"a"}') + http_request("GET", "/metrics")
    yield http_request("OPTIONS", "/tokenize", Origin="http://127.0.0.1", Access_Control_Request_Headers="X-Api-Key")
    yield http_request("GET", "/health", Origin="http://allowed.example") + http_request("GET", "/health", Origin="https://stranger.example")
    yield http_request("HEAD", "/v1/models") + http_request("DELETE", "/v1/models") + http_request("PATCH", "/tokenize")
    yield "GET /version HTTP/1.0\r\nX-Api-Key: key\r\n\r\n"
    yield "GET /version HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: wrong\r\nAuthorization: Basic x\r\n\r\n"
    yield "GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\nGET /health HTTP/1.1\r\n\r\n"
    yield http_request("POST", "/tokenize", Transfer_Encoding="chunked") + "5\r\n{\"pro\r\nb\r\nmpt\":\"abc\"}\r\n0\r\n\r\n"
    yield http_request("POST", "/tokenize", "{}", Transfer_Encoding="chunked")
    yield http_request("POST", "/tokenize", "{}", Expect="100-continue")
    yield http_request("POST", "/tokenize", Content_Length="3001") + http_request("GET", "/health", X="a" * 2048)
    yield "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}"
    yield "GET http://127.0.0.1/health HTTP/1.1\r\nHost: [::1]:80\r\nOrigin: http://[::1]:80\r\n X: folded\r\n\r\n"


# ---- words ----

JSON_WORDS = ['"x",', "1,", "\\\\u00e9", "\\\\ud83d\\\\ude00", "\\\\n", "null", "true", "false", "1e999", "-1", "9223372036854775808", "{}", "[]", "\\x00"]
WORDS = {
    "safetensors": ["__metadata__", "dtype", "shape", "data_offsets", "weight_map", "a.safetensors", "9223372036854775807", "[0,0]", "1099511627776",
                    *ITEM_BYTES, *JSON_WORDS],
    "gguf": ["GGUF", "general.alignment", "general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.merges", "tokenizer.chat_template",
             "\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff", "\\x00\\x00\\x00\\x80", "\\x09\\x00\\x00\\x00", "\\x08\\x00\\x00\\x00"],
    "tokenizer": ["vocab", "merges", "model", "added_tokens", "pre_tokenizer", "normalizer", "NFC", "Sequence", "ByteLevel", "Split", "Digits",
                  "Regex", "String", "Isolated", "behavior", "pattern", "pretokenizers", "normalizers", "ignore_merges", "special", "normalized",
                  "content", "id", "#version", *JSON_WORDS],
    "template": ["{%", "%}", "{{", "}}", "{#", "#}", "{%-", "-%}", "for", "endfor", "if", "elif", "else", "endif", "set", "endset", "macro",
                 "endmacro", "in", "is", "not", "and", "or", "break", "continue", "generation", "endgeneration", "raw", "endraw", "namespace",
                 "loop", "messages", "range(", "|tojson", "|join", "|map", "|selectattr", "|items", "|trim", "|default", ".split(", ".strip(",
                 ".items()", "[::-1]", "[1:", "'{}'.format(", "~", "//", "**"],
    "body": sorted({key for _, body in bodies() for key in body}) + ["role", "content", "assistant", "tool_calls", "image_url", "tree_budget",
                                                                     "json_object", "none", "mtp", "dflash", *JSON_WORDS],
    "http": ["GET ", "POST ", "HEAD ", "OPTIONS ", " HTTP/1.1", " HTTP/1.0", "\\x0d\\x0a", "\\x0d\\x0a\\x0d\\x0a", "Host: ", "Origin: ", "Content-Length: ",
             "Transfer-Encoding: chunked", "Connection: close", "Authorization: Bearer", "X-Api-Key: key", "Expect: 100-continue", "/health",
             "/v1/models/", "%00", "Bearer", "0\\x0d\\x0a\\x0d\\x0a"],
}
SEEDS = {"safetensors": safetensors_seeds, "gguf": gguf_seeds, "tokenizer": tokenizer_seeds, "template": template_seeds, "body": body_seeds,
         "http": http_seeds}


def main(target, out):
    Path(out).mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(SEEDS[target]()):
        data = seed if isinstance(seed, bytes) else seed.encode("utf-8", "surrogatepass")
        (Path(out) / f"{i:04}").write_bytes(data)
    lines = ['"' + re.sub(r'(?<!\\)"', r'\\"', word) + '"' for word in WORDS[target]]
    Path(out + ".dict").write_text("\n".join(lines) + "\n", encoding="utf-8")


main(*sys.argv[1:])
