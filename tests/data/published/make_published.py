#!/usr/bin/env python3
"""Tiny models in the layouts that public tools publish, and what the tools' own decoders make of them.

    pip install torch transformers compressed-tensors llmcompressor nvidia-modelopt
    pip install --no-deps autoawq==0.2.9 auto-gptq==0.7.1
    ./make_published.py OUT [FAMILY ...]

Each folder is one checkpoint as its tool wrote it (all on a CPU) and golden.safetensors: `input_ids`, and `logits` in float32
of the model whose weights the tool's decoder gave (README.md says which). The random model before quantising is always the same."""
import copy
import importlib.util
import json
import shutil
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3_5TextConfig

SEED, VOCAB, TOKENS, GROUP = 29, 128, 40, 64


def tiny(family="qwen3"):
    torch.manual_seed(SEED)
    common = dict(vocab_size=VOCAB, hidden_size=128, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                  max_position_embeddings=512, tie_word_embeddings=False, initializer_range=0.08, dtype=torch.bfloat16,
                  bos_token_id=None, eos_token_id=None)
    if family == "qwen3":
        config = Qwen3Config(num_hidden_layers=2, **common)
    else:
        config = Qwen3_5TextConfig(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2,
                                   linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32,
                                   rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25,
                                                    "mrope_interleaved": True, "mrope_section": [2, 1, 1]}, **common)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    for name, p in model.named_parameters():
        if name.endswith("norm.weight"):
            p.data += 0.1 * torch.randn_like(p)
    return model


def linears(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}


def save_golden(out, model):
    ids = torch.randint(0, VOCAB, (1, TOKENS), generator=torch.Generator().manual_seed(SEED))
    with torch.no_grad():
        logits = model.float()(ids).logits[0]
    save_file({"input_ids": ids[0].to(torch.int32), "logits": logits.contiguous()}, out / "golden.safetensors")


def with_weights(model, weights):
    """The unquantised model in float32 with these matrices in it."""
    model = model.float()
    modules = dict(model.named_modules())
    for name, w in weights.items():
        assert modules[name].weight.shape == w.shape, name
        modules[name].weight.data = w.float()
    return model


def write_parts(out, model, parts, quantization_config):
    """The model's other tensors as they are, and these parts in the place of its linears."""
    replaced = {f"{n}.weight" for n in linears(model)}
    tensors = {n: t.contiguous() for n, t in model.state_dict().items() if n not in replaced}
    save_file(tensors | {n: t.contiguous() for n, t in parts.items()}, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads(model.config.to_json_string())
    config["quantization_config"] = quantization_config
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")


# ---- compressed-tensors, by llmcompressor ----

def compressed(scheme):
    def make(out):
        from llmcompressor import oneshot
        from llmcompressor.modifiers.quantization import QuantizationModifier
        source = out / "source"
        tiny().save_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
        oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme=scheme, ignore=["lm_head"]))
        model.save_pretrained(out, save_compressed=True)
        shutil.rmtree(source)
        save_golden(out, with_weights(tiny(), decompressed(out)))
    return make


def decompressed(folder):
    """Each matrix by compressed_tensors' own unpacking and dequantize(), in float32."""
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    declared = json.loads((folder / "config.json").read_text())["quantization_config"]
    args = QuantizationArgs.model_validate(declared["config_groups"]["group_0"]["weights"])
    stored = load_file(folder / "model.safetensors")
    found = {}
    for key in [k for k in stored if k.endswith(".weight_scale")]:
        name, scale = key.removesuffix(".weight_scale"), stored[key]
        part = {k: stored.get(f"{name}.{k}") for k in ("weight", "weight_packed", "weight_shape", "weight_zero_point", "weight_global_scale")}
        more = {}
        if part["weight"] is not None:
            codes = part["weight"].float()
        elif part["weight_shape"] is not None:
            shape = torch.Size(part["weight_shape"].tolist())
            codes = unpack_from_int32(part["weight_packed"], args.num_bits, shape).float()
            if part["weight_zero_point"] is not None:
                zeros = unpack_from_int32(part["weight_zero_point"], args.num_bits, torch.Size([shape[0], scale.shape[1]]), packed_dim=0)
                more["zero_point"] = zeros.float()
        else:
            n, k = part["weight_packed"].shape
            codes = unpack_fp4_from_uint8(part["weight_packed"], n, 2 * k, torch.float32)
            if part["weight_global_scale"] is None:
                scale = decompress_mx_scale(scale)
            else:
                more["global_scale"] = part["weight_global_scale"]
        found[name] = dequantize(codes, scale.float(), args=args, dtype=torch.float32, **more)
    return found


# ---- ModelOpt ----

def modelopt(config_name, family):
    def make(out):
        import modelopt.torch.quantization as mtq
        from modelopt.torch.export import export_hf_checkpoint
        from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
        source = out / "source"
        tiny(family).save_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
        config = copy.deepcopy(getattr(mtq, config_name))
        some = torch.randint(0, VOCAB, (4, 32), generator=torch.Generator().manual_seed(1))
        mtq.quantize(model, config, forward_loop=lambda m: m(some))
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=out)
        shutil.rmtree(source)
        stored, found = load_file(out / "model.safetensors"), {}
        for key in [k for k in stored if k.endswith(".weight_scale")]:
            name, scale = key.removesuffix(".weight_scale"), stored[key].float()
            codes = stored[f"{name}.weight"]
            if codes.dtype == torch.uint8:
                n, k = codes.shape
                packed = NVFP4QTensor(torch.Size([n, 2 * k]), torch.float32, codes)
                found[name] = packed.dequantize(torch.float32, scale=stored[key], double_scale=stored[f"{name}.weight_scale_2"],
                                                block_sizes={-1: 16})
            else:
                if scale.dim() == 4:
                    scale = scale[:, 0, :, 0].repeat_interleave(128, 0).repeat_interleave(128, 1)[:codes.shape[0], :codes.shape[1]]
                elif scale.dim() == 1:
                    scale = scale[:, None]
                found[name] = codes.float() * scale
        save_golden(out, with_weights(tiny(family), found))
    return make


# ---- FP8 as Qwen publishes it: by the quantizer of transformers, read back by its dequantizer ----

def fine_grained(out):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
    quantizer = types.SimpleNamespace(quantization_config=types.SimpleNamespace(weight_block_size=[128, 128], scale_fmt=None),
                                      pre_quantized=True)
    model, parts, found = tiny(), {}, {}
    for name, m in linears(model).items():
        w = torch.zeros([-(-s // 128) * 128 for s in m.weight.shape], dtype=torch.bfloat16)
        w[:m.weight.shape[0], :m.weight.shape[1]] = m.weight.data
        made = Fp8Quantize(quantizer).convert({f"{name}.weight": w})
        codes, scale = made[f"{name}.weight"][:m.weight.shape[0], :m.weight.shape[1]], made[f"{name}.weight_scale_inv"]
        parts |= {f"{name}.weight": codes, f"{name}.weight_scale_inv": scale.bfloat16()}
        padded = torch.zeros(w.shape, dtype=torch.float8_e4m3fn)
        padded[:codes.shape[0], :codes.shape[1]] = codes
        read = Fp8Dequantize(quantizer).convert({"weight$": padded, "weight_scale_inv": scale.bfloat16().float()},
                                                full_layer_name=f"{name}.weight")
        found[name] = read[f"{name}.weight"][:m.weight.shape[0], :m.weight.shape[1]]
    write_parts(out, model, parts, {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
                                    "modules_to_not_convert": ["lm_head"]})
    save_golden(out, with_weights(model, found))


# ---- AutoAWQ and AutoGPTQ: their packing, their unpacking; scales and zero points by the plain minimum and maximum ----

def module(package, below):
    """One file of a package, without what its __init__ wants."""
    root = Path(importlib.util.find_spec(package).submodule_search_locations[0])
    spec = importlib.util.spec_from_file_location(f"{package}_part", root / below)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def affine(w):
    """Scales f16 and zero points [n_out, groups] of unsigned 4-bit codes."""
    g = w.float().reshape(w.shape[0], -1, GROUP)
    low, high = g.amin(-1).clamp(max=0), g.amax(-1).clamp(min=0)
    scale = ((high - low) / 15).half()
    return scale, (-low / scale.float()).round().clamp(0, 15)


def awq(out):
    root = Path(importlib.util.find_spec("awq").submodule_search_locations[0])
    package = types.ModuleType("awq")
    package.__path__ = [str(root)]
    sys.modules["awq"] = package
    for inner in "modules", "utils", "modules.linear", "modules.triton":
        bare = types.ModuleType(f"awq.{inner}")
        bare.__path__ = [str(root / inner.replace(".", "/"))]
        sys.modules[f"awq.{inner}"] = bare
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm
    model, parts, found = tiny(), {}, {}
    for name, m in linears(model).items():
        scale, zero = affine(m.weight.data)
        packed = WQLinear_GEMM.from_linear(m.float(), 4, GROUP, scales=scale.T.contiguous(), zeros=zero.T.contiguous())
        parts |= {f"{name}.{k}": getattr(packed, k) for k in ("qweight", "qzeros", "scales")}
        found[name] = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales.float(), 4, GROUP).T
    write_parts(out, model, parts, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm",
                                    "modules_to_not_convert": None})
    save_golden(out, with_weights(model, found))


def gptq(desc_act, checkpoint_format):
    def make(out):
        linear = module("auto_gptq", "nn_modules/qlinear/qlinear_cuda.py")
        model, parts, found = tiny(), {}, {}
        for name, m in linears(model).items():
            n, k = m.weight.shape
            order = torch.randperm(k, generator=torch.Generator().manual_seed(k + n)) if desc_act else torch.arange(k)
            groups = torch.empty(k, dtype=torch.int32)
            groups[order] = torch.arange(k, dtype=torch.int32) // GROUP
            scale, zero = affine(m.weight.data[:, order])
            zero = zero.clamp(1, 15)  # a v1 file means 0 by 15, which one path of the tool reads as 16
            packed = linear.QuantLinear(4, GROUP, k, n, False)
            packed.pack(m.float(), scale.float(), zero, groups)
            packed.scales = packed.scales.float()
            found[name] = packed(torch.eye(k)).T
            keep = {key: getattr(packed, key) for key in ("qweight", "qzeros", "g_idx")} | {"scales": scale.T}
            if checkpoint_format == "gptq_v2":
                bits = torch.stack([(keep["qzeros"] >> (4 * i)) & 15 for i in range(8)], -1).long()
                words = (((bits + 1) & 15) << (4 * torch.arange(8))).sum(-1)
                keep["qzeros"] = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
            parts |= {f"{name}.{key}": t.to(torch.int32) if key == "g_idx" else t for key, t in keep.items()}
        write_parts(out, model, parts, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": desc_act, "sym": False,
                                        "checkpoint_format": checkpoint_format, "damp_percent": 0.01})
        save_golden(out, with_weights(model, found))
    return make


FAMILIES = {
    "fp8_block": fine_grained,
    "ct_fp8_dynamic": compressed("FP8_DYNAMIC"), "ct_fp8_block": compressed("FP8_BLOCK"), "ct_nvfp4": compressed("NVFP4A16"),
    "ct_mxfp4": compressed("MXFP4A16"), "ct_int4": compressed("W4A16"), "ct_int4_asym": compressed("W4A16_ASYM"),
    "modelopt_nvfp4": modelopt("NVFP4_DEFAULT_CFG", "qwen3_5"), "modelopt_fp8": modelopt("FP8_DEFAULT_CFG", "qwen3"),
    "modelopt_fp8_block": modelopt("FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", "qwen3"),
    "modelopt_fp8_channel": modelopt("FP8_PER_CHANNEL_PER_TOKEN_CFG", "qwen3"),
    "awq": awq, "gptq": gptq(False, "gptq"), "gptq_act_order": gptq(True, "gptq"), "gptq_v2": gptq(False, "gptq_v2"),
}
KEEP = {"config.json", "model.safetensors", "golden.safetensors", "hf_quant_config.json"}


def main():
    root = Path(sys.argv[1])
    for name in sys.argv[2:] or FAMILIES:
        out = root / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        FAMILIES[name](out)
        for path in out.iterdir():
            if path.name not in KEEP:
                path.unlink()
        print(name, (out / "model.safetensors").stat().st_size)


main()
