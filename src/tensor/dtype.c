/* Element types: one table of the names that checkpoints use, and widening to float32. */
#include "tensor/dtype.h"
#include "base/error.h"

typedef struct TypeName {
    const char *name;
    int         bits;
    DType       type;
} TypeName;

static const TypeName type_names[] = {
    { "F32", 32, DT_F32 },          { "BF16", 16, DT_BF16 },        { "F16", 16, DT_F16 },
    { "F8_E4M3", 8, DT_F8_E4M3 },   { "I32", 32, DT_I32 },          { "I64", 64, DT_I64 },
    { "U8", 8, DT_U8 },             { "BOOL", 8, DT_OTHER },        { "I8", 8, DT_OTHER },
    { "I16", 16, DT_OTHER },        { "U16", 16, DT_OTHER },        { "U32", 32, DT_OTHER },
    { "U64", 64, DT_OTHER },        { "F64", 64, DT_OTHER },        { "C64", 64, DT_OTHER },
    { "F8_E5M2", 8, DT_OTHER },     { "F8_E8M0", 8, DT_OTHER },     { "F8_E4M3FNUZ", 8, DT_OTHER },
    { "F8_E5M2FNUZ", 8, DT_OTHER }, { "F6_E2M3", 6, DT_OTHER },     { "F6_E3M2", 6, DT_OTHER },
    { "F4", 4, DT_OTHER },
};

static const TypeName *find(const char *name)
{
    for (int i = 0; i < COUNT(type_names); i++) {
        if (strcmp(type_names[i].name, name) == 0) return &type_names[i];
    }
    return NULL;
}

size_t dtype_bytes(DType t)
{
    switch (t) {
    case DT_F32:
    case DT_I32: return 4;
    case DT_BF16:
    case DT_F16: return 2;
    case DT_I64: return 8;
    case DT_F8_E4M3:
    case DT_U8: return 1;
    case DT_NONE:
    case DT_OTHER: return 0;
    }
    return 0;
}

int dtype_bits_of_name(const char *name)
{
    const TypeName *t = find(name);
    return t ? t->bits : 0;
}

DType dtype_of_name(const char *name)
{
    const TypeName *t = find(name);
    return t ? t->type : DT_NONE;
}

const char *dtype_name(DType t)
{
    if (t == DT_NONE) return "none";
    for (int i = 0; t != DT_OTHER && i < COUNT(type_names); i++) {
        if (type_names[i].type == t) return type_names[i].name;
    }
    return "other";
}

/* Exact: every half is a float32. Multiplying a denormal's digits by 2^-24 is exact too. */
float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1f, digits = h & 0x3ffu;
    uint32_t u;
    if (exponent == 0) {
        float f = (float)digits * 0x1p-24f;
        memcpy(&u, &f, sizeof u);
        u |= sign;
    } else if (exponent == 0x1f) {
        u = sign | 0x7f800000u | (digits << 13);
    } else {
        u = sign | ((exponent + 112) << 23) | (digits << 13);
    }
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* The input is bytes of a file: it may start at any address. */
void dtype_to_f32(float *out, const void *in, DType t, size_t n)
{
    const char *bytes = in;
    if (t == DT_F32) {
        if (n) memcpy(out, in, n * sizeof *out);
        return;
    }
    CHECK(t == DT_BF16 || t == DT_F16);
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, bytes + 2 * i, sizeof h);
        out[i] = t == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
    }
}
