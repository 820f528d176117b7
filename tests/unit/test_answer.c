/* Answer: stop strings and held-back tails; the same text however the tokens are grouped. */
#include "unit/text_fixture.h"

#include "text/answer.h"
#include "unit/random.h"

#include <string.h>

static Tokenizer *tokenizer;

static int open_nano(void **state)
{
    tokenizer = tokenizer_in(source_tree("models/nano"), NULL);
    return 0;
}

static int close_nano(void **state)
{
    tokenizer_close(tokenizer);
    return 0;
}

typedef struct Stops {
    Str strings[MAX_STOP_STRINGS];
    int n;
} Stops;

static void answer_begin(Answer *a, const Stops *stops, bool include_stop)
{
    Error err = { 0 };
    AnswerOptions options = { .tokenizer = tokenizer,
                              .skip_special = true,
                              .include_stop = include_stop,
                              .n_stops = stops->n,
                              .stops = stops->strings,
                              .max_bytes = 1 << 20 };
    if (answer_init(a, &options, &err) != OK) fail_msg("%s", err.text);
}

/* Pushes bytes in tokens of at most `longest` bytes, cut at random; false when the answer took no more. */
static bool push(Answer *a, const char *bytes, size_t n, int longest, Random *r)
{
    for (size_t at = 0; at < n;) {
        char piece[64];
        int32_t id = -1;
        size_t take = 1 + (size_t)random_below(r, longest);
        if (take > n - at) take = n - at;
        for (; id < 0; take -= id < 0) {
            memcpy(piece, bytes + at, take);
            piece[take] = '\0';
            id = tokenizer_find(tokenizer, piece);
        }
        if (!answer_push(a, id)) return false;
        at += take;
    }
    return true;
}

static void check_text(const Answer *a, const char *want)
{
    if (a->text.len != strlen(want) || memcmp(a->text.data ? a->text.data : "", want, a->text.len) != 0) {
        fail_msg("\"%s\" instead of \"%s\"", a->text.data ? a->text.data : "", want);
    }
}

static void known_answers(void **state)
{
    static const struct {
        const char *stops[3];
        const char *text, *without, *with; /* the stop string */
        int         stop;
    } rows[] = {
        { { NULL }, "plain text", "plain text", "plain text", -1 },
        { { "\n\n" }, "a\n\nb", "a", "a\n\n", 0 },
        { { "\n\n" }, "a\nb\nc\n", "a\nb\nc\n", "a\nb\nc\n", -1 },
        { { "aab" }, "aaab", "a", "aaab", 0 },              /* the comparison starts again inside itself */
        { { "abab" }, "xababab", "x", "xabab", 0 },
        { { "abc", "b" }, "xabc", "xa", "xab", 1 },         /* the first end wins */
        { { "bc", "abc" }, "xabc", "x", "xabc", 1 },        /* the longest of those that end together */
        { { "c", "bc", "xyz" }, "abc", "a", "abc", 1 },
        { { "END" }, "END", "", "END", 0 },
        { { "é" }, "caf\xC3\xA9 x", "caf", "café", 0 },
        { { "😀" }, "a😀b", "a", "a😀", 0 },
        { { "\xEF\xBF\xBD" }, "a\xFFz", "a", "a\xEF\xBF\xBD", 0 },
        { { "\xEF\xBF\xBD" }, "a\xE4", "a", "a\xEF\xBF\xBD", 0 }, /* complete only at the end */
    };
    for (int i = 0; i < COUNT(rows); i++) {
        for (int round = 0; round < 20; round++) {
            Random r = { (uint64_t)round };
            Stops stops = { .n = 0 };
            Answer a;
            while (stops.n < 3 && rows[i].stops[stops.n]) {
                stops.strings[stops.n] = str_of(rows[i].stops[stops.n]);
                stops.n++;
            }
            answer_begin(&a, &stops, round % 2);
            push(&a, rows[i].text, strlen(rows[i].text), 1 + round % 8, &r);
            answer_end(&a);
            check_text(&a, round % 2 ? rows[i].with : rows[i].without);
            assert_int_equal(a.stop, rows[i].stop);
            assert_int_equal(a.n_ready, a.text.len);
            answer_free(&a);
        }
    }
}

/* What the answer must be, by the definition: end after end, the longest stop string that ends there. */
static size_t naive_cut(const char *text, size_t n, const Stops *stops, bool include, int *stop)
{
    for (size_t end = 1; end <= n; end++) {
        *stop = -1;
        for (int i = 0; i < stops->n; i++) {
            Str s = stops->strings[i];
            if (s.len > end || memcmp(text + end - s.len, s.data, s.len) != 0) continue;
            if (*stop < 0 || s.len > stops->strings[*stop].len) *stop = i;
        }
        if (*stop >= 0) return include ? end : end - stops->strings[*stop].len;
    }
    *stop = -1;
    return n;
}

/* Longest end of the text that begins some stop string. */
static size_t naive_held(const char *text, size_t n, const Stops *stops)
{
    size_t held = 0;
    for (int i = 0; i < stops->n; i++) {
        for (size_t k = 1; k < stops->strings[i].len && k <= n; k++) {
            if (k > held && memcmp(text + n - k, stops->strings[i].data, k) == 0) held = k;
        }
    }
    return held;
}

/* Texts of few letters, so that stop strings and their beginnings abound. After every token: n_ready never shrinks,
 * what was shown stays, and exactly what could still become a stop string is held back. */
static void any_grouping_gives_the_same(void **state)
{
    static const char *const letters[] = { "a", "b", "é", "\n" };
    Random r = { 2024 };
    for (int round = 0; round < 4000; round++) {
        char text[200] = "", store[MAX_STOP_STRINGS][32];
        size_t n = 0;
        Stops stops = { .n = random_below(&r, 5) };
        for (int i = random_below(&r, 40); i >= 0; i--) {
            const char *letter = letters[random_below(&r, 4)];
            memcpy(text + n, letter, strlen(letter));
            n += strlen(letter);
        }
        for (int i = 0; i < stops.n; i++) {
            size_t len = 0;
            for (int k = random_below(&r, 6); k >= 0; k--) {
                const char *letter = letters[random_below(&r, 4)];
                memcpy(store[i] + len, letter, strlen(letter));
                len += strlen(letter);
            }
            stops.strings[i] = (Str){ store[i], len };
        }
        bool include = random_below(&r, 2);
        int stop, longest = 1 + random_below(&r, 8);
        size_t cut = naive_cut(text, n, &stops, include, &stop), shown = 0;
        Answer a;
        answer_begin(&a, &stops, include);
        for (size_t at = 0; at < n;) { /* characters in tokens of their own or together */
            size_t take = 1;
            while (at + take < n && (((uint8_t)text[at + take] & 0xC0) == 0x80 || random_below(&r, longest) > 0))
                take++;
            bool more = push(&a, text + at, take, longest, &r);
            at += take;
            assert_true(a.n_ready >= shown && a.n_ready <= a.text.len);
            if (a.text.len) assert_memory_equal(a.text.data, text, a.stop >= 0 ? cut : a.n_ready);
            shown = a.n_ready;
            if (!more) break;
            assert_int_equal(a.text.len - a.n_ready, naive_held(a.text.data, a.text.len, &stops));
        }
        answer_end(&a);
        if (a.stop != stop || a.text.len != cut || (cut && memcmp(a.text.data, text, cut) != 0)) {
            fail_msg("round %d: \"%s\" gives \"%s\", %d", round, text, a.text.data, a.stop);
        }
        assert_int_equal(a.n_ready, cut);
        answer_free(&a);
    }
}

/* n_tokens counts up to the token that completes the stop string, skipped ones too; later ones are not taken. */
static void tokens_are_counted(void **state)
{
    Stops stops = { { STR("return") }, 1 };
    Answer a;
    answer_begin(&a, &stops, false);
    assert_true(answer_push(&a, tokenizer_find(tokenizer, "a")));
    assert_true(answer_push(&a, tokenizer_find(tokenizer, "<|im_end|>")));
    assert_true(answer_push(&a, -1));
    assert_false(answer_push(&a, tokenizer_find(tokenizer, " return")));
    assert_int_equal(a.n_tokens, 4);
    assert_false(answer_push(&a, tokenizer_find(tokenizer, "b")));
    assert_int_equal(a.n_tokens, 4);
    answer_end(&a);
    check_text(&a, "a ");
    answer_free(&a);
}

static void longest_stop_string(void **state)
{
    static char stop[MAX_STOP_STRING_BYTES], text[6 + MAX_STOP_STRING_BYTES - 1]; /* one short of complete */
    Random r = { 9 };
    memset(stop, 'a', sizeof stop);
    memset(text, 'a', sizeof text);
    text[5] = 'b';
    Stops stops = { { { stop, sizeof stop } }, 1 };
    Answer a;
    answer_begin(&a, &stops, false);
    assert_true(push(&a, text, sizeof text, 1, &r));
    assert_int_equal(a.n_ready, 6);
    assert_false(push(&a, "a", 1, 1, &r));
    assert_int_equal(a.stop, 0);
    check_text(&a, "aaaaab");
    answer_free(&a);
}

static void full_text(void **state)
{
    Error err = { 0 };
    AnswerOptions options = { .tokenizer = tokenizer, .max_bytes = 3 };
    Answer a;
    Random r = { 1 };
    assert_int_equal(answer_init(&a, &options, &err), OK);
    assert_false(push(&a, "abcdef", 6, 1, &r));
    assert_true(a.text.failed);
    assert_int_equal(a.n_tokens, 4);
    answer_end(&a);
    check_text(&a, "abc");
    answer_free(&a);
}

static void bad_stop_strings(void **state)
{
    static char longer[MAX_STOP_STRING_BYTES + 1];
    memset(longer, 'x', sizeof longer);
    const struct {
        Str         stop;
        int         n;
        const char *says;
    } bad[] = { { STR(""), 1, "1 to 256 bytes, got 0" },
                { { longer, sizeof longer }, 1, "got 257" },
                { STR("\xff"), 1, "not valid UTF-8" },
                { STR("x"), MAX_STOP_STRINGS + 1, "at most 16 stop strings" } };
    for (int i = 0; i < COUNT(bad); i++) {
        Error err = { 0 };
        Answer a;
        AnswerOptions options = {
            .tokenizer = tokenizer, .n_stops = bad[i].n, .stops = &bad[i].stop, .max_bytes = 100
        };
        assert_int_equal(answer_init(&a, &options, &err), ERR_INPUT);
        assert_string_equal(err.param, "stop");
        if (!strstr(err.text, bad[i].says)) fail_msg("%s", err.text);
        answer_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),      cmocka_unit_test(any_grouping_gives_the_same),
        cmocka_unit_test(tokens_are_counted), cmocka_unit_test(longest_stop_string),
        cmocka_unit_test(full_text),          cmocka_unit_test(bad_stop_strings),
    };
    return cmocka_run_group_tests(tests, open_nano, close_nano);
}
