/* Element types: names, and every 16-bit number against arithmetic written another way. */
#include "base/error.h"
#include "tensor/dtype.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float number(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void names(void **state)
{
    static const struct {
        const char *name;
        int         bits;
        DType       type;
    } cases[] = {
        { "F32", 32, DT_F32 },       { "BF16", 16, DT_BF16 },      { "F16", 16, DT_F16 },
        { "F8_E4M3", 8, DT_F8_E4M3 }, { "I32", 32, DT_I32 },        { "I64", 64, DT_I64 },
        { "U8", 8, DT_U8 },          { "BOOL", 8, DT_OTHER },      { "I8", 8, DT_OTHER },
        { "I16", 16, DT_OTHER },     { "U16", 16, DT_OTHER },      { "U32", 32, DT_OTHER },
        { "U64", 64, DT_OTHER },     { "F64", 64, DT_OTHER },      { "C64", 64, DT_OTHER },
        { "F8_E5M2", 8, DT_OTHER },  { "F8_E8M0", 8, DT_OTHER },   { "F8_E4M3FNUZ", 8, DT_OTHER },
        { "F8_E5M2FNUZ", 8, DT_OTHER }, { "F6_E2M3", 6, DT_OTHER }, { "F6_E3M2", 6, DT_OTHER },
        { "F4", 4, DT_OTHER },       { "F12", 0, DT_NONE },        { "bf16", 0, DT_NONE },
        { "", 0, DT_NONE },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        assert_int_equal(dtype_bits_of_name(cases[i].name), cases[i].bits);
        assert_int_equal(dtype_of_name(cases[i].name), cases[i].type);
        if (cases[i].type == DT_NONE || cases[i].type == DT_OTHER) continue;
        assert_string_equal(dtype_name(cases[i].type), cases[i].name);
        assert_int_equal(dtype_bytes(cases[i].type) * 8, cases[i].bits);
    }
    assert_int_equal(dtype_bytes(DT_NONE), 0);
    assert_int_equal(dtype_bytes(DT_OTHER), 0);
    assert_string_equal(dtype_name(DT_NONE), "none");
    assert_string_equal(dtype_name(DT_OTHER), "other");
}

static void every_half(void **state)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        int exponent = (h >> 10) & 31;
        float digits = (float)(h & 0x3ff), got = f16_to_f32((uint16_t)h);
        if (exponent == 31 && digits != 0) {
            assert_true(isnan(got));
            continue;
        }
        float want = exponent == 31  ? INFINITY
                     : exponent == 0 ? ldexpf(digits, -24)
                                     : ldexpf(1024 + digits, exponent - 25);
        if (h & 0x8000) want = -want;
        assert_int_equal(bits(got), bits(want));
    }
}

static void every_bf16_survives(void **state)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = bf16_to_f32((uint16_t)h);
        assert_int_equal(bits(f), h << 16);
        uint16_t again = f32_to_bf16(f);
        if (isnan(f)) assert_true(isnan(bf16_to_f32(again)));
        else assert_int_equal(again, h);
    }
}

static void narrowing_rounds_to_even(void **state)
{
    static const struct {
        uint32_t in;
        uint16_t out;
    } cases[] = {
        { 0x3f800000, 0x3f80 }, { 0x3f807fff, 0x3f80 }, { 0x3f808000, 0x3f80 }, /* a tie goes down to even */
        { 0x3f808001, 0x3f81 }, { 0x3f818000, 0x3f82 },                         /* a tie goes up to even */
        { 0x7f7fffff, 0x7f80 }, { 0x7f800000, 0x7f80 }, { 0xff800000, 0xff80 },
        { 0x7f800001, 0x7fc0 }, { 0xffffffff, 0xffff }, { 0x00000001, 0x0000 },
        { 0x00008000, 0x0000 }, { 0x00008001, 0x0001 }, { 0x80000000, 0x8000 },
    };
    for (int i = 0; i < COUNT(cases); i++) assert_int_equal(f32_to_bf16(number(cases[i].in)), cases[i].out);
}

/* The input is bytes of a file: any address will do. */
static void widening_unaligned(void **state)
{
    char bytes[64];
    for (int shift = 0; shift < 4; shift++) {
        float out[3] = { 9, 9, 9 };
        memcpy(bytes + shift, (uint16_t[]){ 0x3f80, 0xc040 }, 4);
        dtype_to_f32(out, bytes + shift, DT_BF16, 2);
        assert_true(out[0] == 1 && out[1] == -3 && out[2] == 9);
        memcpy(bytes + shift, (uint16_t[]){ 0x3c00, 0xc200 }, 4);
        dtype_to_f32(out, bytes + shift, DT_F16, 2);
        assert_true(out[0] == 1 && out[1] == -3 && out[2] == 9);
        memcpy(bytes + shift, (float[]){ 0.5f, -7 }, 8);
        dtype_to_f32(out, bytes + shift, DT_F32, 2);
        assert_true(out[0] == 0.5f && out[1] == -7 && out[2] == 9);
        dtype_to_f32(out, NULL, DT_F32, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(every_half),
        cmocka_unit_test(every_bf16_survives),
        cmocka_unit_test(narrowing_rounds_to_even),
        cmocka_unit_test(widening_unaligned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
