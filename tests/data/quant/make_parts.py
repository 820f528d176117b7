#!/usr/bin/env python3
"""Small matrices in the published safetensors layouts, with what public decoders make of them: writes parts.safetensors.

    pip install torch==2.15.0 compressed-tensors==0.20.1 nvidia-modelopt==0.47.0
    pip install --no-deps autoawq==0.2.9 auto-gptq==0.7.1
    ./make_parts.py

`NAME.weight*` or `NAME.qweight` ... are stored parts, `NAME.values` F32 what the tool decodes them to, `NAME.source` F32
what it encoded them from. All of it runs on a CPU. Scales of AWQ and GPTQ have 7 significant bits, so that the products
fit the half precision that these two tools compute in; the divisor of `ct` is a power of two, so that it has an exact
reciprocal, that of `ct_odd` is not."""
import importlib.util
import json
import struct
import sys
from pathlib import Path

import numpy as np
import torch

SEED, N, K = 20261, 130, 160
rng = torch.Generator().manual_seed(SEED)
tensors = {}
DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.uint8: "U8", torch.int32: "I32", torch.int64: "I64",
          torch.float8_e4m3fn: "F8_E4M3"}


def keep(name, tensor):
    tensors[name] = tensor.detach().contiguous()


def normal(*shape):
    return torch.randn(*shape, generator=rng) * 0.05


def module(package, below):
    """One file of a package, without what its __init__ wants."""
    root = Path(importlib.util.find_spec(package).submodule_search_locations[0])
    spec = importlib.util.spec_from_file_location(package + "_part", root / below)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def modelopt():
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
    source = normal(8, K)
    source[3, 16:32] = 0
    packed, scale, scale_2 = NVFP4QTensor.quantize(source.clone(), 16, try_tensorrt=False)
    keep("modelopt.source", source)
    keep("modelopt.weight", packed._quantized_data)
    keep("modelopt.weight_scale", scale)
    keep("modelopt.weight_scale_2", scale_2)
    keep("modelopt.input_scale", torch.tensor(0.01))
    keep("modelopt.values", packed.dequantize(torch.float32, scale=scale, double_scale=scale_2, block_sizes={-1: 16}))


def compressed_tensors():
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    def fp4(name, group, scale, stored_scale, **more):
        packed = torch.randint(0, 256, (8, K // 2), generator=rng, dtype=torch.uint8)
        codes = unpack_fp4_from_uint8(packed, 8, K, torch.float32)
        args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group" if more else "group", group_size=group)
        keep(f"{name}.weight_packed", packed)
        keep(f"{name}.weight_scale", stored_scale)
        for key, value in more.items():
            keep(f"{name}.weight_{key}", value)
        keep(f"{name}.values", dequantize(codes, scale.float(), args=args, dtype=torch.float32, **more))

    for name, divisor in ("ct", 1024.0), ("ct_odd", 1234.5):
        scale = (torch.rand(8, K // 16, generator=rng) * 448).to(torch.float8_e4m3fn)
        fp4(name, 16, scale, scale, global_scale=torch.tensor([divisor]))
    exponents = torch.randint(1, 200, (8, K // 32), generator=rng, dtype=torch.uint8)
    fp4("mxfp4", 32, decompress_mx_scale(exponents), exponents)

    def fp8(name, strategy, scale, suffix, n, **more):
        code = torch.randint(0, 256, (n, K), generator=rng, dtype=torch.uint8)
        code[(code & 0x7F) == 0x7F] = 0
        weight = code.view(torch.float8_e4m3fn)
        args = QuantizationArgs(num_bits=8, type="float", strategy=strategy, **more)
        keep(f"{name}.weight", weight)
        keep(f"{name}.{suffix}", scale)
        keep(f"{name}.values", dequantize(weight.float(), scale.float(), args=args, dtype=torch.float32))

    fp8("fp8_tensor", "tensor", normal(1)[0].abs(), "weight_scale", 8)
    fp8("fp8_channel", "channel", normal(8, 1).abs(), "weight_scale", 8)
    fp8("fp8_channel_bf16", "channel", normal(8, 1).abs().bfloat16(), "weight_scale", 8)
    blocks = (-(-N // 128), -(-K // 128))
    fp8("fp8_block", "block", normal(*blocks).abs().bfloat16(), "weight_scale_inv", N, block_structure=[128, 128])

    source = normal(8, K)
    scale = source.abs().amax(dim=1, keepdim=True) / 448
    keep("fp8_encoded.source", source)
    keep("fp8_encoded.weight", (source / scale).clamp(-448, 448).to(torch.float8_e4m3fn))
    keep("fp8_encoded.weight_scale", scale)


def short_scales(*shape):
    digits = torch.randint(64, 128, shape, generator=rng).float()
    return (digits * 2.0 ** -torch.randint(10, 17, shape, generator=rng).float()).half()


def words(*shape):
    return torch.randint(-2**31, 2**31, shape, generator=rng, dtype=torch.int64).to(torch.int32)


def zero_words(*shape):
    """Without the zero point 15, of which a v1 file means 0 and one path of auto-gptq 16."""
    nibbles = torch.randint(0, 15, (*shape, 8), generator=rng, dtype=torch.int64)
    packed = (nibbles << (4 * torch.arange(8))).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def awq(k=64, n=32, group=32):
    packing = module("awq", "utils/packing_utils.py")
    qweight, qzeros, scales = words(k, n // 8), words(k // group, n // 8), short_scales(k // group, n)
    keep("awq.qweight", qweight)
    keep("awq.qzeros", qzeros)
    keep("awq.scales", scales)
    keep("awq.values", packing.dequantize_gemm(qweight, qzeros, scales, 4, group).float().T)


def gptq(name, k=64, n=32, group=32, shuffled=False):
    linear = module("auto_gptq", "nn_modules/qlinear/qlinear_cuda.py").QuantLinear(4, group, k, n, False)
    linear.qweight, linear.qzeros, linear.scales = words(k // 8, n), zero_words(k // group, n // 8), short_scales(k // group, n)
    if shuffled:
        linear.g_idx = linear.g_idx[torch.randperm(k, generator=rng)].contiguous()
    for part in "qweight", "qzeros", "scales", "g_idx":
        keep(f"{name}.{part}", getattr(linear, part).to(torch.int32) if part == "g_idx" else getattr(linear, part))
    keep(f"{name}.values", linear(torch.eye(k, dtype=torch.float16)).float().T)


def pack_quantized(name, scale_type, is_asymmetric, n=20, group=32):
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    def codes(*shape):
        return torch.randint(-8, 8, shape, generator=rng, dtype=torch.int8)

    packed, scale = pack_to_int32(codes(n, K), 4), normal(n, K // group).to(scale_type)
    keep(f"{name}.weight_packed", packed)
    keep(f"{name}.weight_scale", scale)
    keep(f"{name}.weight_shape", torch.tensor([n, K]))
    zero = None
    if is_asymmetric:
        packed_zero = pack_to_int32(codes(n, K // group), 4, packed_dim=0)
        keep(f"{name}.weight_zero_point", packed_zero)
        zero = unpack_from_int32(packed_zero, 4, torch.Size([n, K // group]), packed_dim=0).float()
    args = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=group, symmetric=not is_asymmetric)
    stored = unpack_from_int32(packed, 4, torch.Size([n, K])).float()
    keep(f"{name}.values", dequantize(stored, scale.float(), zero, args=args, dtype=torch.float32))


def write_safetensors(path):
    header, data = {}, b""
    for name, tensor in sorted(tensors.items()):
        raw = bytes(tensor.reshape(-1).view(torch.uint8).numpy())
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    modelopt()
    compressed_tensors()
    awq()
    gptq("gptq")
    gptq("gptq_shuffled", shuffled=True)
    pack_quantized("int4", torch.bfloat16, False)
    pack_quantized("int4_asym", torch.float16, True)
    write_safetensors(Path(__file__).with_name("parts.safetensors"))


sys.exit(main())
