/* Stored formats: blocks against the public GGUF decoder (tests/data/quant/make_gguf_blocks.py), parts against public
 * tools (make_parts.py), small floats against arithmetic written another way, and what is refused. All comparisons with
 * decoders are of bits. */
#include "base/error.h"
#include "base/sha256.h"
#include "support/temp_dir.h"
#include "tensor/quant.h"
#include "tensor/safetensors.h"
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

/* --- fixtures --------------------------------------------------------------------------------------------------- */

typedef struct Fixture {
    Safetensors *st;
} Fixture;

static void fixture_open(Fixture *f, const char *below)
{
    Error err = { 0 };
    if (safetensors_open(&f->st, source_tree(below), &err) != OK) fail_msg("%s", err.text);
}

static const SafetensorsEntry *fixture_find(const Fixture *f, const char *first, const char *second)
{
    char name[80];
    snprintf(name, sizeof name, "%s.%s", first, second);
    return safetensors_find(f->st, name);
}

/* The data of tensor first.second, to be freed. */
static void *fixture_read(const Fixture *f, const char *first, const char *second)
{
    Error err = { 0 };
    const SafetensorsEntry *e = fixture_find(f, first, second);
    if (!e) fail_msg("the fixture has no %s.%s", first, second);
    void *data = malloc(e->bytes ? e->bytes : 1);
    assert_non_null(data);
    if (safetensors_read(f->st, e, 0, data, e->bytes, &err) != OK) fail_msg("%s", err.text);
    return data;
}

static void assert_same_bits(const char *what, const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (bits_of_float(got[i]) == bits_of_float(want[i])) continue;
        fail_msg("%s: number %lld is %a, want %a", what, (long long)i, got[i], want[i]);
    }
}

/* --- GGUF blocks -------------------------------------------------------------------------------------------------- */

enum { SEED = 20260, N_HASHED = 20000 }; /* as in make_gguf_blocks.py */

typedef struct BlockCase {
    const char *name;
    QuantFormat format;
    int         id;      /* GGUF's number of the type: part of the seed */
    int         half[2]; /* where half-precision scales stand, -1 = none */
} BlockCase;

static const BlockCase block_cases[] = {
    { "F16", QUANT_F16, 1, { 0, -1 } },
    { "Q4_0", QUANT_Q4_0, 2, { 0, -1 } },
    { "Q4_1", QUANT_Q4_1, 3, { 0, 2 } },
    { "Q5_0", QUANT_Q5_0, 6, { 0, -1 } },
    { "Q5_1", QUANT_Q5_1, 7, { 0, 2 } },
    { "Q8_0", QUANT_Q8_0, 8, { 0, -1 } },
    { "Q4_K", QUANT_Q4_K, 12, { 0, 2 } },
    { "Q5_K", QUANT_Q5_K, 13, { 0, 2 } },
    { "Q6_K", QUANT_Q6_K, 14, { 208, -1 } },
    { "IQ4_NL", QUANT_IQ4_NL, 20, { 0, -1 } },
    { "BF16", QUANT_BF16, 30, { -1, -1 } },
    { "MXFP4", QUANT_MXFP4_BLOCKS, 39, { -1, -1 } },
    { "NVFP4", QUANT_NVFP4_BLOCKS, 40, { -1, -1 } },
};

/* The same bytes as the script's. */
static uint8_t *random_blocks(const BlockCase *c, int n_blocks)
{
    const size_t bytes = (size_t)quant_geometry(c->format)->block_bytes, n = (size_t)n_blocks * bytes;
    uint8_t *blocks = malloc(n + 8);
    assert_non_null(blocks);
    Random r = { SEED + (uint64_t)c->id };
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = random_bits(&r);
        memcpy(blocks + i, &word, 8);
    }
    for (int i = 0; i < n_blocks; i++) {
        uint8_t *b = blocks + (size_t)i * bytes;
        for (int h = 0; h < 2; h++)
            if (c->half[h] >= 0) b[c->half[h] + 1] &= 0xbf;
        if (c->format == QUANT_MXFP4_BLOCKS) b[0] %= 253;
        for (int s = 0; c->format == QUANT_NVFP4_BLOCKS && s < 4; s++) b[s] &= 0x7f;
    }
    return blocks;
}

/* n blocks as one row. */
static QuantMatrix one_row(QuantFormat f, const void *blocks, int64_t n)
{
    return (QuantMatrix){ .format = f, .n_out = 1, .n_in = n * quant_geometry(f)->block, .codes = blocks, .global = 1 };
}

static void check_block_case(const Fixture *fixture, const BlockCase *c)
{
    const QuantGeometry *g = quant_geometry(c->format);
    uint8_t *blocks = random_blocks(c, N_HASHED);
    const size_t n_values = (size_t)N_HASHED * (size_t)g->block;
    float *values = malloc(n_values * sizeof *values);
    assert_non_null(values);

    /* A few that can be looked at ... */
    const SafetensorsEntry *e = fixture_find(fixture, c->name, "blocks");
    uint8_t *kept = fixture_read(fixture, c->name, "blocks");
    float *want = fixture_read(fixture, c->name, "values");
    int64_t n = e->shape[0];
    assert_int_equal(e->shape[1], g->block_bytes);
    assert_memory_equal(blocks, kept, e->bytes);
    QuantMatrix m = one_row(c->format, blocks, n);
    quant_decode_row(&m, 0, values);
    assert_same_bits(c->name, values, want, n * g->block);

    /* ... and all of them, through a place that is not aligned. */
    uint8_t *shifted = malloc((size_t)N_HASHED * (size_t)g->block_bytes + 1);
    memcpy(shifted + 1, blocks, (size_t)N_HASHED * (size_t)g->block_bytes);
    m = one_row(c->format, shifted + 1, N_HASHED);
    quant_decode_row(&m, 0, values);
    uint8_t digest[32], *wanted = fixture_read(fixture, c->name, "sha256");
    Sha256 *h = sha256_open();
    sha256_add(h, values, n_values * sizeof *values);
    sha256_end(h, digest);
    if (memcmp(digest, wanted, 32) != 0) fail_msg("%s: one of %d blocks differs", c->name, N_HASHED);

    Error err = { 0 };
    if (quant_check(&m, c->name, &err) != OK) fail_msg("%s", err.text);
    free(wanted);
    free(shifted);
    free(want);
    free(kept);
    free(values);
    free(blocks);
}

static void blocks_decode_as_published(void **state)
{
    Fixture f;
    fixture_open(&f, "tests/data/quant/gguf_blocks.safetensors");
    for (int i = 0; i < COUNT(block_cases); i++) check_block_case(&f, &block_cases[i]);
    safetensors_close(f.st);
}

static void a_global_scale_multiplies_blocks(void **state)
{
    uint8_t blocks[2][36] = { { 0x38, 0x39, 0x3a, 0x7e, 0x21, 0xff } };
    float plain[128], scaled[128];
    memset(blocks[1], 0x35, sizeof blocks[1]);
    QuantMatrix m = one_row(QUANT_NVFP4_BLOCKS, blocks, 2);
    quant_decode_row(&m, 0, plain);
    m.global = 0.75f;
    quant_decode_row(&m, 0, scaled);
    for (int i = 0; i < 128; i++) assert_true(scaled[i] == plain[i] * 0.75f);
}

static void rows_have_bytes(void **state)
{
    assert_int_equal(quant_row_bytes(QUANT_F32, 7), 28);
    assert_int_equal(quant_row_bytes(QUANT_BF16, 7), 14);
    assert_int_equal(quant_row_bytes(QUANT_Q4_1, 576), 576 / 32 * 20);
    assert_int_equal(quant_row_bytes(QUANT_Q4_K, 512), 288);
    assert_int_equal(quant_row_bytes(QUANT_Q4_K, 576), 0);
    assert_int_equal(quant_row_bytes(QUANT_NVFP4, 64), 32);
    assert_int_equal(quant_row_bytes(QUANT_Q8_0, INT64_MAX / 32 * 32), 0);
    assert_int_equal(quant_row_bytes(QUANT_NONE, 32), 0);
    assert_true(quant_geometry(QUANT_Q4_0)->in_rows && !quant_geometry(QUANT_GPTQ)->in_rows);
}

/* A stored zero point of 15 in a v1 file is 0: nothing is carried into its neighbour. */
static void gptq_zero_points_wrap(void **state)
{
    uint32_t codes[8], zeros[1] = { 0x7777f7f7 };
    uint16_t scales[8];
    float out[8];
    for (int n = 0; n < 8; n++) codes[n] = 0x99999999;
    for (int n = 0; n < 8; n++) scales[n] = 0x3c00; /* 1 */
    QuantMatrix m = { .format = QUANT_GPTQ, .n_out = 8, .n_in = 8, .codes = codes, .scales = scales, .zeros = zeros,
                      .scale_type = DT_F16, .group_out = 1, .group_in = 8, .global = 1, .zero_offset = 1 };
    static const float v1[8] = { 1, 9, 1, 9, 1, 1, 1, 1 }, v2[8] = { 2, -6, 2, -6, 2, 2, 2, 2 };
    for (int n = 0; n < 8; n++) {
        m.zero_offset = 1;
        quant_decode_row(&m, n, out);
        assert_true(out[0] == v1[n] && out[7] == v1[n]);
        m.zero_offset = 0;
        quant_decode_row(&m, n, out);
        assert_true(out[0] == v2[n] && out[7] == v2[n]);
    }
}

/* --- what is refused ------------------------------------------------------------------------------------------------ */

static void expect_refused(const QuantMatrix *m, const char *says)
{
    Error err = { 0 };
    assert_int_equal(quant_check(m, "some.weight", &err), ERR_INPUT);
    if (!strstr(err.text, says) || !strstr(err.text, "some.weight")) fail_msg("\"%s\" does not say %s", err.text, says);
}

static void blocks_without_finite_scales_are_refused(void **state)
{
    static const uint8_t halves[][2] = { { 0, 0x7c }, { 0, 0xfc }, { 1, 0x7e } }; /* inf, -inf, NaN */
    for (int i = 0; i < COUNT(block_cases); i++) {
        const BlockCase *c = &block_cases[i];
        if (!quant_is_blocks(c->format)) continue;
        uint8_t blocks[3 * 256] = { 0 };
        QuantMatrix m = one_row(c->format, blocks, 3);
        Error err = { 0 };
        assert_int_equal(quant_check(&m, "some.weight", &err), OK);
        uint8_t *last = blocks + 2 * quant_geometry(c->format)->block_bytes;
        for (int h = 0; h < 2; h++) {
            for (int k = 0; c->half[h] >= 0 && k < COUNT(halves); k++) {
                memcpy(last + c->half[h], halves[k], 2);
                expect_refused(&m, "block 2");
                memset(last + c->half[h], 0, 2);
            }
        }
        m.global = INFINITY;
        expect_refused(&m, "global scale");
    }
    uint8_t mxfp4[17] = { 252 }, nvfp4[36] = { 0, 0, 0x7f };
    QuantMatrix m = one_row(QUANT_MXFP4_BLOCKS, mxfp4, 1), v = one_row(QUANT_NVFP4_BLOCKS, nvfp4, 1);
    Error err = { 0 };
    assert_int_equal(quant_check(&m, "m", &err), OK);
    assert_int_equal(quant_check(&v, "v", &err), OK);
    mxfp4[0] = 253;
    nvfp4[2] = 0xff;
    expect_refused(&m, "block 0");
    expect_refused(&v, "block 0");
}

static void parts_without_finite_weights_are_refused(void **state)
{
    uint8_t codes[512] = { 0 };
    float scales[4] = { 1, 1, 1, 1 };
    QuantMatrix fp8 = { .format = QUANT_FP8, .n_out = 2, .n_in = 256, .codes = codes, .scales = scales, .scale_type = DT_F32,
                        .group_out = 1, .group_in = 128, .global = 1 };
    Error err = { 0 };
    assert_int_equal(quant_check(&fp8, "w", &err), OK);
    codes[300] = 0xff;
    expect_refused(&fp8, "row 1, column 44");
    codes[300] = 0;
    scales[3] = NAN;
    expect_refused(&fp8, "index 3");
    scales[3] = 1e37f; /* finite itself, but not times 448 */
    expect_refused(&fp8, "no finite weights");

    uint8_t nv_scales[4] = { 0x38, 0x7f, 0, 0 };
    QuantMatrix nv = { .format = QUANT_NVFP4, .n_out = 2, .n_in = 32, .codes = codes, .scales = nv_scales,
                       .scale_type = DT_F8_E4M3, .group_out = 1, .group_in = 16, .global = 1 };
    expect_refused(&nv, "index 1");
    nv_scales[1] = 0x7e;
    assert_int_equal(quant_check(&nv, "w", &err), OK);
    nv.global = NAN;
    expect_refused(&nv, "global scale");

    uint8_t mx_scales[2] = { 127, 255 };
    QuantMatrix mx = { .format = QUANT_MXFP4, .n_out = 2, .n_in = 32, .codes = codes, .scales = mx_scales,
                       .scale_type = DT_U8, .group_out = 1, .group_in = 32, .global = 1 };
    expect_refused(&mx, "index 1");

    uint16_t halves[8] = { 0 };
    int32_t groups[8] = { 0, 0, 0, 0, 0, 0, 0, 1 };
    QuantMatrix gptq = { .format = QUANT_GPTQ, .n_out = 8, .n_in = 8, .codes = codes, .scales = halves, .zeros = codes,
                         .groups = groups, .scale_type = DT_F16, .group_out = 1, .group_in = 8, .global = 1 };
    expect_refused(&gptq, "group 1 of 1");
    groups[7] = -1;
    expect_refused(&gptq, "group -1 of 1");
    groups[7] = 0;
    assert_int_equal(quant_check(&gptq, "w", &err), OK);
}

/* --- small floats ------------------------------------------------------------------------------------------------- */

/* From its definition, in double. */
static double e4m3_value(int code)
{
    int exponent = code >> 3 & 15, digits = code & 7;
    double v = exponent ? ldexp(1 + digits / 8.0, exponent - 7) : ldexp(digits, -9);
    return code & 0x80 ? -v : v;
}

/* The nearest of the finite codes of one sign, the even one of two that are equally near. */
static int nearest(double magnitude, int n_codes, double (*value)(int))
{
    int best = 0;
    for (int code = 1; code < n_codes; code++) {
        double d = fabs(value(code) - magnitude), least = fabs(value(best) - magnitude);
        if (d < least || (d == least && !(code & 1))) best = code;
    }
    return best;
}

static double e2m1_value(int code)
{
    static const double values[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    return values[code & 7];
}

static void e4m3_decodes_and_encodes(void **state)
{
    for (int code = 0; code < 256; code++) {
        float f = e4m3_to_f32((uint8_t)code);
        if (e4m3_is_nan((uint8_t)code)) {
            assert_true(isnan(f));
            continue;
        }
        assert_true((double)f == e4m3_value(code) && !!signbit(f) == (code >> 7));
        assert_int_equal(f32_to_e4m3(f), code);
    }
    for (int code = 0; code < 0x7e; code++) { /* on both sides of and at every border */
        float tie = (float)((e4m3_value(code) + e4m3_value(code + 1)) / 2);
        const float xs[] = { nextafterf(tie, 0), tie, nextafterf(tie, 1e9f) };
        for (int i = 0; i < 3; i++) {
            int want = nearest((double)xs[i], 0x7f, e4m3_value);
            assert_int_equal(f32_to_e4m3(xs[i]), want);
            assert_int_equal(f32_to_e4m3(-xs[i]), want | 0x80);
        }
    }
    Random r = { 4 };
    for (int i = 0; i < 100000; i++) {
        float x = ldexpf((float)random_unit(&r), random_below(&r, 22) - 12);
        assert_int_equal(f32_to_e4m3(x), nearest((double)x, 0x7f, e4m3_value));
    }
    assert_int_equal(f32_to_e4m3(1e30f), 0x7e);
    assert_int_equal(f32_to_e4m3(-INFINITY), 0xfe);
    assert_int_equal(f32_to_e4m3(NAN) & 0x7f, 0x7f);
}

static void e2m1_decodes_and_encodes(void **state)
{
    for (int code = 0; code < 16; code++) {
        float f = e2m1_to_f32((uint8_t)code);
        assert_true(fabs((double)f) == e2m1_value(code) && !!signbit(f) == (code >> 3));
        assert_int_equal(f32_to_e2m1(f), code);
        assert_true((float)e2m1_doubled[code] == 2 * f);
    }
    for (int code = 0; code < 7; code++) {
        float tie = (float)((e2m1_value(code) + e2m1_value(code + 1)) / 2);
        const float xs[] = { nextafterf(tie, 0), tie, nextafterf(tie, 1e9f) };
        for (int i = 0; i < 3; i++) assert_int_equal(f32_to_e2m1(xs[i]), nearest((double)xs[i], 8, e2m1_value));
    }
    assert_int_equal(f32_to_e2m1(INFINITY), 7);
    assert_int_equal(f32_to_e2m1(-1e9f), 15);
    assert_int_equal(f32_to_e2m1(NAN), 0);
}

static void powers_of_two(void **state)
{
    for (int code = 0; code < 255; code++) {
        assert_true((double)e8m0_to_f32((uint8_t)code) == ldexp(1, code - 127));
        assert_true((double)e8m0_half_to_f32((uint8_t)code) == ldexp(1, code - 128));
    }
    assert_true(isnan(e8m0_to_f32(255)));
}

/* --- encoding ------------------------------------------------------------------------------------------------------- */

/* An E4M3 number is within 1/16 of its magnitude, or half a step of the smallest ones. */
static void fp8_comes_back(void **state)
{
    enum { N = 4096 };
    static float x[N], back[N];
    static uint8_t codes[N];
    Random r = { 8 };
    for (int i = 0; i < N; i++) x[i] = 0.05f * random_normal(&r);
    x[17] = -0.5f;
    assert_true(quant_amax(x, N) == 0.5f);
    float scale = fp8_scale(0.5f);
    fp8_encode(codes, x, N, scale);
    QuantMatrix m = { .format = QUANT_FP8, .n_out = 1, .n_in = N, .codes = codes, .scales = &scale, .scale_type = DT_F32,
                      .group_out = 1, .group_in = N, .global = 1 };
    quant_decode_row(&m, 0, back);
    for (int i = 0; i < N; i++) assert_true(fabsf(back[i] - x[i]) <= fabsf(x[i]) * 0.0625f + scale * 0x1p-10f);
    assert_true(fabsf(back[17] + 0.5f) < 1e-6f);

    memset(x, 0, sizeof x);
    assert_true(fp8_scale(quant_amax(x, N)) == 1.0f);
    fp8_encode(codes, x, N, 1.0f);
    assert_int_equal(codes[0], 0);
    x[N / 2] = -INFINITY;
    assert_true(quant_amax(x, N) == INFINITY);
    x[N - 1] = NAN;
    assert_true(isnan(quant_amax(x, N)));
}

/* An E2M1 number is within a quarter of its magnitude or of its block's step; a block of zeros stays one. */
static void nvfp4_comes_back(void **state)
{
    enum { N = 4096 };
    static float x[N], back[N];
    static uint8_t codes[N / 2], scales[N / 16];
    Random r = { 9 };
    for (int i = 0; i < N; i++) x[i] = i < 16 ? 0 : ldexpf(random_normal(&r), -(i / 16) % 6);
    float global = nvfp4_global(quant_amax(x, N));
    nvfp4_encode(codes, scales, x, N, global);
    QuantMatrix m = { .format = QUANT_NVFP4, .n_out = 1, .n_in = N, .codes = codes, .scales = scales,
                      .scale_type = DT_F8_E4M3, .group_out = 1, .group_in = 16, .global = global };
    quant_decode_row(&m, 0, back);
    for (int i = 0; i < N; i++) {
        float amax = quant_amax(x + i / 16 * 16, 16);
        assert_true(fabsf(back[i] - x[i]) <= amax * 0.1875f);
        if (i < 16) assert_true(back[i] == 0);
    }
    assert_int_equal(scales[0], 0x38); /* 1 */
    assert_true(nvfp4_global(0) == 1.0f && nvfp4_global(2688) == 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_decode_as_published),
        cmocka_unit_test(a_global_scale_multiplies_blocks),
        cmocka_unit_test(rows_have_bytes),
        cmocka_unit_test(gptq_zero_points_wrap),
        cmocka_unit_test(blocks_without_finite_scales_are_refused),
        cmocka_unit_test(parts_without_finite_weights_are_refused),
        cmocka_unit_test(e4m3_decodes_and_encodes),
        cmocka_unit_test(e2m1_decodes_and_encodes),
        cmocka_unit_test(powers_of_two),
        cmocka_unit_test(fp8_comes_back),
        cmocka_unit_test(nvfp4_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
