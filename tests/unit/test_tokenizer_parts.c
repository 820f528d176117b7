/* Parts of the tokenizer against plain, slow versions of the same: BPE, NFC, UTF-8. */
#include "unit/text_fixture.h"

#include "text/tokenizer_impl.h"
#include "unit/random.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- BPE ---- */

typedef struct Toy { /* a vocabulary of a few letters with random merges */
    Vocab    vocab;
    uint32_t offsets[300];
    uint8_t  flags[300];
    char     blob[4096];
    Merge    merges[200];
    PairSlot pairs[512];
    int32_t  words[512];
} Toy;

static int32_t toy_add(Toy *t, const char *bytes, size_t n)
{
    int32_t id = t->vocab.n_ids++;
    memcpy(t->blob + t->offsets[id], bytes, n);
    t->offsets[id + 1] = t->offsets[id] + (uint32_t)n;
    t->flags[id] = TOKEN_KNOWN | TOKEN_WORD;
    return id;
}

static int32_t toy_find(const Toy *t, const char *bytes, size_t n)
{
    for (int32_t id = 0; id < t->vocab.n_ids; id++) {
        if (str_equal(vocab_bytes(&t->vocab, id), (Str){ bytes, n })) return id;
    }
    return -1;
}

static void toy_make(Toy *t, Random *r)
{
    memset(t, 0, sizeof *t);
    t->vocab = (Vocab){ .n_pairs = COUNT(t->pairs), .n_words = COUNT(t->words), .pairs = t->pairs, .words = t->words,
                        .offsets = t->offsets, .flags = t->flags, .blob = t->blob, .merges = t->merges };
    for (char c = 'a'; c <= 'c'; c++) toy_add(t, &c, 1);
    for (int i = random_below(r, 60); i >= 0; i--) {
        char joined[64];
        Str a = vocab_bytes(&t->vocab, random_below(r, t->vocab.n_ids)),
            b = vocab_bytes(&t->vocab, random_below(r, t->vocab.n_ids));
        if (a.len + b.len > 20) continue;
        memcpy(joined, a.data, a.len);
        memcpy(joined + a.len, b.data, b.len);
        int32_t left = toy_find(t, a.data, a.len), right = toy_find(t, b.data, b.len),
                id = toy_find(t, joined, a.len + b.len);
        bool known = false;
        for (int k = 0; k < t->vocab.n_merges; k++)
            known = known || (t->merges[k].left == left && t->merges[k].right == right);
        if (known) continue;
        if (id < 0) id = toy_add(t, joined, a.len + b.len);
        t->merges[t->vocab.n_merges++] = (Merge){ left, right, id };
    }
}

/* By the definition: look for the lowest rank, merge its leftmost place, again. */
static int naive(const Toy *t, const char *word, int n, int32_t *ids)
{
    for (int i = 0; i < n; i++) ids[i] = word[i] - 'a';
    for (;;) {
        int best = -1, at = -1;
        for (int i = 0; i + 1 < n; i++) {
            for (int rank = 0; rank < t->vocab.n_merges && (best < 0 || rank < best); rank++) {
                if (t->merges[rank].left == ids[i] && t->merges[rank].right == ids[i + 1]) best = rank, at = i;
            }
        }
        if (at < 0) return n;
        ids[at] = t->merges[best].id;
        memmove(ids + at + 1, ids + at + 2, (size_t)(n - at - 2) * sizeof *ids);
        n--;
    }
}

static void merges_as_defined(void **state)
{
    static Toy toy;
    Random r = { 3 };
    for (int round = 0; round < 200; round++) {
        Bpe bpe;
        BpeWork work = { 0 };
        IdList got = { .max = 1000 };
        toy_make(&toy, &r);
        bpe_fill_pairs(&toy.vocab, toy.pairs);
        bpe_fill_words(&toy.vocab, toy.words);
        bpe_open(&bpe, &toy.vocab);
        for (int words = 0; words < 30; words++) {
            char word[80];
            int32_t want[80];
            int n = random_below(&r, 80);
            for (int i = 0; i < n; i++)
                word[i] = (char)('a' + random_below(&r, words % 2 ? 3 : 1 + random_below(&r, 3)));
            got.n = 0;
            bpe_encode(&bpe, &work, word, (size_t)n, &got);
            int n_want = naive(&toy, word, n, want);
            assert_int_equal(got.n, n_want);
            if (n_want) assert_memory_equal(got.ids, want, (size_t)n_want * sizeof *want);
        }
        mem_free(got.ids);
        bpe_work_free(&work);
    }
}

/* ---- NFC ---- */

/* Every character of the blocks taken for obvious: unchanged by NFC, class 0, and never the second half of anything. */
static void obvious_blocks_are(void **state)
{
    static bool is_second[0x110000];
    for (int32_t cp = 0; cp < 0x110000; cp++) {
        int32_t out[8];
        int boundary = 0;
        if (cp >= 0xD800 && cp < 0xE000) continue;
        utf8proc_ssize_t n = utf8proc_decompose_char(cp, out, 8, UTF8PROC_DECOMPOSE, &boundary);
        for (utf8proc_ssize_t i = 1; i < n; i++) is_second[out[i]] = true;
    }
    int obvious = 0;
    for (int32_t cp = 0; cp < 0x110000; cp++) {
        char text[4];
        if (cp >= 0xD800 && cp < 0xE000) continue;
        int n = utf8_encode((uint32_t)cp, text);
        if (!nfc_is_obvious(text, (size_t)n)) continue;
        obvious++;
        char terminated[5] = { 0 };
        memcpy(terminated, text, (size_t)n);
        utf8proc_uint8_t *nfc = utf8proc_NFC((const utf8proc_uint8_t *)terminated);
        bool same = strcmp((char *)nfc, terminated) == 0;
        free(nfc);
        if (!same || is_second[cp] || utf8proc_get_property(cp)->combining_class != 0)
            fail_msg("U+%04X is not obvious", cp);
    }
    assert_true(obvious > 40000);
}

/* Runs of marks short and long, Hangul, exclusions: as utf8proc alone has it. */
static void nfc_as_utf8proc(void **state)
{
    static const uint32_t some[] = { 'a',    'e',    'A',    0x300,  0x301,  0x315,  0x323,   0x307,   0x327,
                                     0x345,  0x1100, 0x1161, 0x11A8, 0xAC00, 0x958,  0x915,   0x93C,   0x212B,
                                     0x1E0A, 0x1EAD, 0x3099, 0x304B, 0xFB1D, 0x2ADC, 0x1D15E, 0x10FFFF };
    Random r = { 5 };
    NfcWork work = { 0 };
    for (int round = 0; round < 3000; round++) {
        Error err = { 0 };
        Buf text, got;
        buf_init(&text, 1 << 20);
        buf_init(&got, 1 << 20);
        int marks_only = round % 10 == 0;
        for (int i = random_below(&r, marks_only ? 200 : 12); i >= 0; i--) {
            buf_codepoint(&text, marks_only ? some[3 + random_below(&r, 7)] : some[random_below(&r, COUNT(some))]);
        }
        assert_int_equal(nfc_append(&got, text.data, text.len, &work, &err), OK);
        utf8proc_uint8_t *want = utf8proc_NFC((const utf8proc_uint8_t *)text.data);
        assert_string_equal(got.data, (char *)want);
        free(want);
        buf_free(&text);
        buf_free(&got);
    }
    nfc_work_free(&work);
}

/* ---- UTF-8 ---- */

static void utf8_codes(void **state)
{
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char bytes[4];
        uint32_t back = 0;
        if (cp >= 0xD800 && cp < 0xE000) continue;
        int n = utf8_encode(cp, bytes);
        assert_int_equal(utf8_next(bytes, (size_t)n, &back), n);
        assert_int_equal(back, cp);
        const char *p = bytes;
        assert_int_equal(utf8_read(&p), cp);
        assert_int_equal(p - bytes, n);
        for (int k = 1; k < n; k++) assert_int_equal(utf8_next(bytes, (size_t)k, &back), 0);
    }
}

/* All texts of three bytes from the interesting ones: valid to us iff valid to utf8proc. */
static void utf8_validity(void **state)
{
    static const uint8_t some[] = { 0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF,
                                    0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF };
    for (int i = 0; i < COUNT(some) * COUNT(some) * COUNT(some) * COUNT(some); i++) {
        int rest = i;
        uint8_t text[4];
        for (int k = 0; k < 4; k++, rest /= COUNT(some)) text[k] = some[rest % COUNT(some)];
        size_t at = 0;
        while (at < sizeof text) {
            utf8proc_int32_t cp;
            utf8proc_ssize_t n = utf8proc_iterate(text + at, (utf8proc_ssize_t)(sizeof text - at), &cp);
            if (n <= 0) break;
            at += (size_t)n;
        }
        if (utf8_valid_bytes((const char *)text, sizeof text) != at)
            fail_msg("%02x %02x %02x %02x", text[0], text[1], text[2], text[3]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_as_defined), cmocka_unit_test(obvious_blocks_are), cmocka_unit_test(nfc_as_utf8proc),
        cmocka_unit_test(utf8_codes), cmocka_unit_test(utf8_validity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
