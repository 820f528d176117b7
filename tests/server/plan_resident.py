#!/usr/bin/env python3
"""`tandem plan` against the memory that `tandem serve` really holds: for nano and three made-up shapes the server is started,
everything it has reserved is touched (as many full-length requests as run at once, scored and then continued, until every
cache block was used), and its resident set is compared with the plan's `lasting` bytes: what stays when no request is alive.

    TANDEM_BIN=build/tandem tests/server/plan_resident.py [name ...]

Within 16 MB below half a gigabyte, within 3 % above. Prints a line a shape; the exit code says whether all were. Measured with
2 workers: nano +8.0 MB, wide +7.8, hybrid +6.7, qwen3-0.6b +5.8 (0.4 %). Standard library only."""
import concurrent.futures
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import ROOT, Server  # noqa: E402

MB = 1 << 20
TANDEM = os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "tandem"))
MODELS = os.path.join(ROOT, "models")

WIDE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "bos_token_id": 0, "eos_token_id": 1,
        "head_dim": 64, "hidden_act": "silu", "hidden_size": 768, "intermediate_size": 2048, "max_position_embeddings": 2048,
        "num_attention_heads": 12, "num_hidden_layers": 10, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 32000}


def hybrid():
    """nano's kind, twice as wide and in float32."""
    config = json.load(open(os.path.join(MODELS, "nano", "config.json")))
    config.update(hidden_size=512, intermediate_size=1536, num_attention_heads=8, num_key_value_heads=4, dtype="float32",
                  linear_num_key_heads=8, linear_num_value_heads=16, mtp_num_hidden_layers=0)
    return config


def shape(folder, name, config):
    """A model directory without weights; nano's tokenizer stands in, prompts are ids anyway."""
    path = os.path.join(folder, name)
    os.mkdir(path)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(MODELS, "nano", file), path)
    return path


def cases(folder):
    dummy = ["--load-format", "dummy"]
    qwen = json.load(open(os.path.join(MODELS, "shapes", "qwen3-0.6b", "config.json")))
    plain = ["--speculative-config", '{"method": "none"}']
    return {
        "nano": [os.path.join(MODELS, "nano"), "--max-num-seqs", "4", "--max-model-len", "2048"],
        "wide": [shape(folder, "wide", WIDE), *dummy, "--max-num-seqs", "4", "--max-model-len", "1024"],
        "hybrid": [shape(folder, "hybrid", hybrid()), *dummy, *plain, "--max-num-seqs", "6", "--max-model-len", "2048"],
        "qwen3-0.6b": [shape(folder, "qwen3-0.6b", qwen), *dummy, *plain, "--max-num-seqs", "2", "--max-model-len", "640"],
    }


def touch(server, plan, random_ids):
    """Every block, slot, row and logit in use at least once: waves of full-length requests."""
    length, n_seqs, vocab = plan["max_model_len"], plan["max_num_seqs"], 4000
    n_waves = -(-plan["n_blocks"] * plan["block_size"] // (length * n_seqs)) + 1

    def ask(body):
        status, answer = server.post("/v1/completions", {"temperature": 0, **body}, timeout=600)
        assert status == 200, answer

    bodies = []
    for wave in range(n_waves):
        prompts = [[random_ids.randrange(vocab) for _ in range(length - 40)] for _ in range(n_seqs)]
        scored = {"echo": True, "logprobs": 1} if wave == 0 else {"logprobs": 0}
        bodies.append([{"prompt": p, "max_tokens": 36, "ignore_eos": True, **scored} for p in prompts])
    with concurrent.futures.ThreadPoolExecutor(n_seqs) as pool:
        for wave in bodies:
            list(pool.map(ask, wave))


def resident(pid):
    text = open(f"/proc/{pid}/smaps_rollup").read()
    status = open(f"/proc/{pid}/status").read()
    file = int(re.search(r"RssFile:\s+(\d+)", status).group(1)) * 1024
    return int(re.search(r"^Rss:\s+(\d+)", text, re.M).group(1)) * 1024, file


def measure(name, flags):
    plan = json.loads(subprocess.run([TANDEM, "plan", *flags, "--json"], check=True, stdout=subprocess.PIPE).stdout)
    with Server(TANDEM, "serve", *flags, "--port", "0") as server:
        touch(server, plan, random.Random(5))
        rss, file = resident(server.process.pid)
    planned = plan["lasting"]
    allowed = 16 * MB if rss < 512 * MB else rss * 3 // 100
    fine = abs(planned - rss) <= allowed
    print(f"{name:12} planned {planned / MB:8.1f} MB  resident {rss / MB:8.1f} MB (of files {file / MB:.1f})  "
          f"off by {(planned - rss) / MB:+6.1f} MB = {100 * (planned - rss) / rss:+5.1f} %  allowed {allowed / MB:5.1f}  "
          f"{'ok' if fine else 'TOO FAR'}", flush=True)
    return fine


def main():
    with tempfile.TemporaryDirectory() as folder:
        known = cases(folder)
        names = sys.argv[1:] or list(known)
        results = [measure(name, known[name]) for name in names]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
