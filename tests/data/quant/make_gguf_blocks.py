#!/usr/bin/env python3
"""Random GGUF blocks and what the public decoder makes of them: writes gguf_blocks.safetensors beside this file.

    pip install gguf==0.19.0 && ./make_gguf_blocks.py

Per type: `T.blocks` U8 [n, bytes] and `T.values` F32 [n, elements] of the first blocks, and `T.sha256` U8 [32] over the
values of the first N_HASHED blocks, so that the test compares 20,000 blocks a type without the repository keeping them.

Block bytes are little-endian words of SplitMix64, seeded by SEED + type id. Half-precision scales lose the upper bit
of their exponent (finite, below 2), MXFP4 scales are taken modulo 253, NVFP4 scales lose their sign."""
import hashlib
import json
import struct
from pathlib import Path

import gguf
import numpy as np

SEED, N_HASHED, N_KEPT_VALUES = 20260, 20000, 512
HALVES = {  # where half-precision scales stand in a block
    "F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
    "Q6_K": [208], "IQ4_NL": [0], "MXFP4": [], "NVFP4": [], "BF16": [],
}


def random_bytes(seed, n):
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, n // 8 + 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return z.astype("<u8").view(np.uint8)[:n]


def random_blocks(name, kind, block_bytes):
    blocks = random_bytes(SEED + int(kind), N_HASHED * block_bytes).reshape(N_HASHED, block_bytes).copy()
    for at in HALVES[name]:
        blocks[:, at + 1] &= 0xBF
    if name == "MXFP4":
        blocks[:, 0] %= 253
    if name == "NVFP4":
        blocks[:, :4] &= 0x7F
    return blocks


def decode(blocks, kind):
    if kind == gguf.GGMLQuantizationType.F16:
        return blocks.view("<f2").astype("<f4")
    return gguf.quants.dequantize(blocks, kind).astype("<f4")


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        raw = array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    tensors = {}
    for name in HALVES:
        kind = gguf.GGMLQuantizationType[name]
        elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        blocks = random_blocks(name, kind, block_bytes)
        values = decode(blocks, kind).reshape(N_HASHED, elements)
        n = max(1, N_KEPT_VALUES // elements)
        tensors[f"{name}.values"] = ("F32", values[:n])
        tensors[f"{name}.blocks"] = ("U8", blocks[:n])
        digest = hashlib.sha256(values.tobytes()).digest()
        tensors[f"{name}.sha256"] = ("U8", np.frombuffer(digest, np.uint8))
    write_safetensors(Path(__file__).with_name("gguf_blocks.safetensors"), tensors)


main()
