/* Element types as checkpoints name them. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum DType {
    DT_NONE,
    DT_F32,
    DT_BF16,
    DT_F16,
    DT_F8_E4M3,
    DT_I32,
    DT_I64,
    DT_U8,
    DT_OTHER, /* a name we know exists but cannot compute with; an error only if the tensor is needed */
} DType;

/* Bytes of one element; 0 for DT_NONE and DT_OTHER. */
size_t dtype_bytes(DType t);
/* Bits of one element by its safetensors name ("BF16", "F8_E4M3", "F4" ...); 0 for an unknown name. */
int         dtype_bits_of_name(const char *name);
DType       dtype_of_name(const char *name); /* DT_OTHER when known but unused, DT_NONE when unknown */
const char *dtype_name(DType t);

/* bf16 <-> f32. Widening is exact; narrowing rounds to nearest, ties to even, NaN stays NaN (quiet).
 * Narrowing a float32 denormal gives what rounding its bits gives (it is not flushed here). */
static inline float bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint16_t f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}
float    f16_to_f32(uint16_t h);

/* Widens n elements of a stored floating type (F32, BF16, F16) to float32. */
void dtype_to_f32(float *out, const void *in, DType t, size_t n);
