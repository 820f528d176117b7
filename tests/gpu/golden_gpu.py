#!/usr/bin/env python3
"""Golden logits on a GPU: golden_gpu.py TANDEM DATA_DIR

Runs `tandem logits` on each random checkpoint of DATA_DIR (tests/data/golden) and compares with the original implementation:
float32 within 5e-5 of the largest logit and with the bits of the CPU; bf16 within 2e-2, recurrent models no further from
float32 than 1.5 times the CPU's own bf16. The last line is the sum."""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

CASES = ["llama", "llama_yarn", "llama3_bias", "qwen3", "qwen3_linear_bias", "qwen3_5"]


def tensors(path):
    data = open(path, "rb").read()
    n = int.from_bytes(data[:8], "little")
    types = {"F32": np.float32, "I32": np.int32, "I64": np.int64}
    out = {}
    for name, t in json.loads(data[8 : 8 + n]).items():
        if name != "__metadata__" and t["dtype"] in types:
            first, end = t["data_offsets"]
            out[name] = np.frombuffer(data[8 + n + first : 8 + n + end], types[t["dtype"]]).reshape(t["shape"])
    return out


def logits(tandem, model, ids, dtype, device, folder):
    out = os.path.join(folder, "out")
    subprocess.run([tandem, "logits", model, "--ids", ids, "-o", out, "--dtype", dtype, "--device", device], check=True,
                   stdout=subprocess.DEVNULL)
    return tensors(out)["logits"]


def main():
    tandem, data = sys.argv[1:3]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        ids = os.path.join(folder, "ids.json")
        for name in CASES:
            model = os.path.join(data, name)
            golden = tensors(os.path.join(model, "golden.safetensors"))
            json.dump([int(i) for i in golden["input_ids"].ravel()], open(ids, "w"))
            want, size = golden["logits"], float(np.abs(golden["logits"]).max())
            got = {(t, d): logits(tandem, model, ids, t, d, folder) for t in ("float32", "bfloat16") for d in ("cpu", "cuda")}
            far = {k: float(np.abs(v - want).max()) / size for k, v in got.items()}
            bits = np.array_equal(got["float32", "cpu"].view(np.uint32), got["float32", "cuda"].view(np.uint32))
            limit = 1.5 * far["bfloat16", "cpu"] if name == "qwen3_5" else 2e-2
            is_right = bits and far["float32", "cuda"] <= 5e-5 and far["bfloat16", "cuda"] <= limit
            failed += not is_right
            print("%-18s float32 %.1e (%s), bf16 %.1e (CPU %.1e, limit %.1e)%s" % (name, far["float32", "cuda"], "the CPU's bits" if bits else "OTHER BITS",
                  far["bfloat16", "cuda"], far["bfloat16", "cpu"], limit, "" if is_right else "  FAILED"))
    print("%d checkpoints, %d failed" % (len(CASES), failed))
    return failed != 0


sys.exit(main())
