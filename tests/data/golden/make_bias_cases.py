#!/usr/bin/env python3
"""Makes llama3_bias and qwen3_linear_bias. Needs torch, transformers, safetensors.   make_bias_cases.py OUT_DIR"""
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

N_TOKENS, N_GREEDY = 90, 24
COMMON = dict(vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, head_dim=16, max_position_embeddings=256, attention_bias=True,
              attn_implementation="eager")
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)


@torch.no_grad()
def randomise(model):
    """Weights exact in bf16; biases large enough to matter."""
    for name, p in model.named_parameters():
        if name.endswith(".bias"):
            p.normal_(0, 0.2)
        elif "norm" in name:
            p.copy_(1 + 0.1 * torch.randn_like(p))
        else:
            p.normal_(0, 0.08)
        p.copy_(p.to(torch.bfloat16).float())


@torch.no_grad()
def reference(model):
    ids = torch.randint(0, model.config.vocab_size, (1, N_TOKENS))
    out = model(ids, output_hidden_states=True, use_cache=False)
    tensors = {"input_ids": ids[0].to(torch.int32), "logits": out.logits[0].contiguous()}
    for i, state in enumerate(out.hidden_states):
        tensors[f"hidden_tail.{i}"] = state[0, -8:].contiguous()
    for _ in range(N_GREEDY):
        next_id = model(ids, use_cache=False).logits[0, -1].argmax()
        ids = torch.cat([ids, next_id.view(1, 1)], 1)
    tensors["greedy"] = ids[0, N_TOKENS:].to(torch.int32)
    return tensors


def make(folder, model):
    torch.manual_seed(11)
    randomise(model.eval())
    tensors = reference(model)
    model.to(torch.bfloat16).save_pretrained(folder)
    save_file(tensors, os.path.join(folder, "golden.safetensors"))


if __name__ == "__main__":
    out = sys.argv[1]
    make(os.path.join(out, "llama3_bias"), LlamaForCausalLM(
        LlamaConfig(rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=LLAMA3, **COMMON)))
    make(os.path.join(out, "qwen3_linear_bias"), Qwen3ForCausalLM(
        Qwen3Config(rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=LINEAR, **COMMON)))
