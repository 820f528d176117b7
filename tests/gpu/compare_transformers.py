#!/usr/bin/env python3
"""compare_transformers.py SHAPE: a decode step and a prompt of Hugging Face transformers on this GPU, made-up bf16 weights.

SHAPE is a folder with a config.json of a qwen3 (models/shapes/qwen3-8b). One sequence at a context of 1,024: eager, then with a static cache
compiled with CUDA graphs; a prompt of 8,192 tokens. The last line has all three. Run beside bench_step on the same machine."""
import sys
import time
import warnings

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache

CONTEXT, PROMPT, STEPS = 1024, 8192, 30


def timed(step, n, warm):
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / n * 1e3


def eager(model, ids):
    out = model(ids, use_cache=True)
    state = {"cache": out.past_key_values, "token": out.logits[:, -1:].argmax(-1)}

    def step():
        out = model(state["token"], past_key_values=state["cache"], use_cache=True)
        state["token"] = out.logits[:, -1:].argmax(-1)
        state["token"].cpu()  # a server has to see it
    return timed(step, STEPS, 5)


def prompt(model, vocab):
    ids = torch.randint(0, vocab, (1, PROMPT), device="cuda")
    return timed(lambda: model(ids, use_cache=True, logits_to_keep=1), 1, 1)


def compiled(model, config, ids):
    cache = StaticCache(config=config, max_cache_len=CONTEXT + 256)
    out = model(ids, past_key_values=cache, cache_position=torch.arange(CONTEXT, device="cuda"), use_cache=True)
    token, place = out.logits[:, -1:].argmax(-1).clone(), torch.tensor([CONTEXT], device="cuda")
    forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=False)

    def step():
        nonlocal token
        torch.compiler.cudagraph_mark_step_begin()
        out = forward(input_ids=token, past_key_values=cache, cache_position=place, position_ids=place[None], use_cache=True)
        token = out.logits[:, -1:].argmax(-1).clone()
        token.cpu()
        place.add_(1)
    return timed(step, STEPS, 8)


def main():
    warnings.filterwarnings("ignore")
    config = Qwen3Config.from_pretrained(sys.argv[1])
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config).eval()
    ids = torch.randint(0, config.vocab_size, (1, CONTEXT), device="cuda")
    with torch.inference_mode():
        plain, long = eager(model, ids), prompt(model, config.vocab_size)
        print(f"eager {plain:.2f} ms, prompt {long:.0f} ms", flush=True)
        print(f"transformers: eager {plain:.2f} ms a token, static cache with CUDA graphs {compiled(model, config, ids):.2f} ms, prompt of {PROMPT} {long:.0f} ms")


main()
