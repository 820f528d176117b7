"""tandem perplexity against the same sum over the logits that tandem logits writes: windows from their own beginning, the
second half of each scored."""
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "server"))
from harness import main  # noqa: E402

TANDEM = os.environ["TANDEM_BIN"]
WINDOW = 32
TEXT = "def count(words):\n    total = 0\n    for word in words:\n        total += len(word)\n    return total\n\n" * 3


def tandem(*arguments, check=True):
    return subprocess.run([TANDEM, *arguments], check=check, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def logits_of(work, ids):
    """Rows of float32 logits of these ids."""
    paths = os.path.join(work, "ids.json"), os.path.join(work, "out.safetensors")
    with open(paths[0], "w") as f:
        json.dump(ids, f)
    tandem("logits", "nano-plain", "--ids", paths[0], "-o", paths[1], "--dtype", "float32")
    with open(paths[1], "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        rows, vocab = json.loads(f.read(n))["logits"]["shape"]
        values = struct.unpack("<%df" % (rows * vocab), f.read())
    return [values[i * vocab:(i + 1) * vocab] for i in range(rows)]


class TestPerplexity(unittest.TestCase):
    def test_is_the_sum_over_logits(self):
        ids = json.loads(tandem("tokenize", "nano-plain", "-p", TEXT).stdout)
        terms = []
        with tempfile.TemporaryDirectory() as work:
            with open(os.path.join(work, "text"), "w") as f:
                f.write(TEXT)
            for first in range(0, len(ids) - WINDOW + 1, WINDOW):
                window = ids[first:first + WINDOW]
                rows = logits_of(work, window)
                for place in range(WINDOW // 2, WINDOW - 1):
                    most = max(rows[place])
                    terms.append(most + math.log(sum(math.exp(x - most) for x in rows[place])) - rows[place][window[place + 1]])
            out = tandem("perplexity", "nano-plain", "-f", f.name, "-c", str(WINDOW), "--dtype", "float32").stdout
        got = re.search(r"\((\d+) tokens\).*\nperplexity ([0-9.]+) \+- ", out)
        self.assertGreater(len(terms), 2 * (WINDOW // 2 - 1) - 1)  # more than one window
        self.assertEqual(int(got[1]), len(terms))
        self.assertAlmostEqual(float(got[2]) / math.exp(sum(terms) / len(terms)), 1, places=4)

    def test_short_texts_and_missing_files(self):
        with tempfile.NamedTemporaryFile("w") as f:
            f.write("x")
            f.flush()
            short = tandem("perplexity", "nano-plain", "-f", f.name, check=False)
        self.assertEqual((short.returncode, "less than one window" in short.stderr), (1, True))
        self.assertEqual(tandem("perplexity", "nano-plain", check=False).returncode, 2)
        self.assertIn("there is no file", tandem("perplexity", "nano-plain", "-f", "/nowhere", check=False).stderr)


if __name__ == "__main__":
    main()
