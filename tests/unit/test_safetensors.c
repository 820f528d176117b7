/* Safetensors: real checkpoints open and read back, and what lies is refused with one sentence.
 *
 * The table `hostile` is the list of lies of one header; `indexes` and `shards` are about several files. Everything
 * is a real file in a directory of the test's own, so lengths, short reads and links are the system's. */
#include "base/error.h"
#include "base/file.h"
#include "support/starve.h"
#include "support/temp_dir.h"
#include "tensor/safetensors.h"
#include "tensor/safetensors_impl.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_dir(void **state)
{
    static TempDir t;
    temp_dir_open(&t);
    *state = &t;
    return 0;
}

static int close_dir(void **state)
{
    temp_dir_close(*state);
    return 0;
}

/* --- making files --------------------------------------------------------------------------------------------- */

/* A file of a header and n_data bytes of data, byte i holding i; `announced` is the length that it states. */
static const char *write_raw(const TempDir *t, const char *name, const char *header, size_t n_header,
                             uint64_t announced, size_t n_data)
{
    size_t n = 8 + n_header + n_data;
    unsigned char *file = calloc(1, n);
    assert_non_null(file);
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)(announced >> (8 * i));
    memcpy(file + 8, header, n_header);
    for (size_t i = 0; i < n_data; i++) file[8 + n_header + i] = (unsigned char)i;
    const char *path = temp_write(t, name, file, n);
    free(file);
    return path;
}

static const char *write_file(const TempDir *t, const char *name, const char *header, size_t n_data)
{
    return write_raw(t, name, header, strlen(header), strlen(header), n_data);
}

static void expect(const char *path, Status status, const char *says)
{
    Safetensors *st = NULL;
    Error err = { 0 };
    Status got = safetensors_open(&st, path, &err);
    if (got != status || !strstr(err.text, says)) {
        fail_msg("status %d, want %d; \"%s\", want \"%s\"", got, status, err.text, says);
    }
    if (status != OK) assert_null(st);
    safetensors_close(st);
}

#define U8_4  "{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}"
#define A(description) "{\"a\":{" description "}}"

/* --- good files ------------------------------------------------------------------------------------------------- */

static void bundled_and_golden_open(void **state)
{
    static const struct {
        const char *path;
        int         n;
        const char *tensor;
    } cases[] = {
        { "models/nano", 123, "model.embed_tokens.weight" },
        { "models/nano-plain", 68, "model.embed_tokens.weight" },
        { "models/nano-DFlash", 25, "fc.weight" },
        { "models/nano-plain-DFlash", 25, "fc.weight" },
        { "tests/data/golden/llama", 29, "model.norm.weight" },
        { "tests/data/golden/llama/golden.safetensors", 7, "logits" },
        { "tests/data/golden/llama_yarn", 21, "lm_head.weight" },
        { "tests/data/golden/qwen3", 46, "model.norm.weight" },
        { "tests/data/golden/qwen3_5", 56, "model.layers.0.linear_attn.A_log" },
        { "tests/data/golden/dflash/target", 90, "model.norm.weight" },
        { "tests/data/golden/dflash/draft", 36, "fc.weight" },
        { "tests/data/golden/ddtree/golden.safetensors", 144, "0.logits" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        Safetensors *st;
        Error err = { 0 };
        if (safetensors_open(&st, source_tree(cases[i].path), &err) != OK) fail_msg("%s", err.text);
        assert_int_equal(safetensors_count(st), cases[i].n);
        assert_non_null(safetensors_find(st, cases[i].tensor));
        assert_null(safetensors_find(st, "no.such.tensor"));
        uint64_t bytes = 0;
        for (int k = 0; k < safetensors_count(st); k++) {
            const SafetensorsEntry *e = safetensors_at(st, k);
            assert_ptr_equal(safetensors_find(st, e->name), e);
            if (k > 0) assert_true(e->offset >= (e - 1)->offset); /* in the order of the file */
            bytes += e->bytes;
        }
        assert_true(bytes == safetensors_total_bytes(st));
        safetensors_close(st);
    }
    safetensors_close(NULL);
}

static void accepted_headers(void **state)
{
    static const struct {
        const char *header;
        size_t      n_data;
        int         n;
    } cases[] = {
        { "{}", 0, 0 },
        { "{}     ", 0, 0 },
        { "{ \t\r\n}\n", 0, 0 },
        { "{\"__metadata__\":{}}", 0, 0 },
        { "{\"__metadata__\":{\"format\":\"pt\",\"note\":\"two\\nlines \\u00e9\"},\"a\":" U8_4 "}", 4, 1 },
        { "{\"a\":" U8_4 "}", 4, 1 },
        { "{ \"a\" : { \"data_offsets\" : [ 0 , 4 ] , \"shape\" : [ 2 , 2 ] , \"dtype\" : \"U8\" } } ", 4, 1 },
        { A("\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]"), 4, 1 },
        { A("\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]"), 0, 1 },
        { A("\"dtype\":\"F32\",\"shape\":[1099511627776,0],\"data_offsets\":[0,0]"), 0, 1 },
        { A("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,4],\"data_offsets\":[0,4]"), 4, 1 },
        { A("\"dtype\":\"F4\",\"shape\":[8],\"data_offsets\":[0,4]"), 4, 1 },
        { A("\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]"), 3, 1 },
        { A("\"dtype\":\"NEW9\",\"shape\":[5],\"data_offsets\":[0,4]"), 4, 1 }, /* an error only if it is needed */
        { "{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[1,4]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_"
          "offsets\":[0,1]}}",
          4, 2 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_"
          "offsets\":[2,4]},"
          "\"c\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_"
          "offsets\":[4,4]}}",
          4, 4 },
        { "{\"caf\xc3\xa9\":" U8_4 "}", 4, 1 },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        Safetensors *st;
        Error err = { 0 };
        const char *path = write_file(*state, "a.safetensors", cases[i].header, cases[i].n_data);
        if (safetensors_open(&st, path, &err) != OK) fail_msg("%s: %s", cases[i].header, err.text);
        assert_int_equal(safetensors_count(st), cases[i].n);
        safetensors_close(st);
    }
}

static void names_are_decoded(void **state)
{
    static const char *const cases[][2] = {
        { "plain", "plain" },
        { "\\\"\\\\\\/", "\"\\/" },
        { "\\u0041\\u00e9\\u20ac\\ud83d\\ude00", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" },
        { "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80" },
        { "\\uDBFF\\uDFFFz", "\xf4\x8f\xbf\xbfz" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        char header[200];
        snprintf(header, sizeof header, "{\"%s\":" U8_4 "}", cases[i][0]);
        Safetensors *st;
        assert_int_equal(safetensors_open(&st, write_file(*state, "a.safetensors", header, 4), NULL), OK);
        assert_string_equal(safetensors_at(st, 0)->name, cases[i][1]);
        assert_ptr_equal(safetensors_find(st, cases[i][1]), safetensors_at(st, 0));
        safetensors_close(st);
    }
}

static void entries_say_what_is_there(void **state)
{
    static const char header[] = "{\"x\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
                                 "\"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}";
    Safetensors *st;
    assert_int_equal(safetensors_open(&st, write_file(*state, "a.safetensors", header, 20), NULL), OK);
    const SafetensorsEntry *s = safetensors_at(st, 0), *x = safetensors_at(st, 1);
    assert_string_equal(s->name, "s");
    assert_int_equal(s->dtype, DT_OTHER);
    assert_string_equal(s->dtype_text, "F64");
    assert_int_equal(s->n_dims, 0);
    assert_int_equal(x->dtype, DT_BF16);
    assert_int_equal(x->n_dims, 2);
    assert_int_equal(x->shape[0], 2);
    assert_int_equal(x->shape[1], 3);
    assert_int_equal(x->bytes, 12);
    assert_int_equal(x->offset, 8 + strlen(header) + 8);

    unsigned char bytes[20];
    for (uint64_t first = 0; first <= 12; first++) {
        for (size_t n = 0; n <= 12 - first; n++) {
            memset(bytes, 0xee, sizeof bytes);
            assert_int_equal(safetensors_read(st, x, first, bytes, n, NULL), OK);
            for (size_t i = 0; i < n; i++) assert_int_equal(bytes[i], 8 + first + i);
            assert_int_equal(bytes[n], 0xee);
        }
    }
    safetensors_close(st);
}

/* --- hostile files ---------------------------------------------------------------------------------------------- */

static const struct {
    const char *header;
    size_t      n_data;
    const char *says;
} hostile[] = {
    /* not this shape of JSON */
    { "", 0, "does not begin with '{'" },
    { " {}", 0, "does not begin with '{'" },
    { "[]", 0, "does not begin with '{'" },
    { "\xef\xbb\xbf{}", 0, "does not begin with '{'" },
    { "{", 0, "a string is expected" },
    { "{}}", 0, "something follows" },
    { "{}{}", 0, "something follows" },
    { "{} x", 0, "something follows" },
    { "{\"a\"}", 0, "':' is expected" },
    { "{\"a\":}", 0, "'{' is expected" },
    { "{\"a\":null}", 0, "'{' is expected" },
    { "{\"a\":[]}", 0, "'{' is expected" },
    { "{\"a\":1}", 0, "'{' is expected" },
    { "{\"a\":" U8_4 ",}", 4, "a string is expected" },
    { "{,\"a\":" U8_4 "}", 4, "a string is expected" },
    { "{\"a\":" U8_4 " \"b\":" U8_4 "}", 4, "',' or '}'" },
    { "{\"a\":" U8_4, 4, "',' or '}'" },
    { "{a:" U8_4 "}", 4, "a string is expected" },
    { "{'a':" U8_4 "}", 4, "a string is expected" },
    { "{\"a:" U8_4 "}", 4, "':' is expected" },
    { "{\"a", 0, "ends inside a string" },
    { "{\"a\\", 0, "ends inside a string" },
    { "{/**/\"a\":" U8_4 "}", 4, "a string is expected" },
    /* members of a tensor */
    { A(""), 0, "lacks dtype, shape or data_offsets" },
    { A("\"dtype\":\"U8\",\"shape\":[4]"), 4, "lacks" },
    { A("\"dtype\":\"U8\",\"data_offsets\":[0,4]"), 4, "lacks" },
    { A("\"shape\":[4],\"data_offsets\":[0,4]"), 4, "lacks" },
    { A("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"strides\":[1]"), 4, "twice, or one that is not" },
    { A("\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]"), 4, "twice" },
    { A("\"dtype\":\"U8\",\"shape\":[4],\"shape\":[4],\"data_offsets\":[0,4]"), 4, "twice" },
    { A("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"data_offsets\":[0,4]"), 4, "twice" },
    { A("\"dtype\":8,\"shape\":[4],\"data_offsets\":[0,4]"), 4, "a string is expected" },
    { A("\"dtype\":\"\",\"shape\":[4],\"data_offsets\":[0,4]"), 4, "no sensible length" },
    { A("\"dtype\":\"U8U8U8U8U8U8U8U8U8U8U8U8U8U8U8U8U8\",\"shape\":[4],\"data_offsets\":[0,4]"), 4,
      "no sensible length" },
    { A("\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]"), 4, "an array is expected" },
    { A("\"dtype\":\"U8\",\"shape\":[4,],\"data_offsets\":[0,4]"), 4, "a non-negative integer" },
    { A("\"dtype\":\"U8\",\"shape\":[4,\"data_offsets\":[0,4]"), 4, "a non-negative integer" },
    { A("\"dtype\":\"U8\",\"shape\":[4 4],\"data_offsets\":[0,4]"), 4, "',' or ']'" },
    { A("\"dtype\":\"U8\",\"shape\":[[4]],\"data_offsets\":[0,4]"), 4, "a non-negative integer" },
    { A("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,4]"), 4, "more than 8 dimensions" },
    { A("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0]"), 4, "lacks" },
    { A("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[]"), 4, "lacks" },
    { A("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,4]"), 4, "more than two" },
    { A("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":{}"), 4, "an array is expected" },
    /* integers */
    { A("\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]"), 4, "a non-negative integer" },
    { A("\"dtype\":\"U8\",\"shape\":[-0],\"data_offsets\":[0,0]"), 0, "a non-negative integer" },
    { A("\"dtype\":\"U8\",\"shape\":[+4],\"data_offsets\":[0,4]"), 4, "a non-negative integer" },
    { A("\"dtype\":\"U8\",\"shape\":[4.0],\"data_offsets\":[0,4]"), 4, "a non-negative integer" },
    { A("\"dtype\":\"U8\",\"shape\":[4e0],\"data_offsets\":[0,4]"), 4, "a non-negative integer" },
    { A("\"dtype\":\"U8\",\"shape\":[04],\"data_offsets\":[0,4]"), 4, "leading zero" },
    { A("\"dtype\":\"U8\",\"shape\":[0x4],\"data_offsets\":[0,4]"), 4, "',' or ']'" },
    { A("\"dtype\":\"U8\",\"shape\":[\"4\"],\"data_offsets\":[0,4]"), 4, "a non-negative integer" },
    { A("\"dtype\":\"U8\",\"shape\":[true],\"data_offsets\":[0,4]"), 4, "a non-negative integer" },
    { A("\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,4]"), 4, "larger than 2^63" },
    { A("\"dtype\":\"U8\",\"shape\":[18446744073709551620],\"data_offsets\":[0,4]"), 4, "larger than 2^63" },
    { A("\"dtype\":\"U8\",\"shape\":[99999999999999999999999999999999],\"data_offsets\":[0,4]"), 4,
      "larger than 2^63" },
    { A("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,18446744073709551620]"), 4, "larger than 2^63" },
    /* shapes */
    { A("\"dtype\":\"U8\",\"shape\":[1099511627777],\"data_offsets\":[0,4]"), 4, "a dimension over 2^40" },
    { A("\"dtype\":\"U8\",\"shape\":[1099511627776,1099511627776],\"data_offsets\":[0,4]"), 4, "overflows" },
    { A("\"dtype\":\"U8\",\"shape\":[1099511627776,1099511627776,0],\"data_offsets\":[0,0]"), 0, "overflows" },
    { A("\"dtype\":\"F64\",\"shape\":[1099511627776,4194304],\"data_offsets\":[0,0]"), 0, "overflows" },
    { A("\"dtype\":\"U8\",\"shape\":[4294967296,4294967297],\"data_offsets\":[0,4]"), 4, "overflows" },
    { A("\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,4]"), 4, "do not match" },
    { A("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,4]"), 4, "do not match" },
    { A("\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]"), 0, "do not match" },
    { A("\"dtype\":\"F4\",\"shape\":[7],\"data_offsets\":[0,4]"), 4, "whole bytes" },
    { A("\"dtype\":\"F6_E3M2\",\"shape\":[3],\"data_offsets\":[0,3]"), 3, "whole bytes" },
    /* ranges */
    { A("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]"), 4, "ends before it begins" },
    { A("\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[1,4]"), 4, "leaves a hole" },
    { A("\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]"), 4, "1 bytes after its last tensor" },
    { A("\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]"), 4, "is cut short" },
    { A("\"dtype\":\"U8\",\"shape\":[1099511627776],\"data_offsets\":[0,1099511627776]"), 4, "is cut short" },
    { A("\"dtype\":\"X\",\"shape\":[4],\"data_offsets\":[0,9223372036854775807]"), 4, "is cut short" },
    { "{}", 4, "4 bytes after its last tensor" },
    { "{\"a\":" U8_4 ",\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}", 4, "overlaps" },
    { "{\"a\":" U8_4 ",\"b\":" U8_4 "}", 4, "overlaps" },
    { "{\"a\":" U8_4 ",\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[5,6]}}", 6, "leaves a hole" },
    { "{\"a\":" U8_4 ",\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}", 4, "overlaps" },
    { "{\"a\":{\"dtype\":\"X\",\"shape\":[],\"data_offsets\":[0,9223372036854775807]},"
      "\"b\":{\"dtype\":\"X\",\"shape\":[],\"data_offsets\":[9223372036854775807,9223372036854775807]}}",
      4, "is cut short" },
    /* names */
    { "{\"\":" U8_4 "}", 4, "no name" },
    { "{\"a\":" U8_4 ",\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[4,5]}}", 5, "tensor a appears twice" },
    { "{\"a\":" U8_4 ",\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[4,5]}}", 5,
      "tensor a appears twice" },
    { "{\"a\nb\":" U8_4 "}", 4, "bare control character" },
    { "{\"a\\nb\":" U8_4 "}", 4, "control character" },
    { "{\"a\\u0000b\":" U8_4 "}", 4, "NUL" },
    { "{\"a\\u007f\":" U8_4 "}", 4, "control character" },
    { "{\"a\\x41\":" U8_4 "}", 4, "invalid escape" },
    { "{\"a\\u00g0\":" U8_4 "}", 4, "invalid escape" },
    { "{\"a\\u12\":" U8_4 "}", 4, "invalid escape" },
    { "{\"\\ud800\":" U8_4 "}", 4, "invalid escape" },
    { "{\"\\udc00\\ud800\":" U8_4 "}", 4, "invalid escape" },
    { "{\"\\udc00\\udc00\":" U8_4 "}", 4, "invalid escape" },
    { "{\"\\ud800\\u0041\":" U8_4 "}", 4, "invalid escape" },
    { "{\"\\ud800\\ud800\":" U8_4 "}", 4, "invalid escape" },
    { "{\"\\ud800\\n\":" U8_4 "}", 4, "invalid escape" },
    { "{\"\xff\":" U8_4 "}", 4, "UTF-8" },
    { "{\"\xc0\x80\":" U8_4 "}", 4, "UTF-8" },
    { "{\"\xed\xa0\x80\":" U8_4 "}", 4, "UTF-8" },
    { "{\"\xf4\x90\x80\x80\":" U8_4 "}", 4, "UTF-8" },
    { "{\"a\xe2\x82\":" U8_4 "}", 4, "UTF-8" },
    { "{\"a\xc3", 0, "UTF-8" },
    /* metadata */
    { "{\"__metadata__\":[]}", 0, "must be an object" },
    { "{\"__metadata__\":\"x\"}", 0, "must be an object" },
    { "{\"__metadata__\":{\"a\":1}}", 0, "a string is expected" },
    { "{\"__metadata__\":{\"a\":{}}}", 0, "a string is expected" },
    { "{\"__metadata__\":{\"a\":\"b\",}}", 0, "a string is expected" },
    { "{\"__metadata__\":{\"a\":\"b\"", 0, "',' or '}'" },
    { "{\"__metadata__\":{\"a\":\"b\",\"c\":\"d\",\"a\":\"e\"}}", 0, "a member twice" },
    { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "appears twice" },
};

static void hostile_headers(void **state)
{
    assert_true(COUNT(hostile) >= 60);
    for (int i = 0; i < COUNT(hostile); i++) {
        const char *path = write_file(*state, "a.safetensors", hostile[i].header, hostile[i].n_data);
        Safetensors *st = NULL;
        Error err = { 0 };
        if (safetensors_open(&st, path, &err) != ERR_INPUT) fail_msg("accepted: %s", hostile[i].header);
        if (!strstr(err.text, hostile[i].says)) fail_msg("%s: %s", hostile[i].header, err.text);
        assert_non_null(strstr(err.text, path)); /* the file at fault is named */
        assert_null(st);
    }
}

static void hostile_lengths(void **state)
{
    static const struct {
        uint64_t    announced;
        const char *says;
    } cases[] = {
        { 0, "does not begin with '{'" },
        { 1, "a string is expected" },
        { 7, "is cut short" }, /* one byte more than the file has */
        { 1000, "is cut short" },
        { 24 << 20, "is cut short" },
        { (24 << 20) + 1, "no safetensors file" },
        { (uint64_t)1 << 63, "no safetensors file" },
        { UINT64_MAX, "no safetensors file" },
        { UINT64_MAX - 7, "no safetensors file" }, /* 8 + length is 0 */
    };
    for (int i = 0; i < COUNT(cases); i++) {
        expect(write_raw(*state, "a.safetensors", "{}    ", 6, cases[i].announced, 0), ERR_INPUT, cases[i].says);
    }
    /* Over the limit also where the file is long enough (a hole, no blocks on the disk). */
    const char *path = write_raw(*state, "a.safetensors", "", 0, (24 << 20) + 1, 0);
    assert_int_equal(truncate(path, 8 + (24 << 20) + 1), 0);
    expect(path, ERR_INPUT, "no safetensors file");
    expect(temp_write(*state, "a.safetensors", "", 0), ERR_INPUT, "is empty");
    expect(temp_write(*state, "a.safetensors", "1234567", 7), ERR_INPUT, "has only 7 bytes");
}

/* Large lies: read in one pass, without recursion and without a tree in memory. */
static void hostile_sizes(void **state)
{
    enum { N = 4000000 };
    char *text = malloc(N);
    assert_non_null(text);
    static const struct {
        const char *start;
        char        fill;
        const char *says;
    } cases[] = {
        { "{\"a\":{\"shape\":", '[', "a non-negative integer" },
        { "{\"a\":", '{', "a string is expected" },
        { "{\"", 'x', "ends inside a string" },
        { "{\"", '\\', "ends inside a string" },
        { "{", ' ', "a string is expected" },
        { "{\"a\":{\"shape\":[", '9', "larger than 2^63" },
        { "{\"__metadata__\":{\"k\":\"", 'x', "ends inside a string" },
        { "{", 0, "a string is expected" },
        { "{\"a\":{\"shape\":[0", 0, "',' or ']'" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        memset(text, cases[i].fill, N);
        memcpy(text, cases[i].start, strlen(cases[i].start));
        expect(write_raw(*state, "a.safetensors", text, N, N, 0), ERR_INPUT, cases[i].says);
    }
    /* A name of 512 bytes passes, one of 513 does not. */
    for (int n = 512; n <= 513; n++) {
        char header[1000];
        snprintf(header, sizeof header, "{\"%0*d\":" U8_4 "}", n, 0);
        expect(write_file(*state, "a.safetensors", header, 4), n == 512 ? OK : ERR_INPUT,
               n == 512 ? "" : "longer than 512");
    }
    /* Metadata of endlessly many members. */
    size_t used = (size_t)snprintf(text, N, "{\"__metadata__\":{");
    for (int i = 0; i < 70000; i++) used += (size_t)snprintf(text + used, N - used, "%s\"%d\":\"\"", i ? "," : "", i);
    used += (size_t)snprintf(text + used, N - used, "}}");
    expect(write_raw(*state, "a.safetensors", text, used, used, 0), ERR_INPUT, "more than 65536 members");
    free(text);
}

static void many_tensors(void **state)
{
    enum { N = 30000, ROOM = 6000000 };
    char *text = malloc(ROOM);
    assert_non_null(text);
    size_t used = 1;
    text[0] = '{';
    for (int i = 0; i < N; i++) {
        used += (size_t)snprintf(
            text + used, ROOM - used,
            "%s\"model.layers.%d.mlp.experts.%d.a_rather_long_name_for_a_projection_of_an_expert.weight\":"
            "{\"dtype\":\"U8\",\"shape\":[1,1],\"data_offsets\":[%d,%d]}",
            i ? "," : "", i % 64, (N - i) / 64, i, i + 1);
    }
    text[used++] = '}';
    Safetensors *st;
    Error err = { 0 };
    const char *path = write_raw(*state, "a.safetensors", text, used, used, N);
    if (safetensors_open(&st, path, &err) != OK) fail_msg("%s", err.text);
    assert_int_equal(safetensors_count(st), N);
    for (int i = 0; i < N; i += 101)
        assert_ptr_equal(safetensors_find(st, safetensors_at(st, i)->name), safetensors_at(st, i));
    safetensors_close(st);
    free(text);
}

/* Any change of a few bytes is an error or a file: never a crash, never a tensor outside the data. */
static void mutated_headers(void **state)
{
    static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":" U8_4 ",\"b\\u00e9\":{\"dtype\":\"BF16\","
                               "\"shape\":[2,3],\"data_offsets\":[4,16]}}  ";
    static const char alphabet[] = "{}[]\",:0123456789\\ud8dtypeshaoff_\x00\xc3\xa9\xff \n-.e";
    unsigned seed = 20260802;
    print_message("seed %u\n", seed);
    srand(seed);
    int n_good = 0;
    for (int round = 0; round < 200000; round++) {
        char text[sizeof good];
        memcpy(text, good, sizeof good);
        for (int k = rand() % 4; k >= 0; k--) {
            text[(size_t)rand() % (sizeof good - 1)] = alphabet[(size_t)rand() % (sizeof alphabet - 1)];
        }
        size_t n = rand() % 8 ? sizeof good - 1 : (size_t)rand() % sizeof good;
        EntryList list = { 0 };
        uint64_t data_bytes;
        Error err = { 0 };
        Status status = safetensors_parse_header(&list, text, n, 0, &data_bytes, &err);
        assert_int_equal(status, err.status);
        if (status == OK) {
            n_good++;
            for (int i = 0; i < list.n; i++) assert_true(list.item[i].offset + list.item[i].bytes <= data_bytes);
        } else {
            assert_int_equal(status, ERR_INPUT);
            assert_string_not_equal(err.text, "");
        }
        mem_free(list.item);
    }
    assert_true(n_good > 100 && n_good < 100000);
}

/* --- accidents -------------------------------------------------------------------------------------------------- */

static void cut_anywhere(void **state)
{
    char *data;
    size_t n;
    assert_int_equal(file_read(source_tree("tests/data/golden/llama/model.safetensors"), 1 << 28, &data, &n, NULL), OK);
    size_t lengths[60];
    int n_lengths = 0;
    for (size_t i = 1; i < 12; i++) lengths[n_lengths++] = i;
    for (size_t i = 12; i < n && n_lengths < 58; i = i * 5 / 4) lengths[n_lengths++] = i;
    lengths[n_lengths++] = n - 1;
    for (int i = 0; i < n_lengths; i++) {
        expect(temp_write(*state, "model.safetensors", data, lengths[i]), ERR_INPUT,
               lengths[i] < 8 ? "bytes" : "is cut short");
    }
    char *longer = malloc(n + 1);
    memcpy(longer, data, n);
    longer[n] = 0;
    expect(temp_write(*state, "model.safetensors", longer, n + 1), ERR_INPUT, "1 bytes after its last tensor");
    expect(temp_write(*state, "model.safetensors", data, n), OK, "");
    free(longer);
    mem_free(data);
}

static void usual_accidents(void **state)
{
    const TempDir *t = *state;
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
    expect(t->path, ERR_NOT_FOUND, "holds no weights");
    expect(temp_path(t, "absent"), ERR_NOT_FOUND, "there is no file");
    expect(temp_write(t, "model.safetensors", pointer, sizeof pointer - 1), ERR_INPUT,
           "is a git-lfs pointer, not the file itself: run git lfs pull");
    expect(t->path, ERR_INPUT, "run git lfs pull");
    expect(temp_write(t, "model.safetensors", "<html>Not found</html>", 22), ERR_INPUT, "no safetensors file");
    unlink(temp_path(t, "model.safetensors"));

    assert_int_equal(mkfifo(temp_path(t, "model.safetensors"), 0600), 0);
    expect(t->path, ERR_INPUT, "not a regular file");
    unlink(temp_path(t, "model.safetensors"));
    assert_int_equal(symlink("nowhere", temp_path(t, "model.safetensors")), 0);
    expect(t->path, ERR_NOT_FOUND, "there is no file");
    unlink(temp_path(t, "model.safetensors"));
    expect("/dev/zero", ERR_INPUT, "not a regular file");
}

/* Hub caches are made of links. */
static void links_are_followed(void **state)
{
    const TempDir *t = *state;
    const char *blob = write_file(t, "blob", "{\"a\":" U8_4 "}", 4);
    assert_int_equal(symlink(blob, temp_path(t, "model.safetensors")), 0);
    expect(t->path, OK, "");
}

static void shorter_after_open(void **state)
{
    const char *path = write_file(*state, "a.safetensors", "{\"a\":" U8_4 "}", 4);
    Safetensors *st;
    assert_int_equal(safetensors_open(&st, path, NULL), OK);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    char bytes[4];
    Error err = { 0 };
    assert_int_equal(safetensors_read(st, safetensors_at(st, 0), 0, bytes, 3, &err), OK);
    assert_int_equal(safetensors_read(st, safetensors_at(st, 0), 0, bytes, 4, &err), ERR_IO);
    assert_non_null(strstr(err.text, "became shorter"));
    safetensors_close(st);
}

/* --- several files ---------------------------------------------------------------------------------------------- */

/* m-1 holds a and b, m-2 holds c. */
static void write_shards(const TempDir *t)
{
    write_file(t, "m-1.safetensors", "{\"a\":" U8_4 ",\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]}}",
               6);
    write_file(t, "m-2.safetensors", "{\"c\":" U8_4 "}", 4);
}

#define MAP(rows) "{\"metadata\":{\"total_size\":71903645408.0},\"weight_map\":{" rows "}}"
#define AB "\"a\":\"m-1.safetensors\",\"b\":\"m-1.safetensors\","

static const struct {
    const char *index;
    Status      status;
    const char *says;
} indexes[] = {
    { MAP(AB "\"c\":\"m-2.safetensors\""), OK, "" },
    { "{\"weight_map\":{" AB "\"c\":\"m-2.safetensors\"}}", OK, "" },
    { MAP(AB "\"c\":\"m-1.safetensors\""), ERR_INPUT, "tensor c is in m-1.safetensors, which does not have it" },
    { MAP(AB "\"c\":\"m-2.safetensors\",\"d\":\"m-2.safetensors\""), ERR_INPUT,
      "tensor d is in m-2.safetensors, which does not have it" },
    { MAP("\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\",\"c\":\"m-2.safetensors\""), ERR_INPUT,
      "but it is in m-1.safetensors" },
    { MAP("\"a\":\"m-1.safetensors\",\"c\":\"m-2.safetensors\""), ERR_INPUT,
      "does not list tensor b of m-1.safetensors" },
    { MAP(AB "\"c\":\"m-3.safetensors\""), ERR_NOT_FOUND, "there is no file" },
    { MAP(AB "\"c\":\"../m-2.safetensors\""), ERR_INPUT, "must be a plain name" },
    { MAP(AB "\"c\":\"./m-2.safetensors\""), ERR_INPUT, "must be a plain name" },
    { MAP(AB "\"c\":\"/etc/m-2.safetensors\""), ERR_INPUT, "must be a plain name" },
    { MAP(AB "\"c\":\"x\\\\m-2.safetensors\""), ERR_INPUT, "must be a plain name" },
    { MAP(AB "\"c\":\"..safetensors\""), ERR_INPUT, "must be a plain name" },
    { MAP(AB "\"c\":\"\""), ERR_INPUT, "must be a plain name" },
    { MAP(AB "\"c\":\"m-2.bin\""), ERR_INPUT, "must be a plain name" },
    { MAP(AB "\"c\":2"), ERR_INPUT, "must be a plain name" },
    { MAP(AB "\"c\":null"), ERR_INPUT, "must be a plain name" },
    { MAP(""), ERR_INPUT, "has no weight_map" },
    { "{\"weight_map\":[]}", ERR_INPUT, "has no weight_map" },
    { "{}", ERR_INPUT, "has no weight_map" },
    { "[]", ERR_INPUT, "has no weight_map" },
    { "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"a\":\"m-1.safetensors\"}}", ERR_INPUT, "lists tensor a twice" },
    { "{\"weight_map\":", ERR_INPUT, "has no weight_map" },
    { MAP(AB) " x", ERR_INPUT, "a string is expected" },
    { MAP("\"a\":\"m-1.safetensors\"") " x", ERR_INPUT, "something follows" },
    { "{\"weight_map\":{},\"weight_map\":{\"a\":\"m-1.safetensors\"}}", ERR_INPUT, "has no weight_map" },
    { "{\"x\":[[{\"y\":[1e5,null,\"]\"]}]]", ERR_INPUT, "'}' is expected" },
    { "version https://git-lfs.github.com/spec/v1\n", ERR_INPUT, "run git lfs pull" },
};

static void indexed_shards(void **state)
{
    const TempDir *t = *state;
    write_shards(t);
    for (int i = 0; i < COUNT(indexes); i++) {
        temp_write(t, "model.safetensors.index.json", indexes[i].index, strlen(indexes[i].index));
        expect(t->path, indexes[i].status, indexes[i].says);
    }
}

static void shards_are_one_checkpoint(void **state)
{
    const TempDir *t = *state;
    write_shards(t);
    Safetensors *st;
    assert_int_equal(safetensors_open(&st, t->path, NULL), OK); /* no index: every file */
    assert_int_equal(safetensors_count(st), 3);
    assert_int_equal(safetensors_total_bytes(st), 10);
    assert_int_equal(safetensors_find(st, "c")->shard, 1);
    unsigned char bytes[2];
    assert_int_equal(safetensors_read(st, safetensors_find(st, "b"), 0, bytes, 2, NULL), OK);
    assert_int_equal(bytes[0], 4);
    assert_int_equal(safetensors_read(st, safetensors_find(st, "c"), 2, bytes, 2, NULL), OK);
    assert_int_equal(bytes[0], 2);
    safetensors_close(st);
}

static void same_name_in_two_files(void **state)
{
    const TempDir *t = *state;
    write_shards(t);
    write_file(t, "m-3.safetensors", "{\"b\":" U8_4 "}", 4);
    expect(t->path, ERR_INPUT, "tensor b is in ");
}

static void which_files_count(void **state)
{
    const TempDir *t = *state;
    write_file(t, "consolidated.safetensors", "{\"a\":" U8_4 "}", 4);
    expect(t->path, OK, ""); /* nothing else is there */
    write_shards(t);
    expect(t->path, OK, ""); /* a would be there twice */
    temp_write(t, ".hidden.safetensors", "junk", 4);
    temp_write(t, "notes.txt", "junk", 4);
    expect(t->path, OK, "");
    write_file(t, "model.safetensors", "{\"x\":" U8_4 "}", 4);
    Safetensors *st;
    assert_int_equal(safetensors_open(&st, t->path, NULL), OK);
    assert_int_equal(safetensors_count(st), 1);
    safetensors_close(st);
}

/* Whatever the order of the directory: files by name, so the plan and the loader see one order. */
static void files_come_by_name(void **state)
{
    enum { N = 20 };
    const TempDir *t = *state;
    for (int i = 0; i < N; i++) {
        char name[32], header[100];
        int number = i * 7 % N;
        snprintf(name, sizeof name, "m-%02d.safetensors", number);
        snprintf(header, sizeof header, "{\"t%d\":" U8_4 "}", number);
        write_file(t, name, header, 4);
    }
    Safetensors *st;
    assert_int_equal(safetensors_open(&st, t->path, NULL), OK);
    for (int i = 0; i < N; i++) {
        char name[8];
        snprintf(name, sizeof name, "t%d", i);
        assert_string_equal(safetensors_at(st, i)->name, name);
        assert_int_equal(safetensors_at(st, i)->shard, i);
    }
    safetensors_close(st);
}

static void one_bad_shard(void **state)
{
    const TempDir *t = *state;
    write_shards(t);
    write_file(t, "m-2.safetensors", "{\"c\":" U8_4 "}", 3);
    expect(t->path, ERR_INPUT, "m-2.safetensors is cut short");
}

/* --- writing ---------------------------------------------------------------------------------------------------- */

static void written_files_read_back(void **state)
{
    static const uint8_t bytes[3] = { 1, 2, 3 };
    static const float numbers[4] = { 0.5f, -1, 3, 1e-30f };
    static const uint16_t halves[2] = { 0x3f80, 0x4000 };
    static const int64_t words[1] = { -7 };
    const SafetensorsEntry entries[] = {
        { .name = "bytes", .dtype = DT_U8, .n_dims = 1, .shape = { 3 } },
        { .name = "num\"bers\xc3\xa9", .dtype = DT_F32, .n_dims = 2, .shape = { 2, 2 } },
        { .name = "halves", .dtype = DT_BF16, .n_dims = 1, .shape = { 2 } },
        { .name = "word", .dtype = DT_I64, .n_dims = 0 },
        { .name = "nothing", .dtype = DT_I32, .n_dims = 2, .shape = { 0, 5 } },
    };
    const void *const data[] = { bytes, numbers, halves, words, NULL };
    static const size_t sizes[] = { 3, 16, 4, 8, 0 };
    const char *path = temp_path(*state, "out.safetensors");
    Error err = { 0 };
    assert_int_equal(safetensors_write(path, entries, data, COUNT(entries), &err), OK);

    Safetensors *st;
    if (safetensors_open(&st, path, &err) != OK) fail_msg("%s", err.text);
    assert_int_equal(safetensors_count(st), COUNT(entries));
    for (int i = 0; i < COUNT(entries); i++) {
        const SafetensorsEntry *e = safetensors_find(st, entries[i].name);
        char got[16];
        assert_non_null(e);
        assert_int_equal(e->dtype, entries[i].dtype);
        assert_int_equal(e->n_dims, entries[i].n_dims);
        assert_memory_equal(e->shape, entries[i].shape, sizeof e->shape);
        assert_int_equal(e->bytes, sizes[i]);
        assert_int_equal(e->offset % dtype_bytes(e->dtype), 0); /* for readers that map the file */
        assert_int_equal(safetensors_read(st, e, 0, got, sizes[i], &err), OK);
        if (sizes[i]) assert_memory_equal(got, data[i], sizes[i]);
    }
    safetensors_close(st);
    assert_int_equal(safetensors_write(path, NULL, NULL, 0, &err), OK);
    expect(path, OK, "");
}

static void written_data_is_aligned(void **state)
{
    for (int n = 1; n <= 8; n++) {
        char name[16];
        snprintf(name, sizeof name, "%0*d", n, 0);
        const SafetensorsEntry entry = { .name = name, .dtype = DT_I64, .n_dims = 0 };
        const void *const data[] = { "01234567" };
        const char *path = temp_path(*state, "out");
        assert_int_equal(safetensors_write(path, &entry, data, 1, NULL), OK);
        Safetensors *st;
        assert_int_equal(safetensors_open(&st, path, NULL), OK);
        assert_int_equal(safetensors_at(st, 0)->offset % 8, 0);
        safetensors_close(st);
    }
}

static void what_cannot_be_written(void **state)
{
    static const SafetensorsEntry cases[] = {
        { .name = "x", .dtype = DT_OTHER, .n_dims = 0 },
        { .name = "x", .dtype = DT_NONE, .n_dims = 0 },
        { .name = "x", .dtype = DT_F32, .n_dims = 9 },
        { .name = "x", .dtype = DT_U8, .n_dims = 1, .shape = { -1 } },
        { .name = "x", .dtype = DT_F32, .n_dims = 2, .shape = { INT64_MAX, INT64_MAX } },
        { .name = "", .dtype = DT_F32, .n_dims = 0 },
    };
    const void *const data[] = { "0123" };
    for (int i = 0; i < COUNT(cases); i++) {
        Error err = { 0 };
        assert_int_equal(safetensors_write(temp_path(*state, "out"), &cases[i], data, 1, &err), ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, "cannot be written"));
    }
    static const SafetensorsEntry good = { .name = "x", .dtype = DT_F32, .n_dims = 0 };
    assert_int_equal(safetensors_write("/absent-directory/out", &good, data, 1, NULL), ERR_IO);
    assert_int_equal(temp_count(*state), 0);
}

/* --- no memory -------------------------------------------------------------------------------------------------- */

static void no_memory(void **state)
{
    const TempDir *t = *state;
    static const char index[] = MAP(AB "\"c\":\"m-2.safetensors\"");
    Safetensors *st;
    Error err = { 0 };
    Status status;
    write_shards(t);
    STARVE(status, status = safetensors_open(&st, t->path, &err), safetensors_close(st));
    temp_write(t, "model.safetensors.index.json", index, sizeof index - 1);
    STARVE(status, status = safetensors_open(&st, t->path, &err), safetensors_close(st));
    const char *path = write_file(t, "one", "{\"__metadata__\":{\"a\":\"b\"},\"a\":" U8_4 "}", 4);
    STARVE(status, status = safetensors_open(&st, path, &err), safetensors_close(st));
    const SafetensorsEntry entry = { .name = "x", .dtype = DT_U8, .n_dims = 0 };
    const void *const data[] = { "1" };
    const char *out = temp_path(t, "out");
    STARVE(status, status = safetensors_write(out, &entry, data, 1, &err), (void)0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_dir, close_dir)
    const struct CMUnitTest tests[] = {
        TEST(bundled_and_golden_open), TEST(accepted_headers),
        TEST(names_are_decoded),       TEST(entries_say_what_is_there),
        TEST(hostile_headers),         TEST(hostile_lengths),
        TEST(hostile_sizes),           TEST(many_tensors),
        TEST(mutated_headers),         TEST(cut_anywhere),
        TEST(usual_accidents),         TEST(links_are_followed),
        TEST(shorter_after_open),      TEST(indexed_shards),
        TEST(shards_are_one_checkpoint), TEST(same_name_in_two_files),
        TEST(which_files_count),       TEST(one_bad_shard),
        TEST(files_come_by_name),      TEST(written_data_is_aligned),
        TEST(written_files_read_back), TEST(what_cannot_be_written),
        TEST(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
