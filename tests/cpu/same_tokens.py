#!/usr/bin/python3
"""The same token_sha under every CPU_MASK, plain and drafted, and the one on file: what a processor has never changes a token.

    same_tokens.py [N_PROMPTS] [--write]

Runs $TANDEM_BIN on nano and nano-plain, on nano-plain over a cache of FP8 codes, and on nano-plain in stored formats, which $TANDEM_QUANTISE
(tests/formats/make_quantised) makes, plain and for half as many prompts. Half of the prompts are greedy, half at temperature 0.7; each answer is compared
with tests/data/token_sha.json. The file was written on x86; on other processors it is what tells them to be equal.
--write makes it anew: right only after the contract, the models or the prompts were changed on purpose."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(os.environ.get("TANDEM_SOURCE_ROOT", Path(__file__).resolve().parents[2]))
FILE = ROOT / "tests/data/token_sha.json"
TANDEM = os.environ.get("TANDEM_BIN", str(ROOT / "build/tandem"))
QUANTISE = os.environ.get("TANDEM_QUANTISE", str(ROOT / "build/tests/formats/make_quantised"))
N_TOKENS = 48
# A mask that a machine lacks leaves what is below it: running it again costs time, not truth.
MASKS = {"x86_64": ["scalar", "avx2", "avx512", ""], "aarch64": ["scalar", ""]}
STORED_MASKS = {"x86_64": ["scalar", "avx2", "avx-vnni", "avx512", "avx512-vnni", ""], "aarch64": ["scalar", "neon", ""]}
PLAIN = {"method": "none"}
DFLASH = {"method": "dflash", "model": str(ROOT / "models/nano-plain-DFlash")}
RUNS = {  # arguments, drafts
    "nano": (["nano"], {"method": "mtp", "num_speculative_tokens": 3}),
    "nano-plain": (["nano-plain"], DFLASH),
    "nano-plain, fp8 cache": (["nano-plain", "--kv-cache-dtype", "fp8"], DFLASH),
}
STORED = ["Q4_1", "Q8_0", "Q6_K", "NVFP4", "fp8-block", "awq"]


def architecture():
    """Of the program, which may run under an emulator: the machine type of its ELF header."""
    path = TANDEM + ".arm64" if os.path.exists(TANDEM + ".arm64") else TANDEM
    with open(path, "rb") as f:
        machine = f.read(20)[18]
    return {0x3e: "x86_64", 0xb7: "aarch64"}[machine]


def answer(arguments, idx, prompt, mask, drafts):
    command = [TANDEM, "run", *arguments, "-p", prompt, "-n", str(N_TOKENS), "--seed", str(idx), "--json",
               "--temperature", "0" if idx % 2 == 0 else "0.7", "--speculative-config", json.dumps(drafts)]
    env = dict(os.environ, TANDEM_MODELS=str(ROOT / "models"), CPU_MASK=mask)
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    if run.returncode != 0:
        sys.exit(f"CPU_MASK={mask} {' '.join(command)}\n{run.stderr}")
    return json.loads(run.stdout)


def compare(name, arguments, all_drafts, masks, prompts, on_file):
    """Prints what differs; returns the answers' shas and how many runs differed."""
    shas, n_wrong, n_drafted = [], 0, 0
    for idx, prompt in enumerate(prompts):
        for mask in masks[architecture()]:
            for drafts in all_drafts:
                got = answer(arguments, idx, prompt, mask, drafts)
                n_drafted += got["timings"]["draft_tokens"]
                if len(shas) == idx:
                    shas.append(got["token_sha"])
                want = on_file[idx] if on_file else shas[idx]
                if got["token_sha"] != want:
                    n_wrong += 1
                    print(f"FAILED {name}, prompt {idx}, CPU_MASK={mask or 'unset'}, {drafts['method']}: "
                          f"{got['token_sha']} instead of {want}")
    if not n_drafted and len(all_drafts) > 1:
        print(f"FAILED {name}: nothing was drafted")
        n_wrong += 1
    return shas, n_wrong


def main():
    is_writing = "--write" in sys.argv
    numbers = [int(a) for a in sys.argv[1:] if a.isdigit()]
    prompts = json.loads((ROOT / "models/prompts.json").read_text(encoding="utf-8"))[:numbers[0] if numbers else 20]
    on_file = {} if is_writing else json.loads(FILE.read_text())
    n_wrong, found = 0, {}
    for name, (arguments, drafts) in RUNS.items():
        found[name], wrong = compare(name, arguments, (PLAIN, drafts), MASKS, prompts, on_file.get(name))
        n_wrong += wrong
    with tempfile.TemporaryDirectory() as folder:
        for fmt in STORED:
            model = os.path.join(folder, fmt if fmt.islower() else fmt + ".gguf")
            subprocess.run([QUANTISE, ROOT / "models/nano-plain", fmt, model], check=True)
            found[fmt], wrong = compare(fmt, [model], (PLAIN,), STORED_MASKS, prompts[: len(prompts) // 2], on_file.get(fmt))
            n_wrong += wrong
    if is_writing and not n_wrong:
        FILE.write_text(json.dumps(found, indent=1) + "\n")
    masks = ", ".join(m or "all" for m in STORED_MASKS[architecture()])
    print(f"{len(prompts)} prompts, {len(RUNS)} models, plain and drafted, {len(STORED)} stored formats, masks {masks}: {n_wrong} differ")
    return n_wrong != 0


if __name__ == "__main__":
    sys.exit(main())
