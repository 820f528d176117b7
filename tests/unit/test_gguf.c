/* GGUF files: a small one is read back, lies made by hand each get their sentence, and hundreds of mutations of a good file
 * end within bounds of time and memory that do not depend on what the file says. */
#include "base/error.h"
#include "base/memory.h"
#include "support/gguf_writer.h"
#include "support/starve.h"
#include "support/temp_dir.h"
#include "tensor/gguf.h"
#include "unit/random.h"

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

/* --- a good file -------------------------------------------------------------------------------------------------- */

static const char *const words[] = { "one", "", "three" };
static const int32_t numbers[] = { 3, -1, 1 };

static void put_all(GgufWriter *w)
{
    float f[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    gguf_put_text(w, "general.architecture", "llama");
    gguf_put_u32(w, "llama.block_count", 30);
    gguf_put_f32(w, "llama.eps", 1e-5f);
    gguf_put_bool(w, "tokenizer.ggml.add_bos_token", true);
    gguf_put_texts(w, "tokenizer.ggml.tokens", words, 3);
    gguf_put_ints(w, "tokenizer.ggml.token_type", numbers, 3);
    gguf_put_tensor(w, "b.weight", 3, 2, (int64_t[]){ 64, 3 }, NULL, 2 * 20 * 3);
    gguf_put_tensor(w, "a.weight", 0, 2, (int64_t[]){ 4, 2 }, f, sizeof f);
    gguf_put_tensor(w, "c.weight", 10, 1, (int64_t[]){ 256 }, NULL, 84);
}

static void good_bytes(Buf *file)
{
    GgufWriter w;
    gguf_writer_open(&w);
    put_all(&w);
    gguf_writer_finish(&w, file);
    gguf_writer_close(&w);
}

static void a_good_file_opens(void **state)
{
    Buf file;
    Gguf *g;
    Error err = { 0 };
    good_bytes(&file);
    const char *path = temp_write(*state, "good.gguf", file.data, file.len);
    if (gguf_open(&g, path, &err) != OK) fail_msg("%s", err.text);
    assert_string_equal(gguf_path(g), path);
    assert_int_equal(gguf_count(g), 3);

    const GgufTensor *a = gguf_find(g, "a.weight"), *b = gguf_find(g, "b.weight"), *c = gguf_find(g, "c.weight");
    assert_ptr_equal(gguf_at(g, 0), b);
    assert_ptr_equal(gguf_at(g, 1), a);
    assert_null(gguf_find(g, "d.weight"));
    assert_true(a->format == QUANT_F32 && a->n_dims == 2 && a->shape[0] == 2 && a->shape[1] == 4 && a->bytes == 32);
    assert_true(b->format == QUANT_Q4_1 && b->shape[0] == 3 && b->shape[1] == 64 && b->bytes == 120);
    assert_true(c->format == QUANT_NONE && c->n_dims == 1 && c->bytes == 84);
    assert_string_equal(c->type_name, "Q2_K");
    float f[3];
    assert_int_equal(gguf_read(g, a->part, a->offset + 4, f, sizeof f, &err), OK);
    assert_true(f[0] == 1 && f[2] == 3);
    gguf_close(g);
    gguf_close(NULL);
    buf_free(&file);
}

static void metadata_is_typed(void **state)
{
    Buf file;
    Gguf *g;
    Error err = { 0 };
    good_bytes(&file);
    assert_int_equal(gguf_open(&g, temp_write(*state, "meta.gguf", file.data, file.len), &err), OK);
    int64_t n = -5;
    double d = -5;
    bool flag = false;
    Str text = STR("before");
    GgufArray array = { 0 };
    assert_int_equal(gguf_get_int(g, "llama.block_count", 1, 100, &n, &err), OK);
    assert_int_equal(n, 30);
    assert_int_equal(gguf_get_int(g, "nobody", 1, 100, &n, &err), OK);
    assert_int_equal(n, 30);
    assert_int_equal(gguf_get_double(g, "llama.eps", 0, 1, &d, &err), OK);
    assert_true(d == (double)1e-5f);
    assert_int_equal(gguf_get_double(g, "llama.block_count", 0, 99, &d, &err), OK);
    assert_true(d == 30);
    assert_int_equal(gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &flag, &err), OK);
    assert_true(flag);
    assert_int_equal(gguf_get_string(g, "general.architecture", &text, &err), OK);
    assert_true(str_equal(text, STR("llama")));
    assert_true(gguf_has(g, "llama.eps") && !gguf_has(g, "llama.ep") && !gguf_has(g, "llama.epsi"));

    assert_int_equal(gguf_get_array(g, "tokenizer.ggml.tokens", &array, &err), OK);
    GgufTexts walk = gguf_texts(&array);
    for (int i = 0; i < 3; i++) {
        assert_true(gguf_next_text(&walk, &text));
        assert_true(str_equal(text, str_of(words[i])));
    }
    assert_false(gguf_next_text(&walk, &text));
    assert_false(gguf_array_int(&array, 0, &n));
    assert_int_equal(gguf_get_array(g, "tokenizer.ggml.token_type", &array, &err), OK);
    for (int i = 0; i < 3; i++) assert_true(gguf_array_int(&array, (uint64_t)i, &n) && n == numbers[i]);
    assert_false(gguf_array_int(&array, 3, &n));
    walk = gguf_texts(&array);
    assert_false(gguf_next_text(&walk, &text));
    gguf_close(g);
    buf_free(&file);
}

static void wrong_types_are_named(void **state)
{
    Buf file;
    Gguf *g;
    Error err = { 0 };
    good_bytes(&file);
    assert_int_equal(gguf_open(&g, temp_write(*state, "types.gguf", file.data, file.len), &err), OK);
    int64_t n = 7;
    double d = 7;
    bool flag = true;
    Str text = { 0 };
    GgufArray array = { 0 };
#define REFUSED(call, says)                                                                                        \
    do {                                                                                                           \
        error_clear(&err);                                                                                         \
        assert_int_equal(call, ERR_INPUT);                                                                         \
        if (!strstr(err.text, says)) fail_msg("\"%s\" does not say %s", err.text, says);                           \
    } while (0)
    REFUSED(gguf_get_int(g, "llama.block_count", 1, 29, &n, &err), "30, which is not in [1, 29]");
    REFUSED(gguf_get_int(g, "general.architecture", 1, 29, &n, &err), "must be a whole number");
    REFUSED(gguf_get_int(g, "tokenizer.ggml.add_bos_token", 0, 1, &n, &err), "must be a whole number");
    REFUSED(gguf_get_double(g, "tokenizer.ggml.tokens", 0, 1, &d, &err), "must be a number");
    REFUSED(gguf_get_double(g, "llama.eps", 1, 2, &d, &err), "not in [1, 2]");
    REFUSED(gguf_get_bool(g, "llama.eps", &flag, &err), "must be a truth value");
    REFUSED(gguf_get_string(g, "llama.eps", &text, &err), "must be a text");
    REFUSED(gguf_get_array(g, "llama.eps", &array, &err), "must be an array");
    assert_true(n == 7 && d == 7 && flag && !text.data && !array.data);
    gguf_close(g);
    buf_free(&file);
}

static void a_long_header_is_read_on(void **state)
{
    GgufWriter w;
    Buf file, word;
    Gguf *g;
    Error err = { 0 };
    gguf_writer_open(&w);
    buf_init(&word, 1 << 22);
    for (int i = 0; i < 3 << 20; i++) buf_append(&word, "x", 1); /* three times what is read first */
    gguf_put_text(&w, "long", word.data);
    put_all(&w);
    gguf_writer_finish(&w, &file);
    if (gguf_open(&g, temp_write(*state, "long.gguf", file.data, file.len), &err) != OK) fail_msg("%s", err.text);
    Str text = { 0 };
    assert_int_equal(gguf_get_string(g, "long", &text, &err), OK);
    assert_true(text.len == 3 << 20 && text.data[text.len - 1] == 'x');
    assert_int_equal(gguf_count(g), 3);
    gguf_close(g);
    gguf_writer_close(&w);
    buf_free(&word);
    buf_free(&file);
}

static void starved(void **state)
{
    Buf file;
    Gguf *g;
    Error err = { 0 };
    Status status;
    good_bytes(&file);
    const char *path = temp_write(*state, "starved.gguf", file.data, file.len);
    STARVE(status, status = gguf_open(&g, path, &err), gguf_close(g));
    buf_free(&file);
}

/* --- lies made by hand -------------------------------------------------------------------------------------------- */

/* A header up to the counts. */
static void begin(Buf *b, uint64_t n_tensors, uint64_t n_keys)
{
    buf_init(b, 1 << 20);
    buf_text(b, "GGUF");
    gguf_raw_u32(b, 3);
    gguf_raw_u64(b, n_tensors);
    gguf_raw_u64(b, n_keys);
}

static void put_info(Buf *b, const char *name, uint32_t n_dims, uint64_t a, uint64_t second, uint32_t type, uint64_t offset)
{
    gguf_raw_text(b, name);
    gguf_raw_u32(b, n_dims);
    gguf_raw_u64(b, a);
    if (n_dims > 1) gguf_raw_u64(b, second);
    gguf_raw_u32(b, type);
    gguf_raw_u64(b, offset);
}

static void put_data(Buf *b, size_t n)
{
    for (size_t i = 0; i < n; i++) buf_append(b, "", 1);
}

static void lie_text(Buf *b, const char *start)
{
    buf_init(b, 4096);
    buf_text(b, start);
}

/* Makes lie number i; what the sentence must say, NULL when there are no more. */
static const char *make_lie(int i, Buf *b)
{
    switch (i) {
    case 0: lie_text(b, ""); return "cut short";
    case 1: lie_text(b, "GGU"); return "cut short";
    case 2: lie_text(b, "GGML\3\0\0\0 and so on"); put_data(b, 32); return "does not begin with GGUF";
    case 3: lie_text(b, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"); return "git lfs pull";
    case 4: lie_text(b, "GGUF"); gguf_raw_u32(b, 1); put_data(b, 64); return "version is 1";
    case 5: lie_text(b, "GGUF"); gguf_raw_u32(b, 4); put_data(b, 64); return "version is 4";
    case 6: lie_text(b, "GGUF"); gguf_raw_u32(b, 3u << 24); put_data(b, 64); return "big-endian";
    case 7: lie_text(b, "GGUF"); gguf_raw_u32(b, 3); put_data(b, 7); return "cut short";
    case 8: begin(b, 0, UINT64_MAX); return "keys";
    case 9: begin(b, UINT64_MAX, 0); return "tensors";
    case 10: begin(b, 0, 1); return "cut short";
    case 11: begin(b, 1, 0); return "cut short";
    case 12: begin(b, 0, 1); gguf_raw_u64(b, UINT64_MAX); return "cut short";
    case 13: begin(b, 0, 1); gguf_raw_u64(b, (uint64_t)1 << 40); put_data(b, 99); return "cut short";
    case 14: begin(b, 0, 1); gguf_raw_text(b, ""); put_data(b, 99); return "name of key 0";
    case 15: begin(b, 0, 1); gguf_raw_text(b, "a\nb"); put_data(b, 99); return "name of key 0";
    case 16: begin(b, 0, 1); gguf_raw_text(b, "a\xff"); put_data(b, 99); return "name of key 0";
    case 17: begin(b, 0, 1); gguf_raw_text(b, "k"); gguf_raw_u32(b, 13); put_data(b, 99); return "type 13";
    case 18: begin(b, 0, 1); gguf_raw_text(b, "k"); gguf_raw_u32(b, UINT32_MAX); put_data(b, 9); return "type 4294967295";
    case 19: begin(b, 0, 1); gguf_raw_text(b, "k"); gguf_raw_u32(b, 7); buf_append(b, "\2", 1); return "neither 0 nor 1";
    case 20: begin(b, 0, 1); gguf_raw_text(b, "k"); gguf_raw_u32(b, 10); put_data(b, 7); return "cut short";
    case 21: begin(b, 0, 1); gguf_raw_text(b, "k"); gguf_raw_u32(b, 8); gguf_raw_u64(b, 5); put_data(b, 4); return "cut short";
    case 22: /* an array of arrays */
        begin(b, 0, 1); gguf_raw_text(b, "k"); gguf_raw_u32(b, 9); gguf_raw_u32(b, 9); gguf_raw_u64(b, 1); put_data(b, 99);
        return "type 9";
    case 23: /* 2^63 numbers of 4 bytes */
        begin(b, 0, 1); gguf_raw_text(b, "k"); gguf_raw_u32(b, 9); gguf_raw_u32(b, 5); gguf_raw_u64(b, (uint64_t)1 << 63);
        put_data(b, 99);
        return "cut short";
    case 24: /* 2^62 + 1 numbers of 4 bytes: their product is 4 */
        begin(b, 0, 1); gguf_raw_text(b, "k"); gguf_raw_u32(b, 9); gguf_raw_u32(b, 5);
        gguf_raw_u64(b, ((uint64_t)1 << 62) + 1); put_data(b, 99);
        return "cut short";
    case 25: /* as many texts as there are bytes in the world */
        begin(b, 0, 1); gguf_raw_text(b, "k"); gguf_raw_u32(b, 9); gguf_raw_u32(b, 8); gguf_raw_u64(b, UINT64_MAX);
        put_data(b, 4096);
        return "cut short";
    case 26:
        begin(b, 0, 2);
        for (int k = 0; k < 2; k++) { gguf_raw_text(b, "k"); gguf_raw_u32(b, 4); gguf_raw_u32(b, 1); }
        return "k appears twice";
    case 27: begin(b, 0, 1); gguf_raw_text(b, "general.alignment"); gguf_raw_u32(b, 4); gguf_raw_u32(b, 0); return "not in [1";
    case 28: begin(b, 0, 1); gguf_raw_text(b, "general.alignment"); gguf_raw_u32(b, 4); gguf_raw_u32(b, 33); return "power";
    case 29: begin(b, 0, 1); gguf_raw_text(b, "general.alignment"); gguf_raw_u32(b, 4); gguf_raw_u32(b, UINT32_MAX); return "not in";
    case 30: begin(b, 0, 1); gguf_raw_text(b, "general.alignment"); gguf_raw_u32(b, 8); gguf_raw_text(b, "32"); return "whole number";
    case 31: begin(b, 1, 0); put_info(b, "", 1, 32, 0, 0, 0); put_data(b, 256); return "name of tensor 0";
    case 32: begin(b, 1, 0); put_info(b, "0123456789012345678901234567890123456789012345678901234567890123", 1, 1, 0, 0, 0);
        put_data(b, 99); return "name of tensor 0";
    case 33: begin(b, 1, 0); put_info(b, "t", 0, 32, 0, 0, 0); put_data(b, 256); return "0 dimensions";
    case 34: begin(b, 1, 0); put_info(b, "t", 5, 32, 32, 0, 0); put_data(b, 256); return "5 dimensions";
    case 35: begin(b, 1, 0); put_info(b, "t", 1, 0, 0, 0, 0); put_data(b, 256); return "dimension of 0";
    case 36: begin(b, 1, 0); put_info(b, "t", 1, UINT64_MAX, 0, 0, 0); put_data(b, 256); return "dimension of";
    case 37: begin(b, 1, 0); put_info(b, "t", 2, 1ull << 32, 1ull << 32, 0, 0); put_data(b, 256); return "dimension of";
    case 38: begin(b, 1, 0); put_info(b, "t", 2, 1ull << 40, 1, 0, 0); put_data(b, 256); return "cut short";
    case 39: begin(b, 1, 0); put_info(b, "t", 1, 32, 0, 4, 0); put_data(b, 256); return "type 4";
    case 40: begin(b, 1, 0); put_info(b, "t", 1, 32, 0, 99, 0); put_data(b, 256); return "type 99";
    case 41: begin(b, 1, 0); put_info(b, "t", 1, 48, 0, 2, 0); put_data(b, 256); return "Q4_0 blocks do not fill";
    case 42: begin(b, 1, 0); put_info(b, "t", 1, 576, 0, 12, 0); put_data(b, 999); return "Q4_K blocks do not fill";
    case 43: begin(b, 1, 0); put_info(b, "t", 1, 8, 0, 0, 16); put_data(b, 256); return "not a multiple of 32";
    case 44: begin(b, 1, 0); put_info(b, "t", 1, 8, 0, 0, UINT64_MAX - 31); put_data(b, 256); return "ends behind";
    case 45: begin(b, 1, 0); put_info(b, "t", 1, 8, 0, 0, 256); put_data(b, 256); return "ends behind";
    case 46: begin(b, 1, 0); put_info(b, "t", 1, 99, 0, 0, 0); put_data(b, 256); return "ends behind";
    case 47: begin(b, 1, 0); put_info(b, "t", 1, 8, 0, 0, 0); return "ends behind";
    case 48: begin(b, 2, 0); put_info(b, "t", 1, 16, 0, 0, 0); put_info(b, "u", 1, 8, 0, 0, 32); put_data(b, 256); return "overlaps";
    case 49: begin(b, 2, 0); put_info(b, "t", 1, 8, 0, 0, 0); put_info(b, "u", 1, 8, 0, 0, 0); put_data(b, 256); return "overlaps";
    case 50: begin(b, 2, 0); put_info(b, "t", 1, 8, 0, 0, 0); put_info(b, "t", 1, 8, 0, 0, 32); put_data(b, 256); return "twice";
    case 51: begin(b, 2, 0); put_info(b, "t", 1, 8, 0, 0, 0); put_data(b, 256); return "name of tensor 1";
    default: return NULL;
    }
}

static void lies_get_their_sentence(void **state)
{
    Buf b;
    const char *says;
    int n = 0;
    for (; (says = make_lie(n, &b)); n++) {
        Gguf *g = (Gguf *)1;
        Error err = { 0 };
        unlink(temp_path(*state, "lie.gguf"));
        const char *path = temp_write(*state, "lie.gguf", b.data ? b.data : "", b.len);
        Status s = gguf_open(&g, path, &err);
        if (s != ERR_INPUT || g || !strstr(err.text, says)) fail_msg("lie %d: status %d, \"%s\", want \"%s\"", n, s, err.text, says);
        if (!strstr(err.text, "lie.gguf")) fail_msg("lie %d: \"%s\" does not name the file", n, err.text);
        buf_free(&b);
    }
    assert_int_equal(n, 52);
}

static void no_file_at_all(void **state)
{
    Gguf *g;
    Error err = { 0 };
    assert_int_equal(gguf_open(&g, temp_path(*state, "nobody.gguf"), &err), ERR_NOT_FOUND);
    error_clear(&err);
    assert_int_equal(gguf_open(&g, ((TempDir *)*state)->path, &err), ERR_INPUT);
    error_clear(&err);
    const char *fifo = temp_path(*state, "pipe.gguf");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(gguf_open(&g, fifo, &err), ERR_INPUT);
}

/* --- lies without end ----------------------------------------------------------------------------------------------- */

/* A sparse file of a terabyte whose first key goes on and on: what is read is bounded, whatever lies behind. */
static void an_endless_header_ends(void **state)
{
    static const uint64_t lengths[] = { 40 << 20, (uint64_t)1 << 39 };
    for (int i = 0; i < COUNT(lengths); i++) {
        Buf b;
        begin(&b, 0, 1);
        gguf_raw_text(&b, "k");
        gguf_raw_u32(&b, 8);
        gguf_raw_u64(&b, lengths[i]);
        const char *path = temp_write(*state, "endless.gguf", b.data, b.len);
        assert_int_equal(truncate(path, (off_t)1 << 40), 0);
        Gguf *g;
        Error err = { 0 };
        assert_int_equal(gguf_open(&g, path, &err), ERR_INPUT);
        assert_non_null(strstr(err.text, "larger than 32 MB"));
        unlink(path);
        buf_free(&b);
    }
}

/* 65536 keys in a file that holds them: the most that can be asked of us. */
static void many_empty_texts(void **state)
{
    Buf b;
    begin(&b, 0, 1);
    gguf_raw_text(&b, "k");
    gguf_raw_u32(&b, 9);
    gguf_raw_u32(&b, 8);
    gguf_raw_u64(&b, 3 << 20);
    const char *path = temp_write(*state, "texts.gguf", b.data, b.len);
    assert_int_equal(truncate(path, (off_t)b.len + ((off_t)3 << 20) * 8), 0);
    Gguf *g;
    Error err = { 0 };
    if (gguf_open(&g, path, &err) != OK) fail_msg("%s", err.text);
    gguf_close(g);
    unlink(path);
    buf_free(&b);
}

/* --- mutations ---------------------------------------------------------------------------------------------------- */

/* Asks for everything that an opened file offers. */
static void use_everything(const Gguf *g)
{
    char data[512];
    for (int i = 0; i < gguf_count(g); i++) {
        const GgufTensor *t = gguf_at(g, i);
        Error err = { 0 };
        assert_ptr_equal(gguf_find(g, t->name), t);
        assert_int_equal(gguf_read(g, t->part, t->offset, data, t->bytes < sizeof data ? t->bytes : sizeof data, &err), OK);
        assert_int_equal(gguf_read(g, t->part, t->offset + t->bytes - 1, data, 1, &err), OK);
    }
    static const char *const keys[] = { "general.architecture", "llama.block_count", "llama.eps",
                                        "tokenizer.ggml.add_bos_token", "tokenizer.ggml.tokens",
                                        "tokenizer.ggml.token_type" };
    for (int i = 0; i < COUNT(keys); i++) {
        Error err = { 0 };
        int64_t n;
        double d;
        bool flag;
        Str text = { 0 };
        GgufArray array = { 0 };
        gguf_get_int(g, keys[i], 0, 100, &n, &err);
        gguf_get_double(g, keys[i], 0, 100, &d, &err);
        gguf_get_bool(g, keys[i], &flag, &err);
        gguf_get_string(g, keys[i], &text, &err);
        if (gguf_get_array(g, keys[i], &array, &err) != OK || !array.data) continue;
        GgufTexts walk = gguf_texts(&array);
        while (gguf_next_text(&walk, &text))
            for (size_t k = 0; k < text.len; k++) flag = text.data[k];
        for (uint64_t k = 0; k < array.n && gguf_array_int(&array, k, &n); k++) {}
    }
}

static const uint64_t nasty[] = { 0, 1, 2, 7, 9, 31, 32, 33, 255, 256, 0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32, 1ull << 40,
                                  INT64_MAX, 1ull << 63, UINT64_MAX };

static void mutate(Random *r, Buf *b)
{
    int kind = random_below(r, 5);
    size_t at = (size_t)random_below(r, (int32_t)b->len);
    if (kind == 0) b->len = at; /* cut */
    if (kind == 1) b->data[at] = (char)random_bits(r);
    if (kind == 2) b->data[at] ^= (char)(1 << random_below(r, 8));
    if (kind >= 3) { /* a number where perhaps one stands */
        size_t n = kind == 3 ? 4 : 8;
        if (at + n <= b->len) memcpy(b->data + at, &nasty[random_below(r, COUNT(nasty))], n);
    }
}

/* Open twice to the end with one error or none; the memory of the process must not grow by what files say. */
static void mutations_end(void **state)
{
    enum { N = 3000, SEED = 61 };
    Random r = { SEED };
    int n_opened = 0;
    for (int i = 0; i < N; i++) {
        Buf b;
        Gguf *g;
        Error err = { 0 };
        good_bytes(&b);
        for (int k = 1 + random_below(&r, 3); k > 0 && b.len > 0; k--) mutate(&r, &b);
        unlink(temp_path(*state, "mutant.gguf")); /* file systems are slow at writing over a file */
        Status s = gguf_open(&g, temp_write(*state, "mutant.gguf", b.data, b.len), &err);
        if (s == OK) {
            n_opened++;
            assert_true(err.text[0] == '\0');
            use_everything(g);
        } else if (s != ERR_INPUT || !err.text[0] || g) {
            fail_msg("mutation %d of seed %d: status %d, \"%s\"", i, SEED, s, err.text);
        }
        gguf_close(g);
        buf_free(&b);
    }
    assert_true(n_opened > N / 20 && n_opened < N * 3 / 4); /* both sides were seen */
}

/* Last: over all of the above. Sanitizers keep what was freed, so there it says nothing. */
static void memory_stayed_small(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    char line[128];
    long peak_kb = 0;
    FILE *status = fopen("/proc/self/status", "r");
    assert_non_null(status);
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %ld", &peak_kb) == 1) break;
    fclose(status);
    assert_true(peak_kb > 0);
    if (peak_kb > 64 << 10) fail_msg("the files took %ld MB", peak_kb >> 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_file_opens),
        cmocka_unit_test(metadata_is_typed),
        cmocka_unit_test(wrong_types_are_named),
        cmocka_unit_test(a_long_header_is_read_on),
        cmocka_unit_test(starved),
        cmocka_unit_test(lies_get_their_sentence),
        cmocka_unit_test(no_file_at_all),
        cmocka_unit_test(an_endless_header_ends),
        cmocka_unit_test(many_empty_texts),
        cmocka_unit_test(mutations_end),
        cmocka_unit_test(memory_stayed_small),
    };
    return cmocka_run_group_tests(tests, open_dir, close_dir);
}
