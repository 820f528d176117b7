/* Reading tokenizer.json's large tables without a tree: the same image however the file is written, and never more
 * lenient than the JSON parser. */
#include "unit/text_fixture.h"

#include "text/tokenizer_image_impl.h"
#include "text/tokenizer_tables_impl.h"
#include "unit/random.h"

static Status compile(const char *json, size_t n, Buf *image, Error *err)
{
    SourceStamp stamp = { 0 };
    buf_init(image, 1 << 24);
    return image_compile(image, json, n, "the file", &stamp, err);
}

/* Escaped, indented, compact, keys in another order. */
static void however_it_is_written(void **state)
{
    static const size_t ways[] = { JSON_ENSURE_ASCII, JSON_INDENT(3), JSON_COMPACT, JSON_SORT_KEYS,
                                   JSON_SORT_KEYS | JSON_ENSURE_ASCII | JSON_INDENT(1), JSON_ESCAPE_SLASH };
    Error err = { 0 };
    Buf want, got;
    char *text;
    size_t n;
    assert_int_equal(file_read(source_tree("models/nano/tokenizer.json"), 1 << 24, &text, &n, &err), OK);
    if (compile(text, n, &want, &err) != OK) fail_msg("%s", err.text);
    json_t *tree;
    assert_int_equal(json_parse(&tree, text, n, "nano", &err), OK);
    for (int i = 0; i < COUNT(ways); i++) {
        char *written = json_dumps(tree, ways[i]);
        if (compile(written, strlen(written), &got, &err) != OK) fail_msg("way %d: %s", i, err.text);
        assert_int_equal(got.len, want.len);
        assert_memory_equal(got.data, want.data, want.len);
        buf_free(&got);
        mem_free(written);
    }
    json_decref(tree);
    mem_free(text);
    buf_free(&want);
}

#define HEAD "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
static const char escaped[] = HEAD "\"model\":{\"other\":{\"vocab\":{\"}\":[]}},\"merges\":[\"\\u0061 b\",[\"a\",\"\\\"\\u00e9\"]],"
                              "\"vocab\":{\"a\":0,\"\\u0062\":1,\"ab\":2,\"\\\"\xc3\xa9\":3,\"a\\\"\\u00e9\":4,\"\\ud83d\\ude00\":5}},"
                              "\"added_tokens\":[]}";

static void escapes_are_read(void **state)
{
    Error err = { 0 };
    Buf image;
    Vocab v;
    if (compile(escaped, strlen(escaped), &image, &err) != OK) fail_msg("%s", err.text);
    assert_int_equal(image_open(&v, image.data, image.len, "image", &err), OK);
    assert_int_equal(v.n_ids, 6);
    assert_int_equal(v.n_merges, 2);
    assert_true(str_equal(vocab_bytes(&v, 4), STR("a\"\xe9")));
    assert_true(str_equal(vocab_bytes(&v, 5), STR("\xf0\x9f\x98\x80"))); /* outside the byte map: as it is */
    assert_int_equal(v.merges[1].id, 4);
    buf_free(&image);
}

static void what_is_wrong_is_said(void **state)
{
    static const struct {
        const char *model, *says;
    } bad[] = {
        { "{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}", "duplicate" },
        { "{\"vocab\":{\"a\":0,\"\\u0061\":1},\"merges\":[]}", "duplicate" },
        { "{\"vocab\":{\"a\":0},\"vocab\":{},\"merges\":[]}", "duplicate" },
        { "{\"vocab\":{\"a\":0,},\"merges\":[]}", "not valid JSON" },
        { "{\"vocab\":{\"a\":00},\"merges\":[]}", "not valid JSON" },
        { "{\"vocab\":{\"a\":1.0},\"merges\":[]}", "out of range" },
        { "{\"vocab\":{\"a\":null},\"merges\":[]}", "out of range" },
        { "{\"vocab\":{\"\\ud800\":0},\"merges\":[]}", "not valid JSON" },
        { "{\"vocab\":{\"\\u0000\":0},\"merges\":[]}", "not valid JSON" },
        { "{\"vocab\":{\"a\tb\":0},\"merges\":[]}", "not valid JSON" },
        { "{\"vocab\":{\"\xff\":0},\"merges\":[]}", "not valid JSON" },
        { "{\"vocab\":[],\"merges\":[]}", "no vocab" },
        { "{\"vocab\":{\"a\":0},\"merges\":{}}", "no merges" },
        { "{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}", "no space" },
        { "{\"vocab\":{\"a\":0},\"merges\":[\" a\"]}", "empty half" },
        { "{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}", "pair of strings" },
        { "{\"vocab\":{\"a\":0},\"merges\":[\"a b\",]}", "not valid JSON" },
        { "{\"vocab\":{\"a\":0},\"merges\":[", "not valid JSON" },
        { "{\"vocab\":{\"a", "not valid JSON" },
        { "{\"vocab\":{\"a\\", "not valid JSON" },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        Error err = { 0 };
        Buf text, image;
        buf_init(&text, 1 << 16);
        buf_text(&text, HEAD "\"model\":");
        buf_text(&text, bad[i].model);
        buf_text(&text, "}");
        if (compile(text.data, text.len, &image, &err) != ERR_INPUT || !strstr(err.text, bad[i].says))
            fail_msg("row %d: \"%s\"", i, err.text);
        buf_free(&text);
        buf_free(&image);
    }
}

/* Bytes changed, cut out and doubled at random: what the parser refuses is refused, with the parser's sentence. */
static void no_more_lenient_than_json(void **state)
{
    static const char signs[] = "\"\\{}[],: 0a\xc3\x01u";
    Random r = { 17 };
    int n_json = 0, n_taken = 0;
    for (int round = 0; round < 20000; round++) {
        char text[2 * sizeof escaped];
        size_t n = sizeof escaped - 1;
        memcpy(text, escaped, n);
        for (int k = random_below(&r, 3); k >= 0; k--) {
            size_t at = (size_t)random_below(&r, (int32_t)n), len = 1 + (size_t)random_below(&r, 4);
            if (len > n - at) len = n - at;
            int kind = random_below(&r, 3);
            if (kind == 0) text[at] = signs[random_below(&r, sizeof signs - 1)];
            if (kind == 1) memmove(text + at, text + at + len, n - at - len);
            if (kind == 2) memmove(text + at + len, text + at, n - at);
            n = kind == 1 ? n - len : kind == 2 ? n + len : n;
        }
        char *exact = mem_strndup(text, n); /* so that a sanitizer sees a byte too far */
        Error err = { 0 }, why = { 0 };
        Buf image;
        json_t *tree = NULL;
        Status parsed = json_parse(&tree, exact, n, "the file", &why), status = compile(exact, n, &image, &err);
        if (parsed != OK) assert_string_equal(err.text, why.text);
        n_json += parsed == OK;
        n_taken += status == OK;
        json_decref(tree);
        mem_free(exact);
        buf_free(&image);
    }
    assert_in_range(n_json, 1000, 15000);
    assert_in_range(n_taken, 100, n_json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(however_it_is_written),
        cmocka_unit_test(escapes_are_read),
        cmocka_unit_test(what_is_wrong_is_said),
        cmocka_unit_test(no_more_lenient_than_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
