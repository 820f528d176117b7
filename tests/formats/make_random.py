#!/usr/bin/env python3
"""make_random.py qwen3|qwen3_5 NANO OUT: a model of random bf16 weights whose matrices all take multiples of 256 inputs, with the
tokenizer of the bundled model in NANO; qwen3_5 with an MTP module. Beside it OUT-DFlash: NANO's drafter, reading this model's layers (its
guesses are worthless, which is fine). No package is needed; the family is the seed, so the same call gives the same bytes."""
import json
import random
import shutil
import struct
import sys
from pathlib import Path

H, I, HEADS, KV, D, VOCAB, GDN_HEADS, GDN_DIM, CONV, LAYERS = 256, 512, 4, 2, 64, 4096, 4, 64, 4, 3


def attention(gated):
    return {"self_attn.q_proj": (HEADS * D * (2 if gated else 1), H), "self_attn.k_proj": (KV * D, H), "self_attn.v_proj": (KV * D, H),
            "self_attn.o_proj": (H, HEADS * D), "self_attn.q_norm": (D,), "self_attn.k_norm": (D,)}


def gated_delta():
    width = GDN_HEADS * GDN_DIM
    return {"linear_attn.in_proj_qkv": (3 * width, H), "linear_attn.in_proj_z": (width, H), "linear_attn.in_proj_a": (GDN_HEADS, H),
            "linear_attn.in_proj_b": (GDN_HEADS, H), "linear_attn.conv1d": (3 * width, 1, CONV), "linear_attn.out_proj": (H, width),
            "linear_attn.norm": (GDN_DIM,), "linear_attn.dt_bias": (GDN_HEADS,), "linear_attn.A_log": (GDN_HEADS,)}


def tensors(kinds, gated):
    common = {"mlp.gate_proj": (I, H), "mlp.up_proj": (I, H), "mlp.down_proj": (H, I), "input_layernorm": (H,), "post_attention_layernorm": (H,)}
    found = {"model.embed_tokens": (VOCAB, H), "model.norm": (H,)}
    layers = {f"model.layers.{i}": kind for i, kind in enumerate(kinds)}
    if gated:
        found |= {"mtp.fc": (H, 2 * H), "mtp.norm": (H,), "mtp.pre_fc_norm_embedding": (H,), "mtp.pre_fc_norm_hidden": (H,)}
        layers["mtp.layers.0"] = "full_attention"
    for prefix, kind in layers.items():
        part = attention(gated) if kind == "full_attention" else gated_delta()
        found |= {f"{prefix}.{name}": shape for name, shape in (part | common).items()}
    return found


def put_drafter(nano, out):
    source, beside = nano.with_name(nano.name + "-DFlash"), out.with_name(out.name + "-DFlash")
    config = json.loads((source / "config.json").read_text())
    config |= {"num_target_layers": LAYERS, "dflash_config": config["dflash_config"] | {"target_layer_ids": list(range(LAYERS))}}
    beside.mkdir(exist_ok=True)
    (beside / "config.json").write_text(json.dumps(config))
    shutil.copy(source / "model.safetensors", beside / "model.safetensors")


def numbers(rng, shape, is_norm):
    """bf16 words of random sign and a magnitude of about 1 / sqrt(inputs); norms that are not centred on zero: 1 to 2."""
    n = 1
    for d in shape:
        n *= d
    exponent = {256: 122, 512: 122}.get(shape[-1], 124) if len(shape) > 1 else 120
    words = int.from_bytes(rng.randbytes(2 * n), "little")
    mask, base = (b"\x7f\x00", 127) if is_norm else (b"\x7f\x80", exponent)
    mask, base = int.from_bytes(mask * n, "little"), int.from_bytes(struct.pack("<H", base << 7) * n, "little")
    return ((words & mask) | base).to_bytes(2 * n, "little")


def main():
    family, nano, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    gated = family == "qwen3_5"
    kinds = ["linear_attention", "linear_attention", "full_attention"] if gated else ["full_attention"] * LAYERS
    config = json.loads((nano / "config.json").read_text())
    config |= {"architectures": ["Qwen3_5ForCausalLM" if gated else "Qwen3ForCausalLM"], "model_type": "qwen3_5_text" if gated else "qwen3",
               "hidden_size": H, "intermediate_size": I, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": D,
               "num_hidden_layers": len(kinds), "layer_types": kinds, "mtp_num_hidden_layers": 1, "linear_num_key_heads": GDN_HEADS,
               "linear_num_value_heads": GDN_HEADS, "linear_key_head_dim": GDN_DIM, "linear_value_head_dim": GDN_DIM}
    if not gated:
        config = {k: v for k, v in config.items() if not k.startswith(("linear_", "mtp_", "partial_"))}
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6}
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=1))
    for name in "tokenizer.json", "tokenizer_config.json", "generation_config.json":
        shutil.copy(nano / name, out / name)
    rng, header, data = random.Random(family), {}, []
    at = 0
    for name, shape in tensors(kinds, gated).items():
        raw = numbers(rng, shape, name.endswith("linear_attn.norm") or ("norm" in name and not gated))
        name += "" if name.endswith(("dt_bias", "A_log")) else ".weight"
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    put_drafter(nano, out)
    (out / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


main()
