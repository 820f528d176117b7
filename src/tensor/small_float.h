/* The small floats of quantised weights: E2M1 (FP4), E4M3FN (FP8), UE8M0 (powers of two). docs/spec/quantization.md
 * section 3. Decoding is exact and does not depend on how the thread treats denormals; encoding rounds to nearest, ties
 * to even, and saturates. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Twice the value of an E2M1 code: a small integer. */
static const int8_t e2m1_doubled[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

static inline float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint32_t bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* Code 8 is -0. */
static inline float e2m1_to_f32(uint8_t code)
{
    float f = 0.5f * (float)e2m1_doubled[code & 7];
    return code & 8 ? -f : f;
}

/* NaN has no code: it becomes 0. */
static inline uint8_t f32_to_e2m1(float x)
{
    float a = x < 0 ? -x : x;
    uint8_t sign = bits_of_float(x) >> 31 ? 8 : 0;
    if (!(a > 0.25f)) return a <= 0.25f ? sign : 0;
    /* A tie goes to the even code, so every other border belongs to the code above it. */
    return sign | (uint8_t)(1 + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f));
}

/* 0x7f and 0xff are NaN; there is no infinity. */
static inline bool e4m3_is_nan(uint8_t code)
{
    return (code & 0x7f) == 0x7f;
}
static inline float e4m3_to_f32(uint8_t code)
{
    uint32_t exponent = (code >> 3) & 15, digits = code & 7, sign = (uint32_t)(code & 0x80) << 24;
    if (e4m3_is_nan(code)) return float_of_bits(sign | 0x7fc00000u);
    if (exponent == 0) return float_of_bits(bits_of_float((float)digits * 0x1p-9f) | sign);
    return float_of_bits(sign | (exponent + 120) << 23 | digits << 20);
}
static inline uint8_t f32_to_e4m3(float x)
{
    uint32_t bits = bits_of_float(x), magnitude = bits & 0x7fffffffu;
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    if (magnitude > 0x7f800000u) return sign | 0x7f;
    if (magnitude >= 0x43e00000u) return sign | 0x7e; /* 448 and more */
    if (magnitude < 0x3c800000u) {                    /* below 2^-6: steps of 2^-9; adding 2^23 rounds to them */
        float steps = float_of_bits(magnitude) * 512.0f + 0x1p23f;
        return sign | (uint8_t)(bits_of_float(steps) & 15);
    }
    magnitude += 0x7ffffu + (magnitude >> 20 & 1);
    return sign | (uint8_t)((magnitude >> 20) - (120 << 3));
}

/* 2^(code - 127). 255 is NaN; code 0 is a float32 denormal. */
static inline float e8m0_to_f32(uint8_t code)
{
    if (code == 255) return float_of_bits(0x7fc00000u);
    return float_of_bits(code ? (uint32_t)code << 23 : 0x00400000u);
}
/* Half of it: what multiplies doubled E2M1. */
static inline float e8m0_half_to_f32(uint8_t code)
{
    return float_of_bits(code < 2 ? 0x00200000u << code : (uint32_t)(code - 1) << 23);
}
