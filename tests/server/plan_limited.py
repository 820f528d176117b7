#!/usr/bin/env python3
"""Random flags under a limit of memory: `tandem serve` either refuses with exit code 3 or serves requests of full length; the
kernel never kills it. The limit is a control group's (v1 or v2, where this user may make one: root in most containers).

    TANDEM_BIN=build/tandem tests/server/plan_limited.py [count] [seed]

Prints a line a set that went wrong, then the counts. Measured, 100 sets of seed 1 in a group of the older hierarchy: 79 served, 21
refused, none wrong; of the first 16, a program that neither looks at such a group nor counts its workers' scratch loses 4.
Standard library only."""
import concurrent.futures
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import ROOT, Server  # noqa: E402

MB = 1 << 20
TANDEM = os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "tandem"))
MODELS = os.path.join(ROOT, "models")


class Group:
    """A control group with a limit of memory, of either hierarchy."""

    def __init__(self):
        self.is_old = os.path.isdir("/sys/fs/cgroup/memory")
        self.path = ("/sys/fs/cgroup/memory" if self.is_old else "/sys/fs/cgroup") + f"/tandem_plan_{os.getpid()}"
        os.mkdir(self.path)

    def limit(self, n_bytes):
        self.write("memory.limit_in_bytes" if self.is_old else "memory.max", n_bytes)

    def write(self, name, value):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(str(value))

    def kills(self):
        with open(os.path.join(self.path, "memory.oom_control" if self.is_old else "memory.events")) as f:
            return sum(int(line.split()[1]) for line in f if line.startswith("oom_kill "))

    def command(self, *argv):
        """The command, started inside the group."""
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh", *argv]

    def close(self):
        for _ in range(100):
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.05)


def random_flags(rng):
    model = rng.choice(["nano", "nano", "nano-plain"])
    flags = [os.path.join(MODELS, model)]
    if rng.random() < 0.7:
        flags += ["--max-model-len", str(rng.choice([64, 256, 300, 777, 1024, 2048, 4096]))]
    if rng.random() < 0.7:
        flags += ["--max-num-seqs", str(rng.choice([1, 2, 3, 8, 16, 40]))]
    if rng.random() < 0.5:
        flags += ["--max-num-batched-tokens", str(rng.choice([64, 100, 512, 1024, 2048]))]
    if rng.random() < 0.3:
        flags += ["--block-size", str(rng.choice([1, 8, 16, 32, 128]))]
    if rng.random() < 0.4:
        flags += ["--gpu-memory-utilization", str(rng.choice([0.5, 0.8, 0.95, 0.97]))]
    if rng.random() < 0.5:
        flags += ["--speculative-config", '{"method": "%s"}' % rng.choice(["none", "ngram", "auto"])]
    if rng.random() < 0.3:
        flags += ["--workers", str(rng.choice([1, 2, 4, 8]))]
    if rng.random() < 0.2:
        flags += ["--dtype", "float32"]
    return flags


def ask_all(server, rng):
    """As many full-length requests as may run, twice as many in all."""
    length = server.get("/v1/models")[1]["data"][0]["max_model_len"]

    def ask(ids):
        return server.post("/v1/completions", {"prompt": ids, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 1},
                           timeout=300)[0]

    prompts = [[rng.randrange(4000) for _ in range(max(1, length - 9))] for _ in range(12)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        return list(pool.map(ask, prompts))


def try_set(group, flags, rng):
    """'refused', 'served', or what went wrong."""
    kills = group.kills()
    try:
        server = Server(*group.command(TANDEM, "serve", *flags, "--port", "0"))
    except RuntimeError as e:
        text = str(e)
        if group.kills() > kills:
            return "killed while it started"
        return "refused" if "would fit" in text or "no flag makes it fit" in text or "it fits" in text else f"failed: {text[-300:]}"
    try:
        codes = ask_all(server, rng)
        wrong = sorted({c for c in codes if c not in (200, 429)})
        return "served" if not wrong and 200 in codes and group.kills() == kills else f"answered {wrong}, {group.kills() - kills} kills"
    except OSError as e:
        return f"lost: {e}, exit {server.process.poll()}, {group.kills() - kills} kills"
    finally:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
        server.process.communicate(timeout=60)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    rng, group, counts = random.Random(seed), Group(), {}
    try:
        for i in range(count):
            limit, flags = rng.randrange(30, 400) * MB, random_flags(rng)
            group.limit(limit)
            result = try_set(group, flags, rng)
            if result == "refused":
                code = subprocess.run(group.command(TANDEM, "serve", *flags, "--port", "0"), stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL).returncode
                result = result if code == 3 else f"refused with exit code {code}"
            kind = result if result in ("refused", "served") else "wrong"
            counts[kind] = counts.get(kind, 0) + 1
            if kind == "wrong":
                print(f"set {i}: {limit // MB} MB, {' '.join(flags)}: {result}", flush=True)
    finally:
        group.close()
    print(f"seed {seed}, {'v1' if group.is_old else 'v2'} control group: {counts}", flush=True)
    sys.exit("wrong" in counts)


if __name__ == "__main__":
    main()
