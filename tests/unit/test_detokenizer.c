/* Detokenizer: text as Python's bytes.decode(errors="replace") gives it, however the bytes are grouped into tokens. */
#include "unit/text_fixture.h"

#include "unit/random.h"

#include <stdio.h>
#include <string.h>

static Tokenizer *nano(void)
{
    return tokenizer_in(source_tree("models/nano"), NULL);
}

/* Token of some bytes; nano has one for every single byte. */
static int32_t token_of(const Tokenizer *t, const char *bytes, size_t n)
{
    char text[64];
    memcpy(text, bytes, n);
    text[n] = '\0';
    return tokenizer_find(t, text);
}

/* Cuts bytes into tokens at random places. */
static void push_grouped(Detokenizer *d, const Tokenizer *t, const char *bytes, size_t n, Random *r, Buf *out)
{
    for (size_t at = 0; at < n;) {
        size_t take = 1 + (size_t)random_below(r, 6);
        if (take > n - at) take = n - at;
        while (take > 1 && token_of(t, bytes + at, take) < 0) take--;
        int32_t id = token_of(t, bytes + at, take);
        assert_true(id >= 0);
        detokenizer_push(d, id, out);
        at += take;
    }
}

static size_t from_hex(const char *hex, char *out)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (char)byte;
    }
    return n;
}

static void as_python_decodes(void **state)
{
    json_t *vectors = fixture_read("tests/data/text/tokens.json"), *c;
    Tokenizer *t = nano();
    Random r = { 1 };
    size_t i;
    json_array_foreach(json_object_get(vectors, "bytes"), i, c) {
        char bytes[64];
        size_t n = from_hex(json_string_value(json_object_get(c, "hex")), bytes);
        const char *want = json_string_value(json_object_get(c, "text"));
        for (int round = 0; round < 4; round++) {
            Detokenizer d;
            Buf out;
            buf_init(&out, 1 << 16);
            detokenizer_init(&d, t, false);
            push_grouped(&d, t, bytes, n, &r, &out);
            detokenizer_end(&d, &out);
            if (strcmp(out.data ? out.data : "", want) != 0) {
                fail_msg("bytes %s give \"%s\", not \"%s\"", json_string_value(json_object_get(c, "hex")), out.data,
                         want);
            }
            buf_free(&out);
        }
    }
    assert_true(i > 100);
    json_decref(vectors);
    tokenizer_close(t);
}

/* After every token the text so far is whole characters, and only grows. */
static void never_half_a_character(void **state)
{
    static const char text[] = "a😀é你\xF0\x9F\x98x\xE4\xBD";
    Tokenizer *t = nano();
    Detokenizer d;
    Buf out;
    buf_init(&out, 1 << 10);
    detokenizer_init(&d, t, false);
    for (size_t i = 0; i < strlen(text); i++) {
        size_t before = out.len;
        detokenizer_push(&d, token_of(t, text + i, 1), &out);
        json_t *valid = json_stringn(out.data ? out.data : "", out.len); /* jansson takes nothing but UTF-8 */
        assert_non_null(valid);
        json_decref(valid);
        assert_true(out.len >= before);
    }
    assert_string_equal(out.data, "a😀é你\xEF\xBF\xBDx");
    detokenizer_end(&d, &out);
    assert_string_equal(out.data, "a😀é你\xEF\xBF\xBDx\xEF\xBF\xBD");
    detokenizer_end(&d, &out);
    assert_string_equal(out.data, "a😀é你\xEF\xBF\xBDx\xEF\xBF\xBD");
    buf_free(&out);
    tokenizer_close(t);
}

/* A skipped token is as if it were not there, even inside a character; unknown ids are nothing. */
static void special_tokens(void **state)
{
    Tokenizer *t = nano();
    for (int skip = 0; skip < 2; skip++) {
        Detokenizer d;
        Buf out;
        buf_init(&out, 1 << 10);
        detokenizer_init(&d, t, skip);
        detokenizer_push(&d, token_of(t, "\xC3", 1), &out);
        detokenizer_push(&d, tokenizer_find(t, "<|im_end|>"), &out);
        detokenizer_push(&d, -1, &out);
        detokenizer_push(&d, 4096, &out);
        detokenizer_push(&d, token_of(t, "\xA9", 1), &out);
        detokenizer_end(&d, &out);
        assert_string_equal(out.data, skip ? "é" : "\xEF\xBF\xBD<|im_end|>\xEF\xBF\xBD");
        buf_free(&out);
    }
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_python_decodes), cmocka_unit_test(never_half_a_character), cmocka_unit_test(special_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
