/* Checkpoints: parts of quantised matrices come together and decode to the bits of public tools
 * (tests/data/quant/make_parts.py), GGUF names and orders are undone, and what does not fit is refused by name. */
#include "base/error.h"
#include "base/memory.h"
#include "support/gguf_writer.h"
#include "support/starve.h"
#include "support/temp_dir.h"
#include "tensor/checkpoint.h"
#include "tensor/data_file.h"
#include "tensor/small_float.h"
#include "unit/random.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static _Alignas(DATA_FILE_PAGE) char staging[2][1 << 16];

static const void *stage(const Checkpoint *c, const CheckpointPart *part, int where)
{
    Error err = { 0 };
    void *at;
    assert_true(checkpoint_stage_room(part->bytes) <= sizeof staging[where]);
    assert_int_equal(checkpoint_stage(c, part, 0, part->bytes, staging[where], &at, &err), OK);
    return at;
}

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

/* All of a tensor, to be freed. */
static float *decode(const Checkpoint *c, const CheckpointTensor *t)
{
    Error err = { 0 };
    float *out = calloc((size_t)(t->stored.n_out * t->stored.n_in), sizeof *out);
    assert_non_null(out);
    if (checkpoint_decode_rows(c, t, 0, t->stored.n_out, out, &err) != OK) fail_msg("%s", err.text);
    return out;
}

static const CheckpointTensor *need(const Checkpoint *c, const char *name)
{
    const CheckpointTensor *t = checkpoint_find(c, name);
    if (!t) fail_msg("there is no %s", name);
    return t;
}

/* --- parts -------------------------------------------------------------------------------------------------------- */

typedef struct PartCase {
    const char *name;
    QuantFormat format;
    int64_t     n_out, n_in, group_out, group_in;
    int         ulps; /* that the tool may be away: where it divides by what we multiply with the reciprocal of */
} PartCase;

static const PartCase part_cases[] = {
    { "modelopt", QUANT_NVFP4, 8, 160, 1, 16, 0 },
    { "ct", QUANT_NVFP4, 8, 160, 1, 16, 0 },
    { "ct_odd", QUANT_NVFP4, 8, 160, 1, 16, 2 },
    { "mxfp4", QUANT_MXFP4, 8, 160, 1, 32, 0 },
    { "fp8_tensor", QUANT_FP8, 8, 160, 8, 160, 0 },
    { "fp8_channel", QUANT_FP8, 8, 160, 1, 160, 0 },
    { "fp8_channel_bf16", QUANT_FP8, 8, 160, 1, 160, 0 },
    { "fp8_block", QUANT_FP8, 130, 160, 128, 128, 0 },
    { "awq", QUANT_AWQ, 32, 64, 1, 32, 0 },
    { "gptq", QUANT_GPTQ, 32, 64, 1, 32, 0 },
    { "gptq_shuffled", QUANT_GPTQ, 32, 64, 1, 32, 0 },
    { "int4", QUANT_INT4, 20, 160, 1, 32, 0 },
    { "int4_asym", QUANT_INT4, 20, 160, 1, 32, 0 },
};

/* ModelOpt's decoder makes +0 of code 8, others -0. */
static int64_t distance(float a, float b)
{
    if (a == 0 && b == 0) return 0;
    return llabs((int64_t)(int32_t)bits_of_float(a) - (int32_t)bits_of_float(b));
}

static void check_part_case(const Checkpoint *c, const PartCase *p)
{
    char name[64];
    snprintf(name, sizeof name, "%s.weight", p->name);
    const CheckpointTensor *t = need(c, name);
    snprintf(name, sizeof name, "%s.values", p->name);
    float *want = decode(c, need(c, name)), *got = decode(c, t);
    const QuantMatrix *m = &t->stored;
    assert_true(m->format == p->format && m->n_out == p->n_out && m->n_in == p->n_in);
    assert_true(m->group_out == p->group_out && m->group_in == p->group_in);
    assert_true(t->n_dims == 2 && t->shape[0] == p->n_out && t->shape[1] == p->n_in && !t->is_final);
    for (int64_t i = 0; i < m->n_out * m->n_in; i++) {
        if (distance(got[i], want[i]) <= p->ulps) continue;
        fail_msg("%s: row %lld, column %lld is %a, want %a", p->name, (long long)(i / m->n_in), (long long)(i % m->n_in),
                 got[i], want[i]);
    }
    /* In pieces, each beginning somewhere in a group of rows. */
    static const int64_t pieces[][2] = { { 0, 1 }, { 1, 3 }, { 5, 3 }, { 100, 30 }, { 127, 2 }, { 129, 1 } };
    for (int i = 0; i < COUNT(pieces); i++) {
        const int64_t first = pieces[i][0], n = pieces[i][1];
        Error err = { 0 };
        if (first + n > m->n_out) continue;
        float *piece = calloc((size_t)(n * m->n_in), sizeof *piece);
        if (checkpoint_decode_rows(c, t, first, n, piece, &err) != OK) fail_msg("%s", err.text);
        assert_memory_equal(piece, got + first * m->n_in, (size_t)(n * m->n_in) * sizeof *piece);
        free(piece);
    }
    free(want);
    free(got);
}

static void parts_decode_as_published(void **state)
{
    Checkpoint *c;
    Error err = { 0 };
    const char *path = source_tree("tests/data/quant/parts.safetensors");
    if (checkpoint_open(&c, path, &err) != OK) fail_msg("%s", err.text);
    assert_string_equal(checkpoint_path(c), path);
    assert_null(checkpoint_gguf(c));
    for (int i = 0; i < COUNT(part_cases); i++) check_part_case(c, &part_cases[i]);
    /* Parts are not tensors: one of each case, its values, and what two of them were made from. */
    assert_int_equal(checkpoint_count(c), 2 * COUNT(part_cases) + 3);
    assert_null(checkpoint_find(c, "modelopt.weight_scale_2"));
    assert_null(checkpoint_find(c, "modelopt.input_scale"));
    for (int i = 0; i < checkpoint_count(c); i++) assert_ptr_equal(checkpoint_find(c, checkpoint_at(c, i)->name), checkpoint_at(c, i));
    checkpoint_close(c);
    checkpoint_close(NULL);
}

/* Our encoders against the public ones: codes and scales, bit for bit. */
static void encoders_write_what_the_tools_write(void **state)
{
    enum { ROWS = 8, N = 160 };
    static uint8_t codes[N], scales[N / 16];
    Checkpoint *c;
    Error err = { 0 };
    assert_int_equal(checkpoint_open(&c, source_tree("tests/data/quant/parts.safetensors"), &err), OK);

    const CheckpointTensor *t = need(c, "modelopt.weight");
    float *source = decode(c, need(c, "modelopt.source"));
    const uint8_t *stored = stage(c, &t->codes, 0), *stored_scales = stage(c, &t->scales, 1);
    assert_true(nvfp4_global(quant_amax(source, ROWS * N)) == t->stored.global);
    for (int row = 0; row < ROWS; row++) {
        nvfp4_encode(codes, scales, source + row * N, N, t->stored.global);
        assert_memory_equal(scales, stored_scales + row * N / 16, N / 16);
        assert_memory_equal(codes, stored + row * N / 2, N / 2);
    }
    free(source);

    t = need(c, "fp8_encoded.weight");
    source = decode(c, need(c, "fp8_encoded.source"));
    stored = stage(c, &t->codes, 0);
    for (int row = 0; row < ROWS; row++) {
        fp8_encode(codes, source + row * N, N, fp8_scale(quant_amax(source + row * N, N)));
        assert_memory_equal(codes, stored + row * N, N);
    }
    free(source);
    checkpoint_close(c);
}

static void gptq_v2_zeros_are_as_stored(void **state)
{
    Checkpoint *c;
    Error err = { 0 };
    assert_int_equal(checkpoint_open(&c, source_tree("tests/data/quant/parts.safetensors"), &err), OK);
    const CheckpointTensor *t = need(c, "gptq.weight");
    float *v1 = decode(c, t);
    checkpoint_set_gptq_v2(c);
    float *v2 = decode(c, t);
    for (int64_t i = 0; i < t->stored.n_out * t->stored.n_in; i++) assert_true(v1[i] < v2[i]); /* q - (z + 1) < q - z */
    free(v1);
    free(v2);
    checkpoint_close(c);
}

/* --- parts that do not fit ---------------------------------------------------------------------------------------- */

typedef struct Piece {
    const char *name, *type;
    int64_t     a, b; /* -1: one dimension less */
} Piece;

static size_t bytes_of(const Piece *p)
{
    size_t bits = (size_t)dtype_bits_of_name(p->type);
    return bits / 8 * (size_t)(p->a < 0 ? 1 : p->a) * (size_t)(p->b < 0 ? 1 : p->b);
}

/* A file of these tensors; every byte is 0x3c. */
static const char *write_pieces(const TempDir *dir, const Piece *pieces)
{
    Buf header, file;
    size_t at = 0;
    buf_init(&header, 1 << 16);
    buf_init(&file, 1 << 20);
    for (const Piece *p = pieces; p->name; p++) {
        buf_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", p == pieces ? "{" : ",", p->name, p->type);
        if (p->a >= 0) buf_printf(&header, "%d", (int)p->a);
        if (p->b >= 0) buf_printf(&header, ",%d", (int)p->b);
        buf_printf(&header, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes_of(p));
        at += bytes_of(p);
    }
    buf_text(&header, "}");
    gguf_raw_u64(&file, header.len);
    buf_append(&file, header.data, header.len);
    for (size_t i = 0; i < at; i++) buf_append(&file, "\x3c", 1);
    const char *path = temp_write(dir, "pieces.safetensors", file.data, file.len);
    buf_free(&header);
    buf_free(&file);
    return path;
}

static void parts_that_do_not_fit(void **state)
{
    static const struct {
        const char *says;
        Piece       pieces[5];
    } cases[] = {
        { "x.weight_scale does not have one scale", { { "x.weight", "U8", 4, 16 }, { "x.weight_scale", "F8_E4M3", 4, 3 }, { "x.weight_scale_2", "F32", 1, -1 } } },
        { "x.weight_scale_2 must be a single F32", { { "x.weight", "U8", 4, 16 }, { "x.weight_scale", "F8_E4M3", 4, 2 }, { "x.weight_scale_2", "F32", 2, -1 } } },
        { "x.weight is no matrix of FP4 pairs", { { "x.weight", "U8", 4, 12 }, { "x.weight_scale", "F8_E4M3", 4, 2 }, { "x.weight_scale_2", "F32", 1, -1 } } },
        { "neither NVFP4 nor MXFP4", { { "x.weight_packed", "U8", 4, 16 }, { "x.weight_scale", "BF16", 4, 2 } } },
        { "is no matrix of FP4 pairs", { { "x.weight_packed", "I8", 4, 16 }, { "x.weight_scale", "U8", 4, 1 } } },
        { "x.weight_packed is no matrix of packed 4-bit", { { "x.weight_packed", "I32", 4, -1 }, { "x.weight_scale", "BF16", 4, 2 } } },
        { "x.weight_scale are no scales", { { "x.weight_packed", "I32", 4, 16 }, { "x.weight_scale", "U8", 4, 1 } } },
        { "x.weight_scale are no scales", { { "x.weight_packed", "I32", 4, 16 }, { "x.weight_scale", "F16", 3, 2 } } },
        { "x.weight_zero_point does not have", { { "x.weight_packed", "I32", 4, 16 }, { "x.weight_scale", "F16", 4, 2 }, { "x.weight_zero_point", "I32", 2, 2 } } },
        { "x.weight_shape states another shape", { { "x.weight_packed", "I32", 4, 16 }, { "x.weight_scale", "F16", 4, 2 }, { "x.weight_shape", "I64", 2, -1 } } },
        { "x.weight_shape states another shape", { { "x.weight_packed", "I32", 4, 16 }, { "x.weight_scale", "F16", 4, 2 }, { "x.weight_shape", "I32", 2, -1 } } },
        { "x.weight_shape does not state", { { "x.weight_packed", "I32", 4, 16 }, { "x.weight_scale", "F16", 4, 2 }, { "x.weight_shape", "I64", 3, -1 } } },
        { "x.weight_g_idx does not name", { { "x.weight_packed", "I32", 4, 16 }, { "x.weight_scale", "F16", 4, 2 }, { "x.weight_g_idx", "I32", 127, -1 } } },
        { "x.weight_scale has neither one scale", { { "x.weight", "F8_E4M3", 4, 16 }, { "x.weight_scale", "F32", 5, -1 } } },
        { "x.weight_scale_inv has neither", { { "x.weight", "F8_E4M3", 130, 16 }, { "x.weight_scale_inv", "F32", 1, 1 } } },
        { "has a type that scales do not have", { { "x.weight", "F8_E4M3", 4, 16 }, { "x.weight_scale", "I32", 4, -1 } } },
        { "is FP8, but no matrix", { { "x.weight", "F8_E4M3", 16, -1 }, { "x.weight_scale", "F32", 1, -1 } } },
        { "x.scales are no scales", { { "x.qweight", "I32", 8, 1 }, { "x.qzeros", "I32", 1, 1 }, { "x.scales", "F16", 1, 7 } } },
        { "x.qzeros does not have", { { "x.qweight", "I32", 8, 1 }, { "x.qzeros", "I32", 1, 2 }, { "x.scales", "F16", 1, 8 } } },
        { "x.qweight has a shape", { { "x.qweight", "I32", 8, 2 }, { "x.qzeros", "I32", 1, 1 }, { "x.scales", "F16", 1, 8 } } },
        { "x.scales has a number of groups", { { "x.qweight", "I32", 80, 1 }, { "x.qzeros", "I32", 60, 1 }, { "x.scales", "F16", 60, 8 } } },
        { "x.scales has a number of groups", { { "x.qweight", "I32", 10, 8 }, { "x.qzeros", "I32", 3, 1 }, { "x.scales", "F16", 3, 8 } } },
        { "x.weight_scale has a number of groups", { { "x.weight_packed", "I32", 4, 16 }, { "x.weight_scale", "F16", 4, 3 } } },
        { "x.weight_scale has a number of groups", { { "x.weight_packed", "I32", 1, 10 }, { "x.weight_scale", "F16", 1, 60 }, { "x.weight_g_idx", "I32", 80, -1 } } },
        { "x.g_idx does not name", { { "x.qweight", "I32", 1, 8 }, { "x.qzeros", "I32", 1, 1 }, { "x.scales", "F16", 1, 8 }, { "x.g_idx", "I32", 7, -1 } } },
        { "two tensors stand for x.weight", { { "x.weight", "BF16", 4, 4 }, { "x.weight_packed", "U8", 4, 16 }, { "x.weight_scale", "U8", 4, 1 } } },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        Checkpoint *c = (Checkpoint *)1;
        Error err = { 0 };
        Status s = checkpoint_open(&c, write_pieces(*state, cases[i].pieces), &err);
        if (s != ERR_INPUT || c || !strstr(err.text, cases[i].says)) fail_msg("case %d: %d, \"%s\"", i, s, err.text);
    }
}

/* Scales without codes are tensors like others; whoever asks for nothing of the kind names them. */
static void parts_alone_stay_tensors(void **state)
{
    static const Piece alone[] = { { "x.weight", "BF16", 4, 4 }, { "x.weight_scale", "F32", 4, 1 }, { "y.scales", "F16", 1, 8 },
                                   { "z.bias", "I64", 4, -1 }, { NULL } };
    Checkpoint *c;
    Error err = { 0 };
    float out[4];
    assert_int_equal(checkpoint_open(&c, write_pieces(*state, alone), &err), OK);
    assert_int_equal(checkpoint_count(c), 4);
    assert_int_equal(need(c, "x.weight")->stored.format, QUANT_BF16);
    assert_string_equal(need(c, "z.bias")->type, "I64");
    assert_int_equal(checkpoint_decode_rows(c, need(c, "z.bias"), 0, 1, out, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "z.bias has type I64"));
    checkpoint_close(c);
}

static void scales_are_checked_when_read(void **state)
{
    static const Piece bad[] = { { "x.weight_packed", "U8", 4, 16 }, { "x.weight_scale", "U8", 4, 1 }, { NULL } };
    const char *path = write_pieces(*state, bad);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, -2, SEEK_END);
    fputc(0xff, f);
    fclose(f);
    Checkpoint *c;
    Error err = { 0 };
    float out[4 * 32];
    assert_int_equal(checkpoint_open(&c, path, &err), OK);
    assert_int_equal(checkpoint_decode_rows(c, need(c, "x.weight"), 0, 2, out, &err), OK);
    assert_int_equal(checkpoint_decode_rows(c, need(c, "x.weight"), 1, 2, out, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "tensor x.weight has the scale"));
    checkpoint_close(c);
}

/* --- GGUF ----------------------------------------------------------------------------------------------------------- */

static void orders_turn_back(void **state)
{
    /* llama, heads of 6 rows: ours 0 1 2 | 3 4 5 are pairs (0, 3) (1, 4) (2, 5) in the file. */
    static const int64_t halves[] = { 0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11 };
    CheckpointOrder o = { .a = 2, .b = 3, .unit = 1 };
    for (int i = 0; i < COUNT(halves); i++) assert_int_equal(checkpoint_stored(&o, i), halves[i]);
    /* 2 key heads, each with 3 value heads of 2 rows, behind 4 rows: ours i * 3 + j lies at j * 2 + i. */
    o = (CheckpointOrder){ .first = 4, .a = 2, .b = 3, .unit = 2 };
    for (int64_t i = 0; i < 4; i++) assert_int_equal(checkpoint_stored(&o, i), i);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 2; k++)
                assert_int_equal(checkpoint_stored(&o, 4 + (i * 3 + j) * 2 + k), 4 + (j * 2 + i) * 2 + k);
    o = (CheckpointOrder){ 0 };
    assert_int_equal(checkpoint_stored(&o, 77), 77);
}

/* An F32 tensor whose number in row r, column k is 100 r + k. n_in 0: a vector of n_out. */
static void put_counting(GgufWriter *w, const char *name, int64_t n_out, int64_t n_in)
{
    const int64_t columns = n_in ? n_in : n_out, rows = n_in ? n_out : 1;
    float *x = malloc((size_t)(rows * columns) * sizeof *x);
    for (int64_t i = 0; i < rows * columns; i++) x[i] = (float)(i / columns * 100 + i % columns);
    gguf_put_tensor(w, name, 0, n_in ? 2 : 1, (int64_t[]){ columns, rows }, x, (size_t)(rows * columns) * sizeof *x);
    free(x);
}

static const char *write_gguf(const TempDir *dir, GgufWriter *w)
{
    Buf file;
    gguf_writer_finish(w, &file);
    unlink(temp_path(dir, "model.gguf"));
    const char *path = temp_write(dir, "model.gguf", file.data, file.len);
    buf_free(&file);
    gguf_writer_close(w);
    return path;
}

static void llama_writer(GgufWriter *w)
{
    gguf_writer_open(w);
    gguf_put_text(w, "general.architecture", "llama");
    gguf_put_u32(w, "llama.block_count", 2);
    gguf_put_u32(w, "llama.attention.head_count", 2);
    gguf_put_u32(w, "llama.attention.head_count_kv", 1);
    put_counting(w, "token_embd.weight", 3, 4);
    put_counting(w, "output_norm.weight", 4, 0);
    put_counting(w, "blk.1.attn_q.weight", 8, 4);
    put_counting(w, "blk.1.attn_q.bias", 8, 0);
    put_counting(w, "blk.1.attn_k.weight", 4, 4);
    put_counting(w, "blk.1.attn_v.weight", 4, 4);
    put_counting(w, "rope_freqs.weight", 2, 0);
}

/* Row i of the tensor is row want[i] of the file. */
static void assert_rows(const Checkpoint *c, const char *name, const int *want)
{
    const CheckpointTensor *t = need(c, name);
    float *x = decode(c, t);
    for (int64_t i = 0; i < t->stored.n_out * t->stored.n_in; i++) {
        const int64_t n = t->stored.n_in, row = i / n, k = i % n;
        const float expected = t->n_dims == 1 ? (float)want[k] : (float)(100 * want[row] + k);
        if (x[i] != expected) fail_msg("%s: row %d, column %d is %g, want %g", name, (int)row, (int)k, x[i], expected);
    }
    free(x);
}

static void llama_names_and_rows(void **state)
{
    static const int plain[] = { 0, 1, 2, 3 }, q[] = { 0, 2, 1, 3, 4, 6, 5, 7 }, k[] = { 0, 2, 1, 3 };
    GgufWriter w;
    Checkpoint *c;
    Error err = { 0 };
    llama_writer(&w);
    if (checkpoint_open(&c, write_gguf(*state, &w), &err) != OK) fail_msg("%s", err.text);
    assert_non_null(checkpoint_gguf(c));
    assert_int_equal(checkpoint_count(c), 7);
    assert_rows(c, "model.embed_tokens.weight", plain);
    assert_rows(c, "model.norm.weight", plain);
    assert_rows(c, "model.layers.1.self_attn.q_proj.weight", q);
    assert_rows(c, "model.layers.1.self_attn.q_proj.bias", q);
    assert_rows(c, "model.layers.1.self_attn.k_proj.weight", k);
    assert_rows(c, "model.layers.1.self_attn.v_proj.weight", plain);
    assert_true(need(c, "model.norm.weight")->is_final);
    need(c, "rope_freqs.weight");

    /* Rows as they are stored, in our order, from the middle of a head to the middle of the next. */
    void *at;
    const CheckpointTensor *turned = need(c, "model.layers.1.self_attn.q_proj.weight");
    assert_true(checkpoint_stage_rows_room(turned, 4) <= sizeof staging[0]);
    assert_int_equal(checkpoint_stage_rows(c, turned, 2, 4, staging[0], &at, &err), OK);
    const float(*rows)[4] = at;
    for (int i = 0; i < 4; i++) assert_true(rows[i][0] == (float)(100 * q[2 + i]) && rows[i][3] == rows[i][0] + 3);
    checkpoint_close(c);
}

/* The same tensors, spread over three files in turn; keys in the first alone, but for those that say which part it is. */
static void write_parts(const TempDir *dir, int n_tensors_said, int second_says, const char *spare)
{
    static const struct {
        const char *name;
        int64_t     rows, n;
    } tensors[] = { { "token_embd.weight", 3, 4 }, { "output_norm.weight", 4, 0 }, { "blk.1.attn_q.weight", 8, 4 },
                    { "blk.1.attn_q.bias", 8, 0 }, { "blk.1.attn_k.weight", 4, 4 }, { "blk.1.attn_v.weight", 4, 4 } };
    for (int no = 0; no < 3; no++) {
        GgufWriter w;
        Buf b;
        char name[64];
        gguf_writer_open(&w);
        if (no == 0) {
            gguf_put_text(&w, "general.architecture", "llama");
            gguf_put_u32(&w, "llama.block_count", 2);
            gguf_put_u32(&w, "llama.attention.head_count", 2);
            gguf_put_u32(&w, "llama.attention.head_count_kv", 1);
        }
        gguf_put_u32(&w, "split.no", (uint32_t)(no == 1 ? second_says : no));
        gguf_put_u32(&w, "split.count", 3);
        gguf_put_u32(&w, "split.tensors.count", (uint32_t)n_tensors_said);
        for (int i = no; i < COUNT(tensors); i += 3) put_counting(&w, tensors[i].name, tensors[i].rows, tensors[i].n);
        if (no == 2 && spare) put_counting(&w, spare, 2, 0);
        snprintf(name, sizeof name, "part-%05d-of-00003.gguf", no + 1);
        gguf_writer_finish(&w, &b);
        temp_write(dir, name, b.data, b.len);
        gguf_writer_close(&w);
        buf_free(&b);
    }
}

/* Through any of its parts. */
static void gguf_in_parts(void **state)
{
    static const int plain[] = { 0, 1, 2, 3 }, q[] = { 0, 2, 1, 3, 4, 6, 5, 7 }, k[] = { 0, 2, 1, 3 };
    write_parts(*state, 6, 1, NULL);
    for (int i = 1; i <= 3; i++) {
        char name[64];
        Checkpoint *c;
        Error err = { 0 };
        snprintf(name, sizeof name, "part-%05d-of-00003.gguf", i);
        if (checkpoint_open(&c, temp_path(*state, name), &err) != OK) fail_msg("%s", err.text);
        assert_int_equal(checkpoint_count(c), 6);
        assert_non_null(strstr(gguf_path(checkpoint_gguf(c)), "part-00001"));
        assert_true(gguf_has(checkpoint_gguf(c), "general.architecture"));
        assert_rows(c, "model.embed_tokens.weight", plain);
        assert_rows(c, "model.norm.weight", plain);
        assert_rows(c, "model.layers.1.self_attn.q_proj.weight", q);
        assert_rows(c, "model.layers.1.self_attn.q_proj.bias", q);
        assert_rows(c, "model.layers.1.self_attn.k_proj.weight", k);
        assert_rows(c, "model.layers.1.self_attn.v_proj.weight", plain);
        checkpoint_close(c);
    }
}

static void parts_that_do_not_belong_together(void **state)
{
    static const struct {
        int         n_said, second_says;
        const char *spare, *removed, *says;
        Status      status;
    } cases[] = {
        { 7, 1, NULL, NULL, "parts have 6 tensors instead of 7", ERR_INPUT },
        { 6, 2, NULL, NULL, "says that it is part 3 of 3, its name that it is part 2 of 3", ERR_INPUT },
        { 7, 1, "token_embd.weight", NULL, "token_embd.weight appears twice", ERR_INPUT },
        { 6, 1, NULL, "part-00002-of-00003.gguf", "part-00002-of-00003.gguf", ERR_NOT_FOUND },
        { 6, 1, NULL, "part-00001-of-00003.gguf", "part-00001-of-00003.gguf", ERR_NOT_FOUND },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        Checkpoint *c = (Checkpoint *)1;
        Error err = { 0 };
        write_parts(*state, cases[i].n_said, cases[i].second_says, cases[i].spare);
        if (cases[i].removed) unlink(temp_path(*state, cases[i].removed));
        Status s = checkpoint_open(&c, temp_path(*state, "part-00003-of-00003.gguf"), &err);
        if (s != cases[i].status || c || !strstr(err.text, cases[i].says)) fail_msg("case %d: %d, \"%s\"", i, s, err.text);
    }
}

static void qwen35_names_and_heads(void **state)
{
    /* 2 key heads of 3, 6 value heads of 2: stored (j, i), ours (i, j). */
    static const int heads[] = { 0, 2, 4, 1, 3, 5 };
    static const int values[] = { 0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11 };
    int qkv[24];
    for (int i = 0; i < 24; i++) qkv[i] = i < 12 ? i : 12 + values[i - 12];
    GgufWriter w;
    Checkpoint *c;
    Error err = { 0 };
    gguf_writer_open(&w);
    gguf_put_text(&w, "general.architecture", "qwen35");
    gguf_put_u32(&w, "qwen35.block_count", 2);
    gguf_put_u32(&w, "qwen35.nextn_predict_layers", 1);
    gguf_put_u32(&w, "qwen35.attention.head_count", 1);
    gguf_put_u32(&w, "qwen35.ssm.group_count", 2);
    gguf_put_u32(&w, "qwen35.ssm.time_step_rank", 6);
    gguf_put_u32(&w, "qwen35.ssm.state_size", 3);
    gguf_put_u32(&w, "qwen35.ssm.inner_size", 12);
    put_counting(&w, "blk.0.attn_qkv.weight", 24, 8);
    put_counting(&w, "blk.0.attn_gate.weight", 12, 8);
    put_counting(&w, "blk.0.ssm_beta.weight", 6, 8);
    put_counting(&w, "blk.0.ssm_alpha.weight", 6, 8);
    put_counting(&w, "blk.0.ssm_conv1d.weight", 24, 4);
    put_counting(&w, "blk.0.ssm_dt.bias", 6, 0);
    put_counting(&w, "blk.0.ssm_a", 6, 0);
    put_counting(&w, "blk.0.ssm_norm.weight", 2, 0);
    put_counting(&w, "blk.0.ssm_out.weight", 4, 12);
    put_counting(&w, "blk.0.post_attention_norm.weight", 8, 0);
    put_counting(&w, "blk.1.nextn.eh_proj.weight", 4, 8);
    put_counting(&w, "blk.1.attn_q.weight", 4, 8);
    if (checkpoint_open(&c, write_gguf(*state, &w), &err) != OK) fail_msg("%s", err.text);
#define GDN "model.layers.0.linear_attn."
    assert_rows(c, GDN "in_proj_qkv.weight", qkv);
    assert_rows(c, GDN "in_proj_z.weight", values);
    assert_rows(c, GDN "in_proj_b.weight", heads);
    assert_rows(c, GDN "in_proj_a.weight", heads);
    assert_rows(c, GDN "conv1d.weight", qkv);
    assert_rows(c, GDN "dt_bias", heads);
    assert_rows(c, GDN "A_log", heads);
    assert_rows(c, GDN "norm.weight", qkv);
    assert_rows(c, "mtp.fc.weight", qkv);
    assert_rows(c, "mtp.layers.0.self_attn.q_proj.weight", qkv);
    need(c, "model.layers.0.post_attention_layernorm.weight");
    const CheckpointTensor *conv = need(c, GDN "conv1d.weight");
    assert_true(conv->n_dims == 3 && conv->shape[0] == 24 && conv->shape[1] == 1 && conv->shape[2] == 4);
    float *out = decode(c, need(c, GDN "out_proj.weight"));
    for (int row = 0; row < 4; row++)
        for (int k = 0; k < 12; k++) assert_true(out[row * 12 + k] == (float)(100 * row + values[k]));
    free(out);
    checkpoint_close(c);
}

static void nvfp4_has_a_second_scale(void **state)
{
    static const char *const names[] = { "blk.0.attn_v.scale", "blk.0.attn_v.weight.scale" };
    uint8_t blocks[2][36];
    memset(blocks, 0x35, sizeof blocks);
    for (int i = 0; i < COUNT(names); i++) {
        GgufWriter w;
        Checkpoint *c;
        Error err = { 0 };
        float scale = 0.75f, plain[64];
        llama_writer(&w);
        gguf_put_tensor(&w, "blk.0.attn_v.weight", 40, 2, (int64_t[]){ 64, 2 }, blocks, sizeof blocks);
        gguf_put_tensor(&w, names[i], 0, 1, (int64_t[]){ 1 }, &scale, sizeof scale);
        gguf_put_tensor(&w, "blk.0.attn_v.input_scale", 0, 1, (int64_t[]){ 1 }, &scale, sizeof scale);
        if (checkpoint_open(&c, write_gguf(*state, &w), &err) != OK) fail_msg("%s", err.text);
        assert_int_equal(checkpoint_count(c), 8);
        float *x = decode(c, need(c, "model.layers.0.self_attn.v_proj.weight"));
        quant_decode_blocks(QUANT_NVFP4_BLOCKS, blocks, 1, plain);
        for (int k = 0; k < 64; k++) assert_true(x[k] == 0.75f * plain[k] && x[k + 64] == x[k]);
        free(x);
        checkpoint_close(c);
    }
}

static void gguf_that_does_not_fit(void **state)
{
    static const struct {
        const char *says;
        const char *arch;
        int         blocks, heads, q_rows, n_files;
        Status      status;
    } cases[] = {
        { "\"gemma\" is not supported", "gemma", 2, 2, 8, 1, ERR_UNSUPPORTED },
        { "block_count is 0", "llama", 0, 2, 8, 1, ERR_INPUT },
        { "head_count is 0", "llama", 2, 0, 8, 1, ERR_INPUT },
        { "blk.0.attn_q.weight does not have the size", "llama", 2, 3, 8, 1, ERR_INPUT },
        { "blk.0.attn_q.weight does not have the size", "llama", 2, 2, 2, 1, ERR_INPUT },
        { "one of 2 files", "llama", 2, 2, 8, 2, ERR_INPUT },
        { "ssm.* describe no Gated DeltaNet", "qwen35", 2, 2, 8, 1, ERR_INPUT },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        GgufWriter w;
        Checkpoint *c = (Checkpoint *)1;
        Error err = { 0 };
        char key[64];
        gguf_writer_open(&w);
        gguf_put_text(&w, "general.architecture", cases[i].arch);
        snprintf(key, sizeof key, "%s.block_count", cases[i].arch);
        gguf_put_u32(&w, key, (uint32_t)cases[i].blocks);
        snprintf(key, sizeof key, "%s.attention.head_count", cases[i].arch);
        gguf_put_u32(&w, key, (uint32_t)cases[i].heads);
        gguf_put_u32(&w, "split.count", (uint32_t)cases[i].n_files);
        put_counting(&w, "blk.0.attn_q.weight", cases[i].q_rows, 4);
        Status s = checkpoint_open(&c, write_gguf(*state, &w), &err);
        if (s != cases[i].status || c || !strstr(err.text, cases[i].says)) fail_msg("case %d: %d, \"%s\"", i, s, err.text);
    }
}

/* Bytes of a good file changed at random: one sentence, or tensors that can all be read. */
static void mutations_end(void **state)
{
    enum { N = 1500, SEED = 62 };
    Random r = { SEED };
    for (int i = 0; i < N; i++) {
        GgufWriter w;
        Buf file;
        Checkpoint *c;
        Error err = { 0 };
        llama_writer(&w);
        gguf_writer_finish(&w, &file);
        gguf_writer_close(&w);
        for (int k = random_below(&r, 4); k >= 0; k--) file.data[random_below(&r, 800)] = (char)random_bits(&r);
        unlink(temp_path(*state, "mutant.gguf"));
        Status s = checkpoint_open(&c, temp_write(*state, "mutant.gguf", file.data, file.len), &err);
        if ((s != OK) != (err.text[0] != '\0')) fail_msg("mutation %d of seed %d: %d, \"%s\"", i, SEED, s, err.text);
        for (int k = 0; !s && k < checkpoint_count(c); k++) {
            const CheckpointTensor *t = checkpoint_at(c, k);
            float *x = calloc((size_t)(t->stored.n_out * t->stored.n_in), sizeof *x);
            error_clear(&err);
            Status read = checkpoint_decode_rows(c, t, 0, t->stored.n_out, x, &err);
            if ((read != OK) != (err.text[0] != '\0')) fail_msg("mutation %d: tensor %s", i, t->name);
            free(x);
        }
        checkpoint_close(c);
        buf_free(&file);
    }
}

static void starved(void **state)
{
    GgufWriter w;
    Checkpoint *c;
    Error err = { 0 };
    Status status;
    llama_writer(&w);
    const char *path = write_gguf(*state, &w);
    STARVE(status, status = checkpoint_open(&c, path, &err), checkpoint_close(c));
    path = source_tree("tests/data/quant/parts.safetensors");
    STARVE(status, status = checkpoint_open(&c, path, &err), checkpoint_close(c));
    assert_int_equal(checkpoint_open(&c, path, &err), OK);
    float out[160];
    STARVE(status, status = checkpoint_decode_rows(c, need(c, "fp8_block.weight"), 129, 1, out, &err), (void)0);
    checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_decode_as_published),
        cmocka_unit_test(encoders_write_what_the_tools_write),
        cmocka_unit_test(gptq_v2_zeros_are_as_stored),
        cmocka_unit_test(parts_that_do_not_fit),
        cmocka_unit_test(parts_alone_stay_tensors),
        cmocka_unit_test(scales_are_checked_when_read),
        cmocka_unit_test(orders_turn_back),
        cmocka_unit_test(llama_names_and_rows),
        cmocka_unit_test(gguf_in_parts),
        cmocka_unit_test(parts_that_do_not_belong_together),
        cmocka_unit_test(qwen35_names_and_heads),
        cmocka_unit_test(nvfp4_has_a_second_scale),
        cmocka_unit_test(gguf_that_does_not_fit),
        cmocka_unit_test(mutations_end),
        cmocka_unit_test(starved),
    };
    return cmocka_run_group_tests(tests, open_dir, close_dir);
}
