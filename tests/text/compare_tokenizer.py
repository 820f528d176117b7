#!/usr/bin/env python3
"""Our tokenizer beside the PyPI library `tokenizers`, on one tokenizer.json: the same ids, the same text back, at what speed.

    python3 -m venv /tmp/text && /tmp/text/bin/pip install tokenizers faker
    /tmp/text/bin/python tests/text/compare_tokenizer.py DIR_OF_TOKENIZER_JSON [--strings N] [--mb N] [--seed S] [--speed]

Strings: every code point that can be encoded, in random order and company; every pair of pre-tokenizer classes, in every
neighbourhood; random walks over classes. Corpus: code, prose in many scripts, emoji, random bytes. Speed: both in turn,
document by document, on one thread; the library by its fastest way in (a batch without offsets)."""
import argparse
import itertools
import os
import random
import statistics
import struct
import sys
import time
import unicodedata
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402

from peer import Peer  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
LOCALES = ["ar_AA", "bn_BD", "cs_CZ", "de_DE", "el_GR", "en_US", "fa_IR", "fr_FR", "he_IL", "hi_IN", "hy_AM", "ja_JP",
           "ka_GE", "ko_KR", "ne_NP", "ru_RU", "ta_IN", "th_TH", "uk_UA", "vi_VN", "zh_CN", "zh_TW"]

# What a pre-tokenizer can tell apart, and members that it might get wrong.
CLASSES = {
    "lower": "abdmrtévzß", "upper": "ABDMRTÉVZ", "contraction": "strevmldSTREVMLD\u017f\u212a\u0130\u0131", "apostrophe": "'",
    "quote": "’‘`\u02bc\uff07", "title": "ǅᾈ", "modifier": "ʰˣ\u0640ー", "other": "你好あアא한ก\u0928\u0e33\U00020000", "jamo": "\u1100\u1161\u11a8",
    "digit": "0719", "other_digit": "٣०๓𝟗", "number_letter": "ⅫⅷↃ\u3007", "number": "²½①㊿", "mark": "\u0301\u0327\u093c\u0e48\u05b0\u0345",
    "spacing_mark": "\u093e\u0bbe\u1b35", "enclosing": "\u20dd\u0488", "cr": "\r", "lf": "\n", "tab": "\t\x0b\x0c", "space": " ",
    "blank": "\xa0\u1680\u2000\u2009\u202f\u205f\u3000", "separator": "\u2028\u2029\x85", "not_blank": "\u180e\u200b\ufeff\u2060",
    "control": "\0\x01\x1c\x1d\x1f\x7f\x80\x9f", "format": "\xad\u200d\u202e\U000e0041", "punctuation": ".,!?;:-_()[]{}/\\\"#%&*@。、",
    "symbol": "+<=>|~$^€©→∑", "emoji": "😀👍🏽🇩👩\ufe0f", "private": "\ue000\U000f0000", "unassigned": "\u0378\U000e0fff\uffff\U0010ffff",
    "composed": "éÅ\u1e69\u0958\u2126\uf900가", "replacement": "\ufffd",
}


def code_points():
    return [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def class_strings():
    """Every pair of classes with every member of both, bare and between others."""
    strings = []
    for a, b in itertools.product(CLASSES.values(), repeat=2):
        strings += [x + y for x in a for y in b[:4]]
        x, y = a[0], b[0]
        strings += [x + x + y, x + y + y, "a" + x + y + "a", " " + x + y + " ", "\n" + x + y + "\n", x + y + x + y, "1" + x + y + "1",
                    "'" + x + y, x + " " + y, x + "\n" + y, "." + x + y + ".", "  " + x + y + "  ", "你" + x + y + "ก\u0e48"]
    return strings


def generated(n, r, specials):
    """n strings: first the class pairs, then all code points, then walks."""
    strings = class_strings()
    r.shuffle(points := code_points())
    names = list(CLASSES)
    at = 0
    per_string = -(-2 * len(points) // n)
    while at < len(points):
        some = points[at:at + r.randint(1, 2 * per_string)]
        at += len(some)
        strings.append("".join(chr(c) if r.random() < 0.7 else chr(c) + r.choice(CLASSES[r.choice(names)]) for c in some))
    while len(strings) < n:
        few = r.sample(names, r.randint(1, 5))
        parts = [r.choice(CLASSES[r.choice(few)]) * r.choice((1, 1, 1, 2, 3, 7)) for _ in range(r.randint(1, 24))]
        if specials and r.random() < 0.2:
            token = r.choice(specials)
            parts.insert(r.randrange(len(parts)), token if r.random() < 0.7 else token[:-1])
        strings.append("".join(parts))
    return strings


def surrounded(c):
    c = chr(c)
    return f"a{c}a1{c}1.{c}. {c} \n{c}\na{c}'{c}s{c}  {c}S"


def may_combine(c):
    """Also as far as this Python does not know it yet."""
    category = unicodedata.category(chr(c))
    return category[0] == "M" or (category == "Cn" and c < 0x20000) or bool(unicodedata.decomposition(chr(c)))


def every_code_point(marks):
    """Each between members of each class, sixteen to a string; each where it could be reordered or composed."""
    points = code_points()
    strings = ["".join(surrounded(c) for c in points[at:at + 16]) for at in range(0, len(points), 16)]
    if marks:
        tail = "\u0334\u093c\u094d\u05b0\u0321\u0323\u0301\u0345"
        strings += ["x" + "".join(f"a\u0345{chr(c)}{m}b{m}{chr(c)}" for m in tail) + f"a\u0323{chr(c)}\u0301e{chr(c)}{tail}"
                    for c in points if may_combine(c)]
        strings += [unicodedata.normalize("NFD", chr(c)) + chr(c) for c in points if unicodedata.decomposition(chr(c))]
    return strings


def code(r, size):
    files = sorted(Path(os.__file__).parent.glob("*.py")) + sorted(Path("/usr/include").glob("**/*.h")) + sorted((ROOT / "src").glob("**/*.c"))
    r.shuffle(files)
    return take((f.read_text(encoding="utf-8", errors="replace") for f in files), size)


def prose(r, size):
    try:
        from faker import Faker
    except ImportError:
        sys.exit("prose in many scripts is drawn with the PyPI package faker")
    makers = []
    for locale in LOCALES:
        try:
            makers.append(Faker(locale))
        except AttributeError:
            continue
        makers[-1].seed_instance(r.randrange(1 << 30))

    def texts():
        while True:
            f = r.choice(makers)
            yield f"{f.name()}\n{f.address()}\n\n" + "\n\n".join(f.paragraph(nb_sentences=12) for _ in range(6)) + "\n"
    return take(texts(), size)


def emoji(r, size):
    signs = [chr(c) for c in [*range(0x1F300, 0x1FB00), *range(0x2600, 0x27C0)] if unicodedata.category(chr(c)) == "So"]

    def texts():
        while True:
            yield "".join(r.choice(signs) + r.choice(("", "", "\ufe0f", "\u200d", "🏽", " ", "!", "ok ", "\n")) for _ in range(2000))
    return take(texts(), size)


def noise(r, size):
    def texts():
        while True:
            data = r.randbytes(4000)
            yield data.decode("latin-1") if r.random() < 0.5 else data.decode("utf-8", errors="replace")
    return take(texts(), size)


def take(texts, size):
    """Documents of at most 64 KB each, `size` bytes in all."""
    out = []
    for text in texts:
        for at in range(0, len(text), 1 << 16):
            out.append(text[at:at + (1 << 16)])
            size -= len(out[-1].encode())
            if size <= 0:
                return out
    return out


def corpus(mb, r):
    size = int(mb * 1e6)
    texts = code(r, size * 4 // 10) + prose(r, size * 4 // 10) + emoji(r, size // 10) + noise(r, size // 10)
    r.shuffle(texts)
    return texts


class Both:
    def __init__(self, directory, program):
        self.library = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.peer = Peer(program, str(directory))
        failed, _, says = self.peer.ask("O", b"")
        if failed:
            sys.exit(says.decode())

    def encode_ours(self, text):
        failed, seconds, body = self.peer.ask("E", text.encode())
        return says_or_ids(failed, body), seconds

    def decode_ours(self, ids):
        return self.peer.ask("D", struct.pack(f"<{len(ids)}i", *ids))[2].decode()

    def encode_theirs(self, texts):
        return [e.ids for e in self.library.encode_batch_fast(texts, add_special_tokens=False)]


def says_or_ids(failed, body):
    return body.decode() if failed else list(struct.unpack(f"<{len(body) // 4}i", body))


def shown(text):
    return " ".join(f"{ord(c):04X}" for c in text[:40]) + (" ..." if len(text) > 40 else "")


def differences(both, texts, what):
    n = n_back = n_bytes = 0
    for begin in range(0, len(texts), 1000):
        some = texts[begin:begin + 1000]
        for text, want in zip(some, both.encode_theirs(some)):
            got, _ = both.encode_ours(text)
            n_bytes += len(text.encode())
            if got != want:
                n += 1
                if n <= 10:
                    print(f"  {shown(text)}\n    theirs {want[:30]}\n    ours   {got[:30]}")
            elif (back := both.decode_ours(got)) != (theirs := both.library.decode(want, skip_special_tokens=False)):
                n_back += 1
                if n_back <= 10:
                    print(f"  back from {got[:30]}: theirs {shown(theirs)}, ours {shown(back)}")
    print(f"{what}: {len(texts)} texts, {n_bytes} bytes, {n} with other ids, {n_back} with another text back")
    return n + n_back


def speed(both, texts, rounds):
    mb = sum(len(t.encode()) for t in texts) / 1e6
    ratios = []
    for _ in range(rounds):
        ours = theirs = 0.0
        for text in texts:
            begin = time.perf_counter()
            both.encode_theirs([text])
            theirs += time.perf_counter() - begin
            ours += both.encode_ours(text)[1]
        ratios.append(theirs / ours)
        print(f"  ours {mb / ours:.1f} MB/s, library {mb / theirs:.1f} MB/s, ours is {theirs / ours:.2f} times as fast")
    print(f"speed: median {statistics.median(ratios):.2f} times the library's over {mb:.1f} MB, {rounds} rounds, one thread")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("directory", type=Path)
    p.add_argument("--peer", default=str(ROOT / "build/tests/text/text_peer"))
    p.add_argument("--strings", type=int, default=200000)
    p.add_argument("--mb", type=float, default=20)
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    p.add_argument("--every", action="store_true", help="every code point in every company instead; for `make_tokenizer.py seams`")
    p.add_argument("--speed", action="store_true", help="speed only")
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    print(f"{a.directory}, seed {a.seed}", flush=True)
    r = random.Random(a.seed)
    both = Both(a.directory, a.peer)
    specials = [t.content for t in both.library.get_added_tokens_decoder().values()]
    found = 0
    if a.every:
        sys.exit(differences(both, every_code_point(both.library.normalizer is not None), "every code point") > 0)
    if a.strings and not a.speed:
        found += differences(both, generated(a.strings, r, specials), "strings")
    if a.mb:
        texts = corpus(a.mb, r)
        if not a.speed:
            found += differences(both, texts, "corpus")
        speed(both, texts, a.rounds)
    both.peer.close()
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
