/* The table of operations of this machine: scalar first, then what its instructions allow on top. */
#include "backend/cpu/linear_blocks.h"
#include "backend/cpu/linear_fp8.h"

#include <string.h>

static void add_scalar(Ops *ops)
{
    cpu_scalar_add_linear(ops);
    cpu_scalar_add_norm(ops);
    cpu_scalar_add_activation(ops);
    cpu_scalar_add_rows(ops);
    cpu_scalar_add_rope(ops);
    cpu_scalar_add_attention(ops);
    cpu_scalar_add_conv(ops);
    cpu_scalar_add_gated_delta(ops);
    cpu_scalar_add_draft(ops);
}

#if defined(__x86_64__)
static void add_avx2(Ops *ops)
{
    cpu_avx2_add_linear(ops);
    cpu_avx2_add_norm(ops);
    cpu_avx2_add_activation(ops);
    cpu_avx2_add_rows(ops);
    cpu_avx2_add_rope(ops);
    cpu_avx2_add_attention(ops);
    cpu_avx2_add_conv(ops);
    cpu_avx2_add_gated_delta(ops);
}

static void add_avx512(Ops *ops)
{
    cpu_avx512_add_linear(ops);
    cpu_avx512_add_norm(ops);
    cpu_avx512_add_activation(ops);
    cpu_avx512_add_rows(ops);
    cpu_avx512_add_rope(ops);
    cpu_avx512_add_attention(ops);
    cpu_avx512_add_conv(ops);
    cpu_avx512_add_gated_delta(ops);
}

static void add_variants(Ops *ops, unsigned features)
{
    if (features & CPU_AVX2) add_avx2(ops);
    if (features & CPU_AVX512) add_avx512(ops);
    if (features & CPU_AVX512_BF16) cpu_avx512_bf16_add_linear(ops);
}
#else
static void add_variants(Ops *ops, unsigned features)
{
    if (!(features & CPU_NEON)) return;
    cpu_neon_add_linear(ops);
    cpu_neon_add_norm(ops);
    cpu_neon_add_activation(ops);
    cpu_neon_add_rows(ops);
    cpu_neon_add_rope(ops);
    cpu_neon_add_attention(ops);
    cpu_neon_add_conv(ops);
    cpu_neon_add_gated_delta(ops);
}
#endif

void cpu_ops_fill(Ops *ops, unsigned features)
{
    *ops = (Ops){ 0 };
    add_scalar(ops);
    add_variants(ops, features);
}

LinearSpansFn cpu_linear_blocks(unsigned features)
{
#if defined(__x86_64__)
    if (features & CPU_AVX512_VNNI) return cpu_avx512_vnni_linear_blocks;
    if (features & CPU_AVX512) return cpu_avx512_linear_blocks;
    if (features & CPU_AVX_VNNI) return cpu_avx_vnni_linear_blocks;
    if (features & CPU_AVX2) return cpu_avx2_linear_blocks;
#else
    if (features & CPU_NEON_DOT) return cpu_neon_dot_linear_blocks;
    if (features & CPU_NEON) return cpu_neon_linear_blocks;
#endif
    return blocks_scalar_spans;
}

LinearSpansFn cpu_linear_fp8(unsigned features)
{
#if defined(__x86_64__)
    if ((features & CPU_AVX512_BF16) && (features & CPU_AVX512_VBMI)) return cpu_avx512_bf16_linear_fp8;
    if (features & CPU_AVX512) return cpu_avx512_linear_fp8;
    if (features & CPU_AVX2) return cpu_avx2_linear_fp8;
#else
    if (features & CPU_NEON) return cpu_neon_linear_fp8;
#endif
    return fp8_scalar_spans;
}

/* ---- names ---- */

/* Best last. A machine has features of one family only. */
static const struct Variant {
    const char *name;
    unsigned    needs;
} variants[] = {
    { "scalar", CPU_FMA },
    { "avx2", CPU_FMA | CPU_AVX2 },
    { "avx-vnni", CPU_FMA | CPU_AVX2 | CPU_AVX_VNNI },
    { "avx512", CPU_FMA | CPU_AVX2 | CPU_AVX512 },
    { "avx512-vnni", CPU_FMA | CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI },
    { "avx512-bf16", CPU_FMA | CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI | CPU_AVX512_BF16 },
    { "neon", CPU_FMA | CPU_NEON },
    { "neon-dot", CPU_FMA | CPU_NEON | CPU_NEON_DOT },
};

/* Lookups in bytes come along with bf16 where the machine has them. */
static unsigned allowed_by(const struct Variant *v)
{
    return v->needs & CPU_AVX512_BF16 ? v->needs | CPU_AVX512_VBMI : v->needs;
}

unsigned cpu_mask_features(const char *mask, unsigned features, bool *ok)
{
    *ok = true;
    if (!mask || !*mask) return features;
    for (int i = 0; i < COUNT(variants); i++)
        if (strcmp(mask, variants[i].name) == 0) return features & allowed_by(&variants[i]);
    *ok = false;
    return 0;
}

const char *cpu_variant_name(unsigned features)
{
    int best = 0;
    for (int i = 1; i < COUNT(variants); i++)
        if ((features & variants[i].needs) == variants[i].needs) best = i;
    return variants[best].name;
}
