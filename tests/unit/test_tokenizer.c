/* Tokenizer: ids as the original library gives them, limits, bad input, bad files. Vectors:
 * tests/data/text/README.md. */
#include "unit/text_fixture.h"

#include "support/starve.h"
#include "unit/random.h"

#include <string.h>

static Tokenizer *nano(void)
{
    return tokenizer_in(source_tree("models/nano"), NULL);
}

static void check_ids(const Tokenizer *t, const char *text, size_t n, const json_t *want)
{
    Error err = { 0 };
    Ids got = { 0 };
    if (encode(t, text, n, false, INT32_MAX, &got, &err) != OK) fail_msg("%s", err.text);
    if (!ids_equal(&got, want)) fail_msg("other ids than the original's for \"%.*s\"", (int)n, text);
    ids_free(&got);
}

static void prompts_of_the_traces(void **state)
{
    Tokenizer *t = nano();
    json_t *traces = fixture_read("tests/data/golden/nano_traces.json"), *trace;
    size_t i, n = 0;
    json_array_foreach(json_object_get(traces, "plain"), i, trace) {
        const json_t *prompt = json_object_get(trace, "prompt");
        check_ids(t, json_string_value(prompt), json_string_length(prompt), json_object_get(trace, "prompt_ids"));
        n++;
    }
    assert_true(n >= 12);
    json_decref(traces);
    tokenizer_close(t);
}

/* nano's tokenizer.json with some parts replaced, in a directory of its own. */
static void write_variant(const TempDir *dir, const json_t *variant)
{
    static const char *const parts[] = { "normalizer", "pre_tokenizer" };
    json_t *spec = fixture_read("models/nano/tokenizer.json"), *model = json_object_get(spec, "model"), *merge, *token;
    size_t i;
    for (int p = 0; p < COUNT(parts); p++) {
        json_t *part = json_object_get(variant, parts[p]);
        if (part) json_object_set(spec, parts[p], part);
    }
    if (json_is_true(json_object_get(variant, "ignore_merges")))
        json_object_set_new(model, "ignore_merges", json_true());
    json_array_foreach(json_object_get(variant, "added_tokens"), i, token) {
        json_array_append(json_object_get(spec, "added_tokens"), token);
    }
    if (json_is_true(json_object_get(variant, "string_merges"))) {
        json_array_foreach(json_object_get(model, "merges"), i, merge) {
            json_t *text = json_sprintf("%s %s", json_string_value(json_array_get(merge, 0)),
                                        json_string_value(json_array_get(merge, 1)));
            json_array_set_new(json_object_get(model, "merges"), i, text);
        }
    }
    char *text = json_dumps(spec, 0);
    temp_write(dir, "tokenizer.json", text, strlen(text));
    mem_free(text);
    json_decref(spec);
}

static void vectors_of_the_library(void **state)
{
    json_t *vectors = fixture_read("tests/data/text/tokens.json"), *variant, *c;
    const char *name;
    size_t i, n = 0;
    json_object_foreach(json_object_get(vectors, "variants"), name, variant) {
        TempDir dir;
        temp_dir_open(&dir);
        write_variant(&dir, variant);
        Tokenizer *t = tokenizer_in(dir.path, NULL);
        json_array_foreach(json_object_get(vectors, "cases"), i, c) {
            const json_t *text = json_object_get(c, "text");
            if (strcmp(json_string_value(json_object_get(c, "variant")), name) != 0) continue;
            check_ids(t, json_string_value(text), json_string_length(text), json_object_get(c, "ids"));
            n++;
        }
        tokenizer_close(t);
        temp_dir_close(&dir);
    }
    assert_true(n > 100);
    json_decref(vectors);
}

/* Also: what was there stays in front, and a second text with the same scratch gives what it gives alone. */
static void ids_are_appended(void **state)
{
    Error err = { 0 };
    Tokenizer *t = nano();
    TokenizerScratch *s;
    Ids all = { 0 }, alone = { 0 };
    assert_int_equal(tokenizer_scratch_open(&s, t, &err), OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tokenizer_encode(t, s, "def f", 5, false, 100, &all.ids, &all.n, &all.capacity, &err), OK);
    }
    assert_int_equal(encode(t, "def f", 5, false, 100, &alone, &err), OK);
    assert_int_equal(all.n, 3 * alone.n);
    for (int64_t i = 0; i < all.n; i++) assert_int_equal(all.ids[i], alone.ids[i % alone.n]);
    ids_free(&all);
    ids_free(&alone);
    tokenizer_scratch_close(s);
    tokenizer_close(t);
}

static void plain_text_has_no_special_tokens(void **state)
{
    Error err = { 0 };
    Tokenizer *t = nano();
    Ids special = { 0 }, plain = { 0 };
    const char text[] = "<|im_start|>user";
    assert_int_equal(encode(t, text, strlen(text), false, 100, &special, &err), OK);
    assert_int_equal(encode(t, text, strlen(text), true, 100, &plain, &err), OK);
    assert_int_equal(special.ids[0], tokenizer_find(t, "<|im_start|>"));
    assert_true(plain.n > special.n);
    bool is_special;
    for (int64_t i = 0; i < plain.n; i++) {
        tokenizer_token_bytes(t, plain.ids[i], &is_special);
        assert_false(is_special);
    }
    ids_free(&special);
    ids_free(&plain);
    tokenizer_close(t);
}

static void bad_utf8_is_named(void **state)
{
    static const struct {
        const char *text;
        size_t      n;
        const char *says;
    } bad[] = { { "ab\xff", 3, "byte 0xff at offset 2" },       { "\xc3", 1, "byte 0xc3 at offset 0" },
                { "\xed\xa0\x80", 3, "byte 0xed at offset 0" }, { "xxxxxxxxx\xe4\xbdy", 12, "byte 0xe4 at offset 9" },
                { "\xc0\x80", 2, "byte 0xc0 at offset 0" },     { "\xf4\x90\x80\x80", 4, "byte 0xf4 at offset 0" } };
    Tokenizer *t = nano();
    for (int i = 0; i < COUNT(bad); i++) {
        Error err = { 0 };
        Ids ids = { 0 };
        assert_int_equal(encode(t, bad[i].text, bad[i].n, false, 100, &ids, &err), ERR_INPUT);
        assert_non_null(strstr(err.text, bad[i].says));
        assert_int_equal(ids.n, 0);
        ids_free(&ids);
    }
    tokenizer_close(t);
}

static void too_long_is_refused(void **state)
{
    Tokenizer *t = nano();
    Ids ids = { 0 };
    Error err = { 0 };
    assert_int_equal(encode(t, "a b c d e", 9, false, 5, &ids, &err), OK);
    assert_int_equal(ids.n, 5);
    ids.n = 0;
    assert_int_equal(encode(t, "a b c d e", 9, false, 4, &ids, &err), ERR_INPUT);
    assert_string_equal(err.text, "the prompt is longer than 4 tokens");
    assert_int_equal(ids.n, 0);
    ids_free(&ids);
    tokenizer_close(t);
}

static char *repeated(const char *piece, int n)
{
    size_t len = strlen(piece);
    char *text = mem_alloc(len * (size_t)n + 1);
    for (int i = 0; i < n; i++) memcpy(text + len * (size_t)i, piece, len);
    return text;
}

/* Words of a megabyte, and marks that a swapping sort would take minutes over. With quadratic work this test would not
 * end; the bytes are checked. */
static void long_runs(void **state)
{
    static const char *const pieces[] = { "a", " ", "\n", "=", "\xcc\x95\xcc\x80", "<|", "\xe4\xbd\xa0", "1" };
    Tokenizer *t = nano();
    for (int i = 0; i < COUNT(pieces); i++) {
        Error err = { 0 };
        Ids ids = { 0 };
        char *text = repeated(pieces[i], 300000);
        size_t n = strlen(text), bytes = 0;
        assert_int_equal(encode(t, text, n, false, INT32_MAX, &ids, &err), OK);
        for (int64_t k = 0; k < ids.n; k++) bytes += tokenizer_token_bytes(t, ids.ids[k], NULL).len;
        assert_int_equal(bytes, n);
        ids_free(&ids);
        mem_free(text);
    }
    tokenizer_close(t);
}

/* Encoding and decoding give the text back when it is NFC already. */
static void round_trips(void **state)
{
    static const char *const pieces[] = { "def ", "return", " ", "\n\n", "x1", "'ll", "\t", "<|im_end|>", "<think>",
                                          "é",    "你好",   "😀", "नि",   "12", "==",  "  ", "A",          "\r\n" };
    Tokenizer *t = nano();
    Random r = { 42 };
    for (int round = 0; round < 300; round++) {
        Error err = { 0 };
        Ids ids = { 0 };
        Buf text, back;
        Detokenizer d;
        buf_init(&text, 1 << 20);
        buf_init(&back, 1 << 20);
        for (int i = random_below(&r, 30); i >= 0; i--) buf_text(&text, pieces[random_below(&r, COUNT(pieces))]);
        assert_int_equal(encode(t, text.data, text.len, round % 2, INT32_MAX, &ids, &err), OK);
        detokenizer_init(&d, t, false);
        for (int64_t i = 0; i < ids.n; i++) detokenizer_push(&d, ids.ids[i], &back);
        detokenizer_end(&d, &back);
        assert_string_equal(back.data, text.data);
        buf_free(&text);
        buf_free(&back);
        ids_free(&ids);
    }
    tokenizer_close(t);
}

static void look_ups(void **state)
{
    bool special = false;
    Tokenizer *t = nano();
    assert_int_equal(tokenizer_vocab_size(t), 4096);
    assert_string_equal(tokenizer_special(t, "eos_token"), "<|im_end|>");
    assert_string_equal(tokenizer_special(t, "pad_token"), "<|endoftext|>");
    assert_string_equal(tokenizer_special(t, "bos_token"), "");
    assert_string_equal(tokenizer_special(t, "no_such_token"), "");
    int32_t end = tokenizer_find(t, "<|im_end|>");
    assert_int_equal(end, 4078);
    assert_string_equal(tokenizer_token_bytes(t, end, &special).data ? "there" : "", "there");
    assert_true(special);
    Str word = tokenizer_token_bytes(t, tokenizer_find(t, " return"), &special);
    assert_true(str_equal(word, STR(" return")));
    assert_false(special);
    assert_int_equal(tokenizer_find(t, "no such token"), -1);
    assert_int_equal(tokenizer_find(t, ""), -1);
    assert_int_equal(tokenizer_token_bytes(t, -1, &special).len, 0);
    assert_false(special);
    assert_int_equal(tokenizer_token_bytes(t, 4096, NULL).len, 0);
    assert_int_equal(tokenizer_token_bytes(t, INT32_MAX, NULL).len, 0);
    tokenizer_close(t);
}

#define TINY_HEAD "{\"added_tokens\":[{\"id\":4,\"content\":\"<e>\",\"special\":true}],\"normalizer\":null,"
#define TINY_PRE "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
#define TINY_MODEL                                                                                                     \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"aab\":3},\"merges\":[\"a b\",[\"a\",\"ab\"]]}}"
#define TINY_WITH(members) TINY_HEAD TINY_PRE "\"model\":{\"vocab\":{\"a\":0},\"merges\":[]," members "}}"
#define PRE(members) TINY_HEAD "\"pre_tokenizer\":{" members "}," TINY_MODEL
static const char tiny[] = TINY_HEAD TINY_PRE TINY_MODEL;

/* Bytes without a token vanish, as in the original. */
static void a_tiny_vocabulary(void **state)
{
    TempDir dir;
    temp_dir_open(&dir);
    temp_write(&dir, "tokenizer.json", tiny, strlen(tiny));
    Tokenizer *t = tokenizer_in(dir.path, NULL);
    json_t *want = json_pack("[i,i,i,i,i]", 3, 4, 2, 2, 1);
    check_ids(t, "aab<e>ab?abb", 12, want);
    json_decref(want);
    assert_string_equal(tokenizer_special(t, "eos_token"), ""); /* no tokenizer_config.json */
    tokenizer_close(t);
    temp_dir_close(&dir);
}

static void bad_files_are_refused(void **state)
{
    static const struct {
        const char *json;
        Status      status;
        const char *says;
    } bad[] = {
        { "", ERR_INPUT, "not valid JSON" },
        { "{}", ERR_INPUT, "no model" },
        { "[1]", ERR_INPUT, "no model" },
        { "{\"model\":{\"type\":\"Unigram\"}}", ERR_UNSUPPORTED, "Unigram" },
        { "{\"model\":{\"type\":\"BPE\"}}", ERR_INPUT, "no vocab" },
        { TINY_HEAD TINY_PRE "\"model\":{\"vocab\":{\"a\":0}}}", ERR_INPUT, "no merges" },
        { TINY_HEAD TINY_PRE "\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", ERR_INPUT, "not in the vocabulary" },
        { TINY_HEAD TINY_PRE "\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}}", ERR_INPUT, "no space" },
        { TINY_HEAD TINY_PRE "\"model\":{\"vocab\":{\"a\":0},\"merges\":[[1,2]]}}", ERR_INPUT, "pair of strings" },
        { TINY_HEAD TINY_PRE "\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", ERR_INPUT, "out of range" },
        { TINY_HEAD TINY_PRE "\"model\":{\"vocab\":{\"a\":99999999},\"merges\":[]}}", ERR_INPUT, "out of range" },
        { TINY_HEAD TINY_PRE "\"model\":{\"vocab\":{\"a\":\"x\"},\"merges\":[]}}", ERR_INPUT, "out of range" },
        { TINY_HEAD TINY_PRE "\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", ERR_INPUT, "the id 0" },
        { TINY_WITH("\"byte_fallback\":true"), ERR_UNSUPPORTED, "byte_fallback" },
        { TINY_WITH("\"dropout\":0.1"), ERR_UNSUPPORTED, "dropout" },
        { TINY_WITH("\"end_of_word_suffix\":\"x\""), ERR_UNSUPPORTED, "end_of_word" },
        { TINY_WITH("\"unk_token\":\"a\""), ERR_UNSUPPORTED, "unk_token" },
        { TINY_HEAD TINY_MODEL, ERR_UNSUPPORTED, "pre-tokenizer" },
        { PRE("\"type\":\"Metaspace\""), ERR_UNSUPPORTED, "Metaspace" },
        { PRE("\"type\":\"Digits\""), ERR_UNSUPPORTED, "without ByteLevel" },
        { PRE("\"type\":\"ByteLevel\",\"add_prefix_space\":true"), ERR_UNSUPPORTED, "add_prefix_space" },
        { PRE("\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Removed\""), ERR_UNSUPPORTED, "Isolated" },
        { PRE("\"type\":\"Split\",\"behavior\":\"Isolated\""), ERR_INPUT, "no pattern" },
        { PRE("\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},"
              "\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\"}]"),
          ERR_INPUT, "does not compile" },
        { "{\"normalizer\":{\"type\":\"NFKC\"}," TINY_PRE TINY_MODEL, ERR_UNSUPPORTED, "NFC" },
        { "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}," TINY_PRE TINY_MODEL,
          ERR_UNSUPPORTED, "NFC" },
        { "{\"decoder\":{\"type\":\"WordPiece\"}," TINY_PRE TINY_MODEL, ERR_UNSUPPORTED, "decoder" },
        { "{\"added_tokens\":[{\"id\":9,\"content\":\"x\",\"lstrip\":true}]," TINY_PRE TINY_MODEL, ERR_UNSUPPORTED,
          "lstrip" },
        { "{\"added_tokens\":[{\"id\":9}]," TINY_PRE TINY_MODEL, ERR_INPUT, "no content" },
        { "{\"added_tokens\":[7]," TINY_PRE TINY_MODEL, ERR_INPUT, "out of range" },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        Error err = { 0 };
        TempDir dir;
        Tokenizer *t;
        temp_dir_open(&dir);
        temp_write(&dir, "tokenizer.json", bad[i].json, strlen(bad[i].json));
        Status status = tokenizer_open(&t, dir.path, NULL, &err);
        if (status != bad[i].status || !strstr(err.text, bad[i].says))
            fail_msg("row %d: %d \"%s\"", i, status, err.text);
        assert_null(t);
        temp_dir_close(&dir);
    }
}

static void a_missing_file_is_named(void **state)
{
    Error err = { 0 };
    Tokenizer *t;
    TempDir dir;
    temp_dir_open(&dir);
    assert_int_equal(tokenizer_open(&t, dir.path, NULL, &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "tokenizer.json"));
    temp_dir_close(&dir);
    tokenizer_close(NULL);
    tokenizer_scratch_close(NULL);
}

static void starved(void **state)
{
    Error err = { 0 };
    Status status;
    TempDir dir;
    Tokenizer *t = NULL;
    Ids ids = { 0 };
    temp_dir_open(&dir);
    temp_write(&dir, "tokenizer.json", tiny, strlen(tiny));
    STARVE(status, status = tokenizer_open(&t, dir.path, NULL, &err), { tokenizer_close(t); t = NULL; });
    t = tokenizer_in(dir.path, NULL);
    TokenizerScratch *s = NULL;
    STARVE(status, status = tokenizer_scratch_open(&s, t, &err), { tokenizer_scratch_close(s); s = NULL; });
    tokenizer_close(t);
    t = nano();
    const char text[] = "e\xcc\x81 <think>qzx"; /* goes through all parts */
    STARVE(status, {
        mem_fail_at(0); /* the scratch is fresh but not starved */
        assert_int_equal(tokenizer_scratch_open(&s, t, NULL), OK);
        mem_fail_at(nth_);
        status = tokenizer_encode(t, s, text, strlen(text), false, 100, &ids.ids, &ids.n, &ids.capacity, &err);
        mem_fail_at(0);
        tokenizer_scratch_close(s);
    }, { ids_free(&ids); });
    tokenizer_close(t);
    temp_dir_close(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_of_the_traces),
        cmocka_unit_test(vectors_of_the_library),
        cmocka_unit_test(ids_are_appended),
        cmocka_unit_test(plain_text_has_no_special_tokens),
        cmocka_unit_test(bad_utf8_is_named),
        cmocka_unit_test(too_long_is_refused),
        cmocka_unit_test(long_runs),
        cmocka_unit_test(round_trips),
        cmocka_unit_test(look_ups),
        cmocka_unit_test(a_tiny_vocabulary),
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(starved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
